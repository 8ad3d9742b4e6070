"""A bus in memory and an engine with its surroundings, for tests of the engine."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from tests.doubles import ManualClock
from tests.memory_launcher import MemoryLauncher
from trainwarden.actions.engine.handler import EngineHandler
from trainwarden.actions.remedies.policy import Rules
from trainwarden.commands.gate import CommandGate
from trainwarden.commands.keys import Signer, Trusted
from trainwarden.commands.trust import Trust
from trainwarden.errors import BusUnavailable, RecordsRefused
from trainwarden.protocols import Message
from trainwarden.records import ActionRecord, CommandRecord, EventRecord, IncidentRecord, Record
from trainwarden.self_metrics import SelfMetrics
from trainwarden.service_loop import flush
from trainwarden.settings import EngineSettings
from trainwarden.topics import ACTIONS, EVENTS, MAX_RECORD_BYTES, Topic, topic_of


class Killed(BaseException):
    """kill -9 of the engine, at the moment at which it calls the launcher."""


class MemoryConsumer:
    """Reads all partitions of its topics, or those given as `owned`; `deaf` means that it has not been let in."""

    def __init__(self, bus: MemoryBus, topics: Sequence[Topic[Any]], owned: frozenset[int] = frozenset({0})) -> None:
        self._bus, self._topics, self._at = bus, topics, {topic.name: 0 for topic in topics}
        self.owned = owned

    def poll(self, timeout_s: float, max_records: int = 1000) -> list[Message]:
        if self._bus.deaf:
            return []
        found: list[Message] = []
        for topic in self._topics:
            kept = self._bus.kept.get(topic.name, [])
            found += [message for message in kept[self._at[topic.name] :] if message.partition in self.owned]
            self._at[topic.name] = len(kept)
        return found

    def lag(self) -> int:
        return 0 if self._bus.deaf else sum(len(self._bus.kept.get(name, [])) - at for name, at in self._at.items())

    def assignment(self) -> frozenset[tuple[str, int]]:
        return (
            frozenset() if self._bus.deaf else frozenset((t.name, place) for t in self._topics for place in self.owned)
        )

    def seek_to_time(self, time_s: float) -> None:
        self._at = {topic.name: 0 for topic in self._topics}


class MemoryBus:
    """Keeps what was flushed, stamped in that order; `away` makes every flush fail until it is turned off.

    Action records of more bytes than `most_bytes` are refused for good.
    Records of `elsewhere` jobs lie in partition 1, all others in 0; `before_flush` is called once, at the next flush.
    """

    def __init__(self) -> None:
        self.elsewhere: frozenset[str] = frozenset()
        self.before_flush: Callable[[], object] | None = None
        self.now_s: Callable[[], float] = lambda: 0.0
        self.kept: dict[str, list[Message]] = {}
        self.queued: list[tuple[Topic[Any], str, Record]] = []
        self.away = False
        self.deaf = False
        self.most_bytes = MAX_RECORD_BYTES
        self.refuses: Callable[[Record], bool] = lambda record: False  # for good, as a topic of Kafka does

    def publish(self, topic: Topic[Any], key: str, record: Record) -> None:
        topic.decode(topic.encode(record))
        self.queued.append((topic, key, record))

    def flush(self, timeout_s: float = 30.0) -> None:
        if self.away:
            raise BusUnavailable("away")
        if (before := self.before_flush) is not None:
            self.before_flush = None
            before()
        values = [(topic.name, key, topic.encode(record)) for topic, key, record in self.queued]
        refused = [
            (name == ACTIONS.name and len(value) > self.most_bytes) or self.refuses(queued[2])
            for (name, _, value), queued in zip(values, self.queued, strict=True)
        ]
        for topic, key, record in itertools.compress(self.queued, map(operator.not_, refused)):
            kept = self.kept.setdefault(topic.name, [])
            place = int(key in self.elsewhere)
            kept.append(Message(topic.name, place, len(kept), self._stamp(), key, record))
        self.queued.clear()
        if any(refused):
            raise RecordsRefused("too large", tuple(itertools.compress(values, refused)))

    def _stamp(self) -> float:
        """Time by the bus's own clock, later for each record."""
        return self.now_s() + 1e-6 * sum(map(len, self.kept.values()))

    def consumer(self, topics: Sequence[Topic[Any]], group: str, *, start: str = "earliest") -> Any:
        return MemoryConsumer(self, topics, frozenset({0, 1}) if self.elsewhere else frozenset({0}))

    def read(self, topic: Topic[Any], *, from_time_s: float | None = None) -> Iterable[Message]:
        return list(self.kept.get(topic.name, ()))

    def close(self) -> None:
        self.queued.clear()

    def actions(self) -> list[ActionRecord]:
        """Every action record kept, in order."""
        return [message.record for message in self.read(ACTIONS)]  # type: ignore[misc]


class Rig:
    """An engine with its surroundings; `tick` plays one round of the service loop.

    The ranks adopt every split at once, unless `adopting` is turned off. `remedies` are rungs by kind of incident, laid
    over the shipped table; `settings` those of the engine. With `trusted` keys words have to be signed, by the engine
    with `signer`; both count from `restart_engine` on.
    """

    trusted: tuple[Trusted, ...] = ()
    signer: Signer | None = None

    def __init__(self, remedies: dict[str, Any] | None = None, **settings: Any) -> None:
        self.bus, self.launcher, self.clock = MemoryBus(), MemoryLauncher(), ManualClock(1000.0)
        self.bus.now_s = self.clock.now_s
        self.metrics = SelfMetrics("engine")
        self.settings = EngineSettings(**{"mode": "auto", **settings})
        self.remedies = remedies or {}
        self.adopting, self._adopted = True, 0
        self.owned = frozenset({0})
        self.restart_engine()

    def beside(self) -> Rig:
        """A second engine on the same bus and launcher, which owns partition 1; what it publishes waits by itself."""
        other = Rig(self.remedies)
        other.settings, other.clock, other.launcher, other.metrics = (
            self.settings,
            self.clock,
            self.launcher,
            self.metrics,
        )
        other.bus.kept, other.bus.elsewhere, other.owned = self.bus.kept, self.bus.elsewhere, frozenset({1})
        other.bus.now_s = self.bus.now_s
        other.restart_engine()
        return other

    def restart_engine(self, **settings: Any) -> None:
        """A new engine on the same bus, as after kill -9."""
        self.settings = msgspec.structs.replace(self.settings, **settings)
        self.bus.queued.clear()
        rules = Rules.of(self.settings)
        rules = msgspec.structs.replace(rules, remedies=rules.remedies.replaced(self.remedies, "the test"))
        gate = CommandGate(Trust(self.trusted), self.signer, self.clock, self.metrics)
        self.engine = EngineHandler(rules, self.launcher, self.clock, self.metrics, gate=gate)
        self.share_out(self.owned)

    def share_out(self, owned: frozenset[int]) -> None:
        """The engine's group gives it these partitions of the incidents."""
        self.consumer = MemoryConsumer(self.bus, self.engine.topics, owned)
        self.engine.start(self.bus, self.consumer)  # type: ignore[arg-type]

    def tell(self, *records: Record) -> None:
        """Put records on the bus and through the engine, then let it think."""
        for record in records:
            self.bus.publish(topic_of(record), "job", record)
        self.bus.flush()
        assert not list(self.engine.handle(self.consumer.poll(0.0)))
        self.tick()

    def tick(self, seconds: float = 0.0) -> None:
        """Let `seconds` pass, then one tick whose outputs are kept."""
        self.clock.sleep(seconds)
        for key, record in self.engine.tick(self.clock.now_s()):
            self.bus.publish(topic_of(record), key, record)
        flush(self.bus, self.metrics)
        if self.adopting and len(self.launcher.splits) > self._adopted:
            self.adopt(*range(len(self.launcher.splits[-1])))
            self.tick()

    def adopt(self, *ranks: int, split: tuple[int, ...] | None = None) -> None:
        """`ranks` say that they run by `split`; default the newest that the launcher has put."""
        self._adopted = len(self.launcher.splits)
        counts = ",".join(map(str, split or self.launcher.splits[-1]))
        for rank in ranks:
            fields: dict[str, Any] = {"number": self._adopted, "micro_batches": counts}
            event = EventRecord(
                id=f"microbatch_plan/n0/{rank}/{self.clock.now_s()}", job="job", node="n0", time_s=self.clock.now_s(),
                kind="microbatch_plan", rank=rank, fields=fields,
            )  # fmt: skip
            self.bus.publish(EVENTS, "job", event)
        self.bus.flush()

    def story(self) -> list[tuple[str, str]]:
        """(id, outcome) of every action record, in order."""
        return [(action.id, action.outcome) for action in self.bus.actions()]

    def incident(self, name: str = "i1", kind: str = "crash", **more: Any) -> IncidentRecord:
        """An incident opened now."""
        now_s = self.clock.now_s()
        fields: dict[str, Any] = {
            "severity": "sev2", "state": "opened", "revision": 0, "opened_at_s": now_s, "updated_at_s": now_s,
            "reason": "rank 2 was killed", **more,
        }  # fmt: skip
        return IncidentRecord(id=name, job="job", kind=kind, **fields)  # type: ignore[arg-type]

    def later(self, incident: IncidentRecord, **more: Any) -> IncidentRecord:
        """The next revision of `incident`."""
        return msgspec.structs.replace(
            incident,
            **{"state": "updated", "revision": incident.revision + 1, "updated_at_s": self.clock.now_s(), **more},
        )

    def closed(self, incident: IncidentRecord, **more: Any) -> IncidentRecord:
        """`incident` closed now."""
        return self.later(incident, state="closed", closed_at_s=self.clock.now_s(), **more)

    def command(self, kind: str, action: str | None = None, job: str = "job") -> CommandRecord:
        """A person's word; an approval is of the plan that was shown last."""
        now_s = self.clock.now_s()
        shown = {record.id: record.plan_digest for record in self.bus.actions()}
        return CommandRecord(
            id=f"c{now_s}", job=job, at_s=now_s, kind=kind, by="someone", action=action,  # type: ignore[arg-type]
            plan_digest=shown.get(action or "") if kind == "approve" else None,
        )  # fmt: skip
