"""Which of the things said at the end of a job is its cause, and which only followed."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from trainwarden.detectors.logs.ends.call_counts import CallCounts
from trainwarden.detectors.logs.ends.endings import Ending
from trainwarden.records import IncidentKind, Severity

NEAR_S: Final = 60.0  # what a device's failure explains, or the end of a log, is no further away
WITNESSES: Final = 2  # ranks that waited, before one that did not is suspected
FEW_LINES: Final = 40  # that may follow the last words of a log that ends with them
# torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp, where every rank compares its collective with the others'.
_DIFFERS: Final = re.compile(
    r"\bRank ([0-9]{1,6}) is running collective: .{1,2000}?, but Rank ([0-9]{1,6}) is running collective: "
)
# Rules of what a service outside of the job refuses or does not know.
OUTSIDE: Final = frozenset({"cloud.credentials", "net.name_unresolved"})
# The same in the words of an exception that no rule names: a hub that limits or fails, a share, a quota, a store.
_OUTSIDE: Final = re.compile(
    r"Error: (?:429|50[0234]) |(?:429 Client|50[0234] Server) Error\b|Too Many Requests|Stale (?:NFS )?file handle|"
    r"Disk quota exceeded|Max retries exceeded with url|(?:Slow|ServiceUnavail)\w{1,10}\) when calling|"
    r"couldn't connect to 'https?://|LocalEntryNotFoundError"
)
_HEARTBEAT: Final = "jax.heartbeat"
_ELSEWHERE: Final = frozenset({"cloud.credentials"})  # no host of the job has a part in it
_SIGNAL_NAMES: Final = {4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV"}
_MEANS: Final = {
    6: "process.aborted", 9: "process.killed", 7: "process.bus_error", 11: "process.segfault",
}  # fmt: skip
_SAYS: Final = {
    6: "an assertion of native code or a library that gave up",
    7: "often a full /dev/shm: raise --shm-size",
    9: "by the kernel's out-of-memory killer, the scheduler or a person",
}

Order = tuple[float, int, int]
"""Time, file and place of a line: what is compared to say which came first."""
Ends = Sequence[tuple[Order, Ending, int | None]]
"""Processes that ended: when, how the launcher says it, and of which rank."""


@dataclass(slots=True)
class Cause:
    """What one rank named as the cause of its end."""

    order: Order
    rank: int | None
    node: str | None
    file: str
    line: str
    rule: str
    kind: IncidentKind
    severity: Severity
    raised: bool = False  # by a traceback that nothing caught before it was printed
    device: str | None = None
    left: int = 0  # lines of its file behind it

    @property
    def time_s(self) -> float:
        """When it was said."""
        return self.order[0]

    @property
    def telling(self) -> bool:
        """Whether more is known than that an exception was logged."""
        return self.raised or self.rule != "python.exception"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How one attempt of a job ended.

    Attributes
    ----------
    cause : Cause or None
        None: nothing needs to be told here, whatever single lines say.
    then : str
        What followed, in words.
    at_s : float
        When that was known.
    explained : bool
        A device, a node or the scheduler has ended the job; other lines tell of it.
    rank, node
        Of the only process that a launcher saw end by what is `explained`.
    """

    cause: Cause | None
    then: str
    at_s: float
    explained: bool = False
    rank: int | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Stall:
    """A coordinator says that ranks are missing: `hang` where the others wait for them, `crash` where they are gone."""

    order: Order
    kind: IncidentKind
    missing: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Attempt:
    """What was said since training last went on."""

    causes: list[Cause] = field(default_factory=list)
    followed: list[tuple[Order, str]] = field(default_factory=list)  # consequences that are no warnings
    stalls: list[Stall] = field(default_factory=list)
    warned: bool = False
    stuck_host: bool = False  # a kernel said that a task or a processor is stuck
    fallen: list[Cause] = field(default_factory=list)  # ranks that ended by an exception that tells of another's end
    ends: list[tuple[Order, Ending, int | None]] = field(default_factory=list)
    devices: list[tuple[float, int | None]] = field(default_factory=list)
    waited: set[int] = field(default_factory=set)
    stuck: set[int] = field(default_factory=set)  # of these, whose watchdog gave up
    gave_up: bool = False  # some watchdog, of a rank or of nobody
    heard: frozenset[int] = frozenset()  # ranks of all the job's lines
    stopped_by: Order | None = None  # scheduler or user
    done: Order | None = None
    steps: Counter[tuple[int, int | None]] = field(default_factory=Counter)
    numbers: dict[tuple[int, int | None], int] = field(default_factory=dict)  # of the newest of these steps
    newest: dict[tuple[int, int | None], Order] = field(default_factory=dict)  # their newest step lines
    counts: CallCounts = field(default_factory=CallCounts)

    def went_on(self, writer: tuple[int, int | None], number: int | None, order: Order) -> int:
        """Note a step line of `writer`, and how many steps it has told of; several threads may tell of one."""
        self.newest[writer] = order
        if number is None or self.numbers.get(writer) != number:
            self.steps[writer] += 1
        if number is not None:
            self.numbers[writer] = number
        return self.steps[writer]

    @property
    def uneventful(self) -> bool:
        """Whether nothing is known of its end, but that the scheduler or a person may have ended it."""
        other = self.causes or self.followed or self.devices or self.stalls or self.fallen or self.done
        return not other and not any(ending.failed for _, ending, _ in self.ends)

    @property
    def eventful(self) -> bool:
        seen = self.causes or self.followed or self.ends or self.devices or self.stalls
        return bool(seen or self.stopped_by or self.warned or self.stuck_host)


def decide(attempt: Attempt, now_s: float, *, at_end: bool) -> Verdict | None:
    """How the attempt ended; None where single lines may speak for themselves."""
    failed = [(order, ending, rank) for order, ending, rank in attempt.ends if ending.failed or ending.says == "block"]
    causes = attempt.causes
    if attempt.done is not None and not any(order > attempt.done for order, _, _ in failed):
        causes = [
            one for one in causes if one.raised or one.order < attempt.done
        ]  # what is said as a run is cleaned up
    firsts = [one.order for one in causes] + [order for order, _, _ in failed]
    first = min(firsts, default=None)
    if (
        attempt.done is not None
        and max([*firsts, *(order for order, _ in attempt.followed)], default=attempt.done) <= attempt.done
    ):
        return Verdict(None, "the run is done", now_s)
    if first is None:
        if attempt.devices and attempt.followed:
            return Verdict(None, "a device or node failed", _since_s(attempt, now_s), explained=True)
        if attempt.stalls and at_end:
            return _by_stall(attempt)
        quiet = attempt.warned and not attempt.followed and not attempt.devices
        return Verdict(None, "nothing but warnings", now_s) if quiet else _by_waiting(attempt, now_s, at_end=at_end)
    if attempt.stopped_by is not None and attempt.stopped_by < first:
        return Verdict(None, "it was ended from outside", now_s, explained=True)
    if any(time_s <= first[0] + NEAR_S for time_s, _ in attempt.devices):
        rank, node = _only_one(failed)
        since_s = _since_s(attempt, now_s)
        return Verdict(None, "a device or node failed", since_s, explained=True, rank=rank, node=node)
    if (silent := _by_heartbeat(attempt, failed)) is not None:
        return silent
    if attempt.causes:
        return _by_cause(attempt, failed, now_s, at_end=at_end)
    stalled = attempt.stalls and first[0] - attempt.stalls[-1].order[0] <= NEAR_S  # a coordinator warns every minute
    if stalled and at_end and all(rank is None for _, _, rank in failed):
        return _by_stall(attempt)
    found = _by_ending(attempt, failed, now_s) or _by_counts(attempt) or _by_waiting(attempt, now_s, at_end=at_end)
    return found or (_by_consequences(attempt, failed) if at_end else None)


def _by_heartbeat(attempt: Attempt, failed: Ends) -> Verdict | None:
    """A coordinator missed one rank's heartbeats before anything else was said: who aborts afterwards only follows."""
    missed = [(order, ending, rank) for order, ending, rank in failed if ending.id == _HEARTBEAT and rank is not None]
    if not missed or len({rank for _, _, rank in missed}) > 1:
        return None
    order, ending, rank = min(missed, key=lambda one: one[0])
    if any(cause.order < order or cause.rank == rank for cause in attempt.causes):
        return None
    cause = Cause(
        order=order, rank=rank, node=ending.node, file="", line=f"rank {rank} sent no heartbeats any more, says the "
        f"coordinator ({ending.id}); its own log tells why", rule="process.exit", kind="crash", severity="sev2",
    )  # fmt: skip
    return Verdict(cause, "", order[0])


def _only_one(failed: Ends) -> tuple[int | None, str | None]:
    """The only rank that launchers saw end by itself, and its node: who names no rank may tell of the same process."""
    ranks = {rank for _, _, rank in failed if rank is not None}
    of_rank = [ending.node for _, ending, rank in failed if rank is not None or not ranks]
    nodes = {node for node in of_rank if node}
    return (ranks.pop() if len(ranks) == 1 else None), (nodes.pop() if len(nodes) == 1 and len(ranks) <= 1 else None)


def _since_s(attempt: Attempt, now_s: float) -> float:
    """When the first consequence began: from then on it is explained."""
    return min((order[0] for order, _ in attempt.followed), default=now_s)


def _by_cause(attempt: Attempt, failed: Ends, now_s: float, *, at_end: bool) -> Verdict | None:
    cause = _of_nobody(_root(attempt, failed), attempt.causes)
    after = [order[0] for order, _, _ in attempt.ends if order > cause.order]
    after += [order[0] for order, _ in attempt.followed if order[1:] != cause.order[1:]]
    if not after:
        # Whoever makes a step after it has gone on: these are not its last words.
        outlived = attempt.newest.get((cause.order[1], cause.rank), cause.order) > cause.order
        alone = at_end and not outlived and cause.left <= FEW_LINES and now_s - cause.time_s <= NEAR_S
        if not alone or not cause.telling:
            return Verdict(None, "nothing ended by it", now_s)
    then = _then(attempt, failed)
    return Verdict(cause, then, max([cause.time_s, *([min(after)] if after else [])]))


def _root(attempt: Attempt, failed: Ends) -> Cause:
    """The cause that counts: of the rank that the launcher saw first, else the first; its most telling line."""
    candidates = [one for one in attempt.causes if one.rank is None or one.rank not in attempt.waited] or attempt.causes
    # An exception that was only logged, of nobody, says less than one that ended a process.
    candidates = [one for one in candidates if one.telling or one.rank is not None] or candidates
    first = next((rank for _, ending, rank in failed if ending.first and rank is not None), None)
    of_first = [one for one in candidates if one.rank == first and first is not None]
    early = min(candidates, key=lambda one: one.order)
    # The launcher looks after its processes now and then only: what came well before is no consequence.
    if of_first and min(one.time_s for one in of_first) - early.time_s <= NEAR_S:
        candidates = of_first
    early = min(candidates, key=lambda one: one.order)
    own = [one for one in candidates if one.rank == early.rank and one.file == early.file]
    telling = [one for one in own if one.kind not in {"exception", "crash"} and one.time_s - early.time_s <= NEAR_S]
    best = min(telling or [early], key=lambda one: one.order)
    if best.rank is None:
        known = first if first is not None else next((rank for _, _, rank in failed if rank is not None), None)
        best.rank = known
    if best.kind == "collective_mismatch" and (odd := _odd_one(attempt.causes)) is not None and odd != best.rank:
        best.rank, best.node = odd, next((one.node for one in attempt.causes if one.rank == odd), None)
        best.line, best.file = f"several ranks say that rank {odd} runs another collective: {best.line}", ""
    if best.node is None:
        best.node = next((end.node for _, end, rank in failed if end.node and rank == best.rank), None)
    return best


def _of_nobody(cause: Cause, causes: Sequence[Cause]) -> Cause:
    """`cause`, of nobody where it lies outside of the job: the service refused, or several ranks met the same.

    Examples
    --------
    >>> def cause(rank, node): return Cause((0.0, 0, 0), rank, node, "f", "HTTPError: 429 Client Error", "r", "exception", "sev2")
    >>> _of_nobody(cause(1, "a"), [cause(1, "a"), cause(2, "b")]).rank, _of_nobody(cause(1, "a"), [cause(1, "a")]).rank
    (None, 1)
    """  # noqa: E501
    outside = cause.rule in OUTSIDE or _OUTSIDE.search(cause.line) is not None
    same = [
        one for one in causes
        if abs(one.time_s - cause.time_s) <= NEAR_S
        and (one.rule in OUTSIDE or one.rule == cause.rule)
        and (_OUTSIDE.search(one.line) is not None or one.rule in OUTSIDE)
    ]  # fmt: skip
    ranks = {one.rank for one in same if one.rank is not None}
    if cause.rule in _ELSEWHERE or (outside and len(ranks) >= WITNESSES):
        cause.rank = cause.node = None
        if len(ranks) >= WITNESSES:
            cause.line, cause.file = f"{len(ranks)} ranks report it, so no rank is blamed: {cause.line}", ""
    return cause


def _odd_one(causes: Sequence[Cause]) -> int | None:
    """The only rank of which several others say that it runs another collective than they do.

    Examples
    --------
    >>> said = [(f"Rank {a} is running collective: X, but Rank 3 is running collective: Y", a) for a in (0, 1)]
    >>> def cause(line, rank): return Cause((0.0, 0, 0), rank, None, "", line, "r", "collective_mismatch", "sev2")
    >>> _odd_one([cause(*one) for one in said]), _odd_one([cause(*said[0])])
    (3, None)
    """
    witnesses: defaultdict[int, set[int]] = defaultdict(set)
    for one in causes:
        if match := _DIFFERS.search(one.line):
            witnesses[int(match[2])].add(int(match[1]))
    odd = [rank for rank, others in witnesses.items() if len(others) >= WITNESSES]
    return odd[0] if len(odd) == 1 else None


def _by_ending(attempt: Attempt, failed: Ends, now_s: float) -> Verdict | None:
    """A process that ended without a word of its own."""
    order, ending, rank = next((one for one in failed if one[1].first and one[2] is not None), failed[0])
    if attempt.followed and (ending.signal in {None, 6} or (rank is not None and rank in attempt.waited)):
        return None  # it only followed
    if ending.signal is None and len(failed) == 1 and rank is None and attempt.warned:
        return None
    who = f"rank {rank}" if rank is not None else "a process"
    if ending.signal is not None:
        name = _SIGNAL_NAMES.get(ending.signal, f"signal {ending.signal}")
        why = f" ({_SAYS[ending.signal]})" if ending.signal in _SAYS else ""
        how = f"{who} was killed by {name}{why}"
    else:
        how = f"{who} exited with code {ending.code}" if ending.code is not None else f"{who} failed"
    cause = Cause(
        order=order, rank=rank, node=ending.node, file="", line=f"{how}, says its launcher ({ending.id}), and nothing else",  # noqa: E501
        rule=_MEANS.get(ending.signal or 0, "process.exit"), kind="crash", severity="sev2",
    )  # fmt: skip
    return Verdict(cause, "", order[0])


def _by_consequences(attempt: Attempt, failed: Ends) -> Verdict | None:
    """A process ended, and only consequences of another end were logged: the job is dead, and no rank is blamed."""
    if not attempt.followed:
        return None
    order, line = min(attempt.followed)
    cause = Cause(
        order=order, rank=None, node=None, file="", line=f"{failed[0][1].id}: a process failed, after: {line[:160]}",
        rule="process.exit", kind="crash", severity="sev2",
    )  # fmt: skip
    return Verdict(cause, "only consequences are seen", order[0])


def _by_stall(attempt: Attempt) -> Verdict:
    """To the end of the log the coordinator waits for ranks, or has missed the heartbeats of ranks."""
    first, last = min(one.order for one in attempt.stalls), attempt.stalls[-1]
    ranks = sorted(last.missing)
    who = f"{'rank' if len(ranks) == 1 else 'ranks'} {_listed(ranks)}" if ranks else "some ranks"
    gone = "sent no heartbeats any more, say the other ranks"
    cause = Cause(
        order=first, rank=ranks[0] if len(ranks) == 1 else None, node=None, file="",
        line=f"{who} {'did not take part in what the other ranks wait for' if last.kind == 'hang' else gone}",
        rule="silent.ranks", kind=last.kind, severity="sev2",
    )  # fmt: skip
    return Verdict(cause, "", first[0])


def _by_counts(attempt: Attempt) -> Verdict | None:
    """The ranks that have enqueued less than the call that the others gave up, by their watchdogs' own counts."""
    behind = attempt.counts.behind()
    if behind is None:
        return None
    cause = Cause(
        order=(behind.since_s, 0, 0), rank=behind.ranks[0] if len(behind.ranks) == 1 else None, node=None, file="",
        line=behind.words, rule="silent.ranks", kind="hang", severity="sev2",
    )  # fmt: skip
    return Verdict(cause, "", behind.since_s)


def _by_waiting(attempt: Attempt, now_s: float, *, at_end: bool) -> Verdict | None:
    """A job of which only those speak that waited: the one rank that did not is suspected, of several none.

    One witness accuses nobody: two ranks at least have to have waited.
    """
    silent = sorted(attempt.heard - attempt.waited)
    if len(attempt.stuck) >= WITNESSES and not attempt.stuck - attempt.waited and silent:
        order, line = min(attempt.followed)
        who = f"{len(attempt.stuck)} ranks waited and gave up"
        alone = len(silent) == 1
        rest = (
            f"rank {silent[0]} did not wait"
            if alone
            else f"of {len(silent)} ranks nothing was heard: {_listed(silent)}"
        )
        cause = Cause(
            order=order, rank=silent[0] if alone else None, node=None, file="", line=f"{who}, {rest}: {line[:160]}",
            rule="silent.ranks", kind="hang", severity="sev2",
        )  # fmt: skip
        return Verdict(cause, "", order[0])
    if attempt.fallen and at_end and len(attempt.stuck) < WITNESSES:
        cause = min(attempt.fallen, key=lambda one: one.order)
        if cause.left <= FEW_LINES:
            cause.rank = None  # it tells of another's end
            return Verdict(cause, "only consequences are seen", cause.time_s)
    alone = len(attempt.stuck) < WITNESSES and attempt.waited <= attempt.stuck
    if at_end and attempt.gave_up and alone and not attempt.steps:
        order, line = min(attempt.followed)
        cause = Cause(
            order=order, rank=None, node=None, file="", line=f"a rank waited and gave up: {line[:160]}",
            rule="silent.ranks", kind="hang", severity="sev2",
        )  # fmt: skip
        return Verdict(cause, "these are the last words of the log", order[0])
    return None


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(str(rank) for rank in ranks[:8]) + (" and more" if len(ranks) > 8 else "")


def _then(attempt: Attempt, failed: Ends) -> str:
    waited = len(attempt.waited)
    if attempt.followed:
        who = f"{waited} ranks" if waited > 1 else f"rank {min(attempt.waited)}" if waited else "others"
        return f"then {who} said: {attempt.followed[0][1][:120]}"
    if failed:
        _, ending, rank = failed[0]
        return f"then {'rank ' + str(rank) if rank is not None else 'a process'} ended, says {ending.id}"
    return "these are the last words of the log"
