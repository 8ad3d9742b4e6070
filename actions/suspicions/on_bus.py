"""Suspects by the bus: open incidents in whose row of the table a validation stands, and what came of it, told there.

Nothing is remembered here. What the bus keeps of incidents, actions and people's words is read anew before each restart
and taken in by the engine's own memory, so both know the same, and neither asks what the other has settled.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

from trainwarden.actions.brakes.history import BY_LAUNCHER, begun, carried_out, ended_s
from trainwarden.actions.launchers.restart_check.messages import CheckRequest, Conclusion, OpenSuspicion, Outcome
from trainwarden.actions.remedies import table
from trainwarden.actions.remedies.engine_state import EngineState, IncidentState
from trainwarden.actions.remedies.table import SEVERITY_OF, Remedies, Validate
from trainwarden.actions.validation.question import Question, answer, at_fault, question
from trainwarden.bus.address import connect
from trainwarden.clock import Clock
from trainwarden.commands.builders import EVERY_JOB
from trainwarden.commands.trust import Trust, in_order
from trainwarden.errors import WardenError
from trainwarden.launching import CHECKS
from trainwarden.protocols import Bus
from trainwarden.records import ActionRecord, CommandRecord
from trainwarden.settings import Settings
from trainwarden.topics import ACTIONS, COMMANDS, INCIDENTS, Topic

log = logging.getLogger("trainwarden.suspicions")

MOST_SAID: Final = 2  # rates of devices and links
MEMORY_S: Final = 7 * 86_400.0  # as long as an engine's


class SuspicionsOnBus:
    """A `trainwarden.actions.launchers.restart_check.messages.Suspicions` of one job.

    Parameters
    ----------
    open_bus : callable, optional
        Connects to the bus; None: there is none that anybody else reads.
    always : bool
        Whether all is measured also where nobody is suspected.
    """

    def __init__(
        self, job: str, remedies: Remedies, open_bus: Callable[[], Bus] | None, clock: Clock,
        *, always: bool = False, trust: Trust | None = None,
    ) -> None:  # fmt: skip
        self._job, self._remedies, self._open_bus, self._clock = job, remedies, open_bus, clock
        self._always, self._trust = always, trust or Trust()

    @classmethod
    def of(cls, settings: Settings, clock: Clock, bus: str | None) -> SuspicionsOnBus | None:
        """As `settings` ask for (``launch.validate_restarts``), by the bus at the address `bus`; None: nothing.

        Raises
        ------
        ConfigError
            If the table of remedies or the file of trusted keys cannot be used.
        """
        rule = settings.launch.validate_restarts
        if rule == "off" or (rule == "suspects" and bus is None):
            return None
        limit_bytes = settings.runs.bus_bytes
        return cls(
            settings.job, table.load(settings.engine.remedies),
            None if bus is None else lambda: connect(bus, settings.kafka, limit_bytes=limit_bytes), clock,
            always=rule == "always", trust=Trust.of(settings.commands.trusted),
        )  # fmt: skip

    def wanted(self, nodes: Collection[str]) -> CheckRequest | None:
        """See `trainwarden.actions.launchers.restart_check.messages.Suspicions.wanted`; None while the bus is away."""
        doubts: Sequence[OpenSuspicion] = ()
        try:
            memory = self._read()
        except WardenError as error:
            log.warning("suspects are not known", extra={"fields": {"reason": str(error)}})
        else:
            if memory.stopped_by(self._job) is not None:
                return None
            doubts = list(self._doubts(memory, nodes))
        if self._always:
            return CheckRequest(checks=CHECKS, doubts=tuple(doubts))
        if not doubts:
            return None
        named = tuple(dict.fromkeys(node for doubt in doubts for node in doubt.nodes))
        of_all = any(not doubt.nodes for doubt in doubts)
        checks = tuple(check for check in CHECKS if any(check in doubt.checks for doubt in doubts))
        return CheckRequest(checks=checks, nodes=() if of_all else named, doubts=tuple(doubts))

    def _read(self) -> EngineState:
        """What the bus tells of the job."""
        memory = EngineState(self._remedies.ladder)
        if self._open_bus is None:
            return memory
        since_s, bus = self._clock.now_s() - MEMORY_S, self._open_bus()
        topics: tuple[tuple[Topic[Any], float | None], ...] = (ACTIONS, since_s), (COMMANDS, None), (INCIDENTS, since_s)
        try:
            for topic, from_s in topics:
                for message in in_order(bus.read(topic, from_time_s=from_s)):
                    record = message.record
                    counts = not isinstance(record, CommandRecord) or self._trust.refusal(message) is None
                    if counts and getattr(record, "job", None) in (self._job, EVERY_JOB):
                        memory.apply(record, message.offset, message.time_s)
        finally:
            bus.close()
        return memory

    def _doubts(self, memory: EngineState, nodes: Collection[str]) -> Iterator[OpenSuspicion]:
        now_s = self._clock.now_s()
        past = [a for a in memory.of_job(self._job) if a.kind == "validate" and carried_out(a)]
        for case in memory.cases.values():
            rung = self._remedies.find(case.incident.kind, Validate) if case.wants_action else None
            rested_s = max(map(ended_s, past), default=float("-inf"))
            if rung is None or now_s - rested_s < rung.rest_s or memory.silences.over(case.incident, now_s) is not None:
                continue
            asked = question(case.incident.kind, case.incident.suspects)
            left = tuple(
                node for node in asked.nodes if node in nodes and memory.nodes.cleared(node, case.first_said_s) is None
            )
            if (left or asked.of_all) and not _settled(memory, case):
                yield _doubt(memory, case, asked._replace(nodes=left))

    def conclude(self, wanted: CheckRequest, outcome: Outcome) -> Conclusion:
        """See `trainwarden.actions.launchers.restart_check.messages.Suspicions.conclude`."""
        findings, now_s = outcome.findings, self._clock.now_s()
        records, said, confirmed = list[ActionRecord](), list[str](), list[str]()
        for doubt in wanted.doubts:
            asked = {"nodes": list(doubt.nodes), "ranks": list(doubt.ranks), "checks": list(doubt.checks)}
            told = None if findings is None else answer(asked, findings)
            sentence = told.said if told is not None else outcome.error or "the validation had no result"
            confirmed += [] if told is None else told.nodes
            said.append(sentence)
            records.append(
                ActionRecord(
                    id=doubt.action, incident=doubt.incident, job=self._job, kind="validate",
                    outcome="failed" if told is None else "done", at_s=now_s, finished_at_s=now_s,
                    why=f"{doubt.why}; measured by its launcher before its ranks start again: {sentence}",
                    plan={**asked, **({} if told is None else told.plan), BY_LAUNCHER: "true"},
                    severity=SEVERITY_OF["validate"],
                )
            )  # fmt: skip
        if self._always and findings is not None:
            confirmed += at_fault(findings)
            said += [one.text for one in findings.accused] or ["nobody is accused"]
            said += findings.rates.summary[:MOST_SAID]  # those that are furthest behind
        if records:
            threading.Thread(target=self._tell, args=(records,), name="suspicions-told", daemon=True).start()
        sentences = "; ".join(dict.fromkeys(said)) or outcome.error or "nothing was found"
        return Conclusion(confirmed=tuple(dict.fromkeys(confirmed)), said=sentences)

    def _tell(self, records: Sequence[ActionRecord]) -> None:
        """Put `records` on the bus, as long as that takes; a job waits for none of it."""
        if self._open_bus is None:
            return
        try:
            bus = self._open_bus()
            try:
                for record in records:
                    bus.publish(ACTIONS, self._job, record)
                bus.flush()
            finally:
                bus.close()
        except WardenError as error:
            log.error("what was measured is not told", extra={"fields": {"reason": str(error)}})


def _settled(memory: EngineState, case: IncidentState) -> bool:
    """Whether a validation of this incident has confirmed or cleared its suspects."""
    of_cause = memory.of_cause(case.incident.id)
    return any(a.kind == "validate" and a.plan.get("verdict") in ("confirmed", "cleared") for a in of_cause)


def _doubt(memory: EngineState, case: IncidentState, asked: Question) -> OpenSuspicion:
    incident = case.incident
    prefix = f"{incident.id}/validate/"
    attempt = 1 + sum(begun(a) for a in memory.of_cause(incident.id) if a.id.startswith(prefix))
    return OpenSuspicion(
        incident=incident.id, action=f"{prefix}{attempt}", why=f"{incident.kind}: {incident.reason}",
        checks=asked.checks, nodes=asked.nodes, ranks=asked.ranks,
    )  # fmt: skip
