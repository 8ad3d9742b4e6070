"""All records of a simulated job, topic by topic or in the order of their times.

Every rank computes as one of the recorded ranks did in that step, with a noise of its own; all wait for the slowest.
Each node plays the recorded metrics from another second on, with noise within what the recording strays.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import numpy as np

from trainwarden.errors import ConfigError
from trainwarden.records import EventRecord, HeartbeatRecord, IterationRecord, LogRecord, MetricsRecord, Record
from trainwarden.simulation.faults import FAULTS, Place
from trainwarden.simulation.recording import RANKS, Floats, Readings, Recording, Sent, recording
from trainwarden.topics import EVENTS, HEARTBEATS, ITERATIONS, LOGS, METRICS, Topic

NOISE: Final = 0.02  # of a rank's compute time, as a standard deviation of its logarithm
BEGINS_S: Final = 5.0  # from the start of the processes to that of the first step
SENT_AFTER_S: Final = 0.1  # an agent's delivery waits so long for more
ENDS_ALL_AFTER_S: Final = 3.0  # a launcher ends the other ranks so long after one of them
_LONGEST_S: Final = 7 * 86_400.0
_HIGHEST: Final = 65_536  # ranks: 8 of them are one node, whose parts of the recording repeat after that
GPU: Final = "GPU-"
_STEP, _LOSS = re.compile(r"step \d+"), re.compile(r"loss [\d.]+")


@dataclass(frozen=True)
class Fleet:
    """A job of `ranks` ranks.

    Parameters
    ----------
    ranks : int
        From 1 on; eight of them make a node.
    seconds : float
        How long it runs.
    start_s : float
        Unix seconds of its start.
    fault : str
        One of `FAULTS`.
    at_s : float or None
        Seconds from the start to the fault; a third of `seconds` if it is not given.
    rank : int or None
        Whom it strikes; a rank in the middle if it is not given.
    slowdown : float
        How many times as long a slow rank computes.

    Raises
    ------
    ConfigError
        If one of these is impossible.

    Examples
    --------
    >>> fleet = Fleet(ranks=16, seconds=20.0, fault="hang", at_s=12.0, rank=9)
    >>> sorted({record.node for _, record in fleet.of(METRICS)})
    ['node-0', 'node-1']
    >>> max(max(record.steps) for _, record in fleet.of(ITERATIONS)) < 10
    True
    """

    ranks: int
    seconds: float = 120.0
    start_s: float = 0.0
    seed: int = 0
    job: str = "simulated"
    fault: str = "none"
    at_s: float | None = None
    rank: int | None = None
    slowdown: float = 2.0
    played: Recording = field(default_factory=recording)

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= _HIGHEST:
            raise ConfigError(f"{self.ranks} ranks cannot be simulated (1 to {_HIGHEST})")
        if self.fault not in FAULTS:
            raise ConfigError(f"there is no fault '{self.fault}' (there are: {', '.join(FAULTS)})")
        if not 0 <= self.struck < self.ranks:
            raise ConfigError(f"rank {self.rank} is none of {self.ranks}")
        if not BEGINS_S < self.seconds <= _LONGEST_S:
            raise ConfigError(
                f"{self.seconds:g} s: a job runs for {BEGINS_S:g} s, before its first step, to {_LONGEST_S:g} s"
            )
        if self.fault != "none" and not BEGINS_S <= self.fault_at_s - self.start_s < self.seconds:
            raise ConfigError(
                f"a fault after {self.fault_at_s - self.start_s:g} s is not between {BEGINS_S:g} and {self.seconds:g} s"
            )

    @property
    def struck(self) -> int:
        """The rank at fault."""
        return self.ranks // 2 if self.rank is None else self.rank

    @property
    def fault_at_s(self) -> float:
        """When, in Unix seconds."""
        return self.start_s + (self.seconds / 3.0 if self.at_s is None else self.at_s)

    @property
    def nodes(self) -> int:
        """How many there are."""
        return -(-self.ranks // RANKS)

    @staticmethod
    def node_of(rank: int) -> str:
        """The name of a rank's node."""
        return f"node-{rank // RANKS}"

    def sent(self) -> Iterator[Sent]:
        """All records, by the time when they are sent."""
        topics: list[Topic[Any]] = [METRICS, ITERATIONS, HEARTBEATS, LOGS, EVENTS]
        return heapq.merge(*map(self.of, topics), key=_when)

    def of(self, topic: Topic[Any]) -> Iterator[Sent]:
        """The records of one topic, by the time when they are sent; each call gives the same ones."""
        play = _Play(self)
        if topic is EVENTS:
            return iter(sorted(play.events(), key=_when))
        of_node: dict[Topic[Any], Callable[[int], Iterator[Sent]]] = {
            METRICS: play.metrics, ITERATIONS: play.iterations, HEARTBEATS: play.heartbeats, LOGS: play.logs,
        }  # fmt: skip
        if topic not in of_node:
            return iter(())
        return heapq.merge(*map(of_node[topic], range(self.nodes)), key=_when)


def _when(sent: Sent) -> float:
    return sent[0]


class _Play:
    """The timeline of one job.

    `ends_s` ``[steps]`` are Unix seconds, `compute_s` and `wait_s` ``[steps, ranks]``.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.fault = fleet, FAULTS[fleet.fault]
        self.until_s = fleet.start_s + fleet.seconds
        self._late = np.random.default_rng((fleet.seed, 1)).random(fleet.nodes)
        self.compute_s, self.wait_s, self.ends_s = self._timeline()

    def _timeline(self) -> tuple[Floats, Floats, Floats]:
        fleet, played = self.fleet, self.fleet.played
        shortest_s = float((played.compute_s.max(axis=1)).min())
        steps = int(fleet.seconds / shortest_s) + 1
        of = np.arange(steps) % len(played.compute_s)
        random = np.random.default_rng((fleet.seed, 0))
        compute_s = played.compute_s[np.ix_(of, np.arange(fleet.ranks) % RANKS)]
        compute_s = compute_s * random.lognormal(0.0, NOISE, compute_s.shape)
        least_s = played.wait_s[of].min(axis=1)
        begun_s = fleet.start_s + BEGINS_S
        if self.fault.slows:
            before = begun_s + np.cumsum(compute_s.max(axis=1) + least_s) <= fleet.fault_at_s
            compute_s[~before, fleet.struck] *= fleet.slowdown
        took_s = compute_s.max(axis=1) + least_s
        ends_s = begun_s + np.cumsum(took_s)
        last_s = fleet.fault_at_s if self.fault.stops else self.until_s
        whole = int(np.searchsorted(ends_s, last_s))
        return compute_s[: whole + 1], took_s[: whole + 1, None] - compute_s[: whole + 1], ends_s[:whole]

    def incarnation(self, rank: int) -> str:
        return f"{self._pid(rank)}-{int(self.fleet.start_s * 1000)}"

    @staticmethod
    def _pid(rank: int) -> int:
        return 4000 + rank % RANKS

    def _ranks(self, node: int) -> range:
        return range(node * RANKS, min((node + 1) * RANKS, self.fleet.ranks))

    def _ticks(self, node: int, each_s: float) -> Iterator[float]:
        """When the agent of a node looks, until its silence or the job's end."""
        struck = self.fleet.struck // RANKS == node
        until_s = self.fleet.fault_at_s if self.fault.silences and struck else self.until_s
        for number in count(1):
            at_s = self.fleet.start_s + (number + float(self._late[node])) * each_s
            if at_s >= until_s:
                return
            yield at_s

    def _gone_s(self, rank: int) -> float:
        """When a rank's process has ended."""
        if not self.fault.ends:
            return self.until_s
        return self.fleet.fault_at_s + (0.0 if rank == self.fleet.struck else ENDS_ALL_AFTER_S)

    def iterations(self, node: int) -> Iterator[Sent]:
        sent = 0
        for at_s in self._ticks(node, self.fleet.played.batch_s):
            done = int(np.searchsorted(self.ends_s, at_s))
            if done == sent:
                continue
            ends_s = self.ends_s[sent:done].tolist()
            whole = (self.compute_s[sent:done] + self.wait_s[sent:done]).T
            for rank in self._ranks(node):
                yield at_s + SENT_AFTER_S, IterationRecord(
                    job=self.fleet.job, node=f"node-{node}", rank=rank, incarnation=self.incarnation(rank),
                    steps=tuple(range(sent, done)), end_s=tuple(ends_s), duration_s=tuple(whole[rank].tolist()),
                    compute_s=tuple(self.compute_s[sent:done, rank].tolist()),
                    wait_s=tuple(self.wait_s[sent:done, rank].tolist()), pause_s=(0.0,) * (done - sent),
                    micro_batches=(1,) * (done - sent), role="collective",
                )  # fmt: skip
            sent = done

    def heartbeats(self, node: int) -> Iterator[Sent]:
        fleet, ranks = self.fleet, self._ranks(node)
        columns: dict[str, Any] = {
            "ranks": tuple(ranks), "pids": tuple(map(self._pid, ranks)),
            "incarnations": tuple(map(self.incarnation, ranks)), "boot": f"boot-{node}",
        }  # fmt: skip
        for at_s in self._ticks(node, fleet.played.beat_s):
            living = [place for place, rank in enumerate(ranks) if at_s < self._gone_s(rank)]
            if len(living) < len(columns["ranks"]):
                columns |= {k: tuple(columns[k][p] for p in living) for k in ("ranks", "pids", "incarnations")}
                ranks = ranks if living else range(0)
            of = [*columns["ranks"]]
            step = int(np.searchsorted(self.ends_s, at_s))
            begun_s = fleet.start_s + BEGINS_S if step == 0 else float(self.ends_s[step - 1])
            waits = self._waits(of, step, at_s - begun_s)
            since = begun_s + np.where(waits, self.compute_s[step, of], 0.0)
            phases = ["wait" if one else "compute" for one in waits] if at_s >= begun_s else ["start"] * len(of)
            last = None if step == 0 else begun_s
            yield at_s, HeartbeatRecord(
                job=fleet.job, node=f"node-{node}", time_s=at_s, monotonic_s=at_s - fleet.start_s + 1000.0,
                steps=(step,) * len(of), step_end_s=(last,) * len(of), phases=tuple(phases),  # type: ignore[arg-type]
                phase_since_s=tuple(np.minimum(since, at_s).tolist()), calls=(step + 1,) * len(of),
                states=("S",) * len(of), cpu_s=((at_s - fleet.start_s) * fleet.played.cpu_ratio,) * len(of), **columns,
            )  # fmt: skip

    def _waits(self, ranks: list[int], step: int, in_step_s: float) -> Any:
        """Which of `ranks` wait for the others by now; one that has stopped does not."""
        waits = in_step_s > self.compute_s[step, ranks]
        if self.fault.stops and step == len(self.ends_s):
            waits &= np.array(ranks) != self.fleet.struck
        return waits

    def metrics(self, node: int) -> Iterator[Sent]:
        """The recording from another second on for each node."""
        fleet, played = self.fleet, self.fleet.played.metrics
        late_s, first = float(self._late[node]), (7 * node) % len(played)
        random = np.random.default_rng((fleet.seed, 2, node))
        for number in range(first, first + 10**9):
            again, place = divmod(number, len(played))
            one = played[place]
            at_s = fleet.start_s + late_s + again * fleet.played.seconds + one.at_s - played[first].at_s
            if at_s >= self.until_s or (self._is_silent(node) and at_s >= fleet.fault_at_s):
                return
            yield at_s + SENT_AFTER_S, self._reading(node, one, again, at_s, random)

    def _is_silent(self, node: int) -> bool:
        return self.fault.silences and self.fleet.struck // RANKS == node

    def _reading(self, node: int, one: Readings, again: int, at_s: float, random: np.random.Generator) -> Record:
        noise = random.standard_normal(one.values.shape) * one.wander * 0.5
        values = one.values + again * one.grows + np.where(one.whole, np.round(noise), noise)
        ranks = self._ranks(node)
        strikes = one.ranked and self.fleet.struck in ranks and at_s >= self.fleet.fault_at_s
        for name, value in self.fault.metrics if strikes else ():
            if name in one.names:
                values[one.names.index(name), self.fleet.struck % RANKS] = value
        values = np.clip(values, one.low, one.high)
        cells = values.astype(object)
        cells[np.isnan(values)] = None
        return MetricsRecord(
            job=self.fleet.job, node=f"node-{node}", time_s=at_s, names=one.names, models=one.models,
            devices=tuple(self.gpu(device, node) for device in one.devices), values=tuple(map(tuple, cells.tolist())),
            ranks=tuple(rank if rank in ranks else None for rank in range(node * RANKS, (node + 1) * RANKS))
            if one.ranked else (),
        )  # fmt: skip

    @staticmethod
    def gpu(device: str, node: int) -> str:
        """The device's name there: a UUID is that of one GPU in the world."""
        return f"{device[:13]}{node:04x}{device[17:]}" if device.startswith(GPU) else device

    def logs(self, node: int) -> Iterator[Sent]:
        sent, ends = 0, dict.fromkeys(self._ranks(node), 0)
        for at_s in self._ticks(node, self.fleet.played.batch_s):
            done = int(np.searchsorted(self.ends_s, at_s))
            for rank in self._ranks(node):
                lines = [self._line(rank, step) for step in range(sent, done)]
                lines += self._said(rank, at_s)
                if not lines:
                    continue
                places = ends[rank] + np.cumsum([len(line) + 1 for line in lines])
                ends[rank] = int(places[-1])
                yield at_s + SENT_AFTER_S, LogRecord(
                    job=self.fleet.job, node=f"node-{node}", source=f"logs/rank-{rank}.log", rank=rank,
                    ends=tuple(places.tolist()), lines=tuple(lines), times_s=(at_s,) * len(lines),
                )  # fmt: skip
            sent = done

    def _line(self, rank: int, step: int) -> str:
        line = self.fleet.played.line.replace("[rank 0]", f"[rank {rank}]")
        return _LOSS.sub(f"loss {2.0 + 8.0 / (step + 1):.4f}", _STEP.sub(f"step {step}", line))

    def _said(self, rank: int, at_s: float) -> list[str]:
        """What the fault makes a rank write in this look."""
        since_s = at_s - self.fleet.fault_at_s
        if rank != self.fleet.struck or since_s < 0.0:
            return []
        each_s = self.fleet.played.batch_s
        once = [*self.fault.lines] if since_s < each_s and not self.fault.lines_per_s else []
        more = int(self.fault.lines_per_s * each_s)
        return once + [f"{self.fault.lines[0]} (peer {number % 97})" for number in range(more)]

    def events(self) -> Iterator[Sent]:
        fleet = self.fleet
        for rank in range(fleet.ranks):
            yield fleet.start_s + 1.0, self._of_process("process_start", rank, fleet.start_s, pid=self._pid(rank),
                world_size=fleet.ranks, attempt=0)  # fmt: skip
        yield from self._fault_s()
        if self.fault.ends:
            for rank in range(fleet.ranks):
                if rank != fleet.struck and (at_s := self._gone_s(rank)) < self.until_s:
                    yield at_s, self._of_process("process_exit", rank, at_s, signal="SIGTERM")
        elif not self.fault.stops:
            for rank in range(fleet.ranks):
                yield self.until_s, self._of_process("process_exit", rank, self.until_s, code=0)

    def _fault_s(self) -> Iterator[Sent]:
        fleet, node = self.fleet, self.fleet.struck // RANKS
        uuid = next(one.devices for one in fleet.played.metrics if one.devices[0].startswith(GPU))[fleet.struck % RANKS]
        place = Place(
            fleet.job,
            f"node-{node}",
            fleet.struck,
            self.gpu(uuid, node),
            self.incarnation(fleet.struck),
            len(self.ends_s),
        )
        yield from ((one.time_s, one) for one in self.fault.events(place, fleet.fault_at_s))

    def _of_process(self, kind: Any, rank: int, at_s: float, **fields: Any) -> EventRecord:
        node = self.fleet.node_of(rank)
        return EventRecord(
            id=f"{kind}/{node}/{self.incarnation(rank)}", job=self.fleet.job, node=node, time_s=at_s, kind=kind,
            rank=rank, message=f"{kind} of rank {rank}", fields={"incarnation": self.incarnation(rank), **fields},
        )  # fmt: skip
