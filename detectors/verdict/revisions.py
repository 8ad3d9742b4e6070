"""What a newer view of a problem changes about its incident, and whether two name the same place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final

import msgspec

from trainwarden.detectors.verdict.contention import about_pace
from trainwarden.detectors.verdict.ensemble import (
    FAILURE_KINDS,
    HANG_KINDS,
    KIND_ORDER,
    Candidate,
    family_of,
    stands_anew,
)
from trainwarden.records import IncidentKind, IncidentRecord, Suspect

SURER: Final = 0.05  # of a score: what a score gains from window to window is no news
CERTAIN: Final = 1.0  # the score of a failure that names its own cause
MAX_FOLLOWED: Final = 8
# Kinds, beside failures, that the end of a process may have: then its rank is certain.
PROCESS_KINDS: Final = frozenset({"storage", "gpu_lost", "gpu_memory_error", "nvlink_error", "pcie_error", "nic_error"})
ECHO_S: Final = 1_860.0  # NCCL waits for up to 1,800 s, and 60 s more for its dumps
SAME_CAUSE_S: Final = 30.0  # a failure and a device fault on one node within this time are one problem
LONG_AFTER_S: Final = 120.0  # onsets that are told by samples of half a minute may be so far apart
DEVICE_KINDS: Final = frozenset(
    {
        "gpu_lost", "gpu_memory_error", "node_lost", "nvlink_error", "pcie_error", "nic_down", "nic_error", "storage",
        "host_contention", "memory_leak",
    }
)  # fmt: skip
_ENDS_OF_LEAKS: Final = {"out_of_memory": "rank_", "cuda_out_of_memory": "gpu_"}  # and whose memory has run out then
ENDED_AT: Final = "ended_at_s"  # evidence of a leak: when it ended its rank, as others fail of that soon or not at all
_MEMORY: Final = "_memory_"
_AMOUNTS: Final = ("_bytes", "_used_ratio")  # of it, not its clock or temperature
_KILLED: Final = "killed by SIGKILL"  # by the kernel, where a control group has no memory left
PAUSE: Final = "rank_pause_seconds"
"""The metric that votes on phases blame: by it an incident of a stalled phase is known from one of a log line."""


def better(record: IncidentRecord, candidate: Candidate, known: bool) -> IncidentRecord | None:
    """`record` with what `candidate` knows better; None if that is nothing. `known`: it rests on facts already."""
    if echoes(candidate, record):
        return _followed(record, candidate)
    if record.kind in _ENDS_OF_LEAKS and roots(candidate, record):
        return _led_to(record, candidate)
    more_specific = KIND_ORDER.index(candidate.kind) < KIND_ORDER.index(record.kind)
    same_family = family_of(record.kind) == candidate.family
    if PAUSE in candidate.metrics and same_family:
        return _of_phase(record, candidate)
    if PAUSE in record.metrics and candidate.kind == "hang":
        return _with(record, candidate)
    if known and same_family and follows(record, candidate):
        return _followed(record, candidate) if candidate.hard else None
    if candidate.hard and same_family and record.kind != candidate.kind:
        # Facts correct guesses, but what ends a hung job (a person, a watchdog) is not what hung it.
        # What the ranks' own recorders say of a hang is, and what had failed before the hang was declared.
        hung = record.kind == "hang" and bool(record.suspects)
        take = not hung or candidate.kind == "collective_mismatch" or _came_first(record, candidate)
    elif candidate.hard and same_family:
        sure, surest = _surest(candidate.suspects), _surest(record.suspects)
        other = sure == surest and _keys(candidate.suspects) != _keys(record.suspects)
        take = sure > surest or other or (not known and record.reason != candidate.reason)
        return _with(record, candidate) if take else None
    else:
        take = more_specific and not (record.kind in FAILURE_KINDS and same_family and not candidate.suspects)
    if take:
        return _with(record, candidate)
    new = set(_keys(candidate.suspects)) - set(_keys(record.suspects))
    surer = not known and _surest(candidate.suspects) >= _surest(record.suspects) + SURER
    if record.kind == candidate.kind and (new or surer):
        return _with(record, candidate)
    return None


def _of_phase(record: IncidentRecord, candidate: Candidate) -> IncidentRecord | None:
    """`record` by what a phase says: its whole length, once it is over. It explains no failure of another kind."""
    whole = " spent " in candidate.reason and " spent " not in record.reason
    if record.kind != candidate.kind or not whole or PAUSE not in record.metrics:
        return None
    stood = [part for part in record.reason.split("; ") if " stands in " in part]  # the rank has gone on since
    return msgspec.structs.replace(record, reason="; ".join([candidate.reason, *stood]).replace(" stands ", " stood "))


def follows(record: IncidentRecord, candidate: Candidate) -> bool:
    """True if `record` names a root that is certain, and `candidate` is at most what came of it.

    Others hang because a rank has failed, never the other way round; and what a process said of its own end is not
    corrected by what is seen elsewhere later. An end without words may yet be explained.
    """
    if record.kind in {"hang", candidate.kind} or _surest(record.suspects) < CERTAIN:
        return False
    if candidate.kind == "hang":
        return True
    if record.kind == "crash":
        return False
    after = candidate.onset_s is None or record.onset_s is None or candidate.onset_s > record.onset_s
    elsewhere = not overlap(candidate.suspects, record.suspects, ("rank", "node"))
    return candidate.kind in HANG_KINDS or (after and elsewhere)


def _came_first(record: IncidentRecord, candidate: Candidate) -> bool:
    """True if `candidate` is a certain failure from before `record` was opened, told late."""
    certain = _surest(candidate.suspects) >= CERTAIN and candidate.kind not in HANG_KINDS
    return certain and candidate.onset_s is not None and candidate.onset_s < record.opened_at_s


def _followed(record: IncidentRecord, candidate: Candidate) -> IncidentRecord | None:
    """`record` with `candidate` among what followed; None if it is there already, or much is."""
    told, evidence = list(record.evidence.get("followed", ())), record.evidence
    if _is_end_of(candidate, record) and (candidate.onset_s or 0.0) > evidence.get(ENDED_AT, 0.0) + ECHO_S:
        evidence = {**evidence, ENDED_AT: candidate.onset_s}
    if len(told) < MAX_FOLLOWED and all(one.partition(": ")[0] != candidate.kind for one in told):
        evidence = {**evidence, "followed": [*told, f"{candidate.kind}: {candidate.reason}"]}
    if evidence == record.evidence:
        return None
    graver = min(record.severity, candidate.severity) if record.kind == "memory_leak" else record.severity
    return msgspec.structs.replace(record, severity=graver, evidence=evidence)


def _led_to(record: IncidentRecord, leak: Candidate) -> IncidentRecord:
    """`record`, of memory that has run out, as what `leak` has led to."""
    ended_s = record.opened_at_s if record.onset_s is None else record.onset_s
    evidence = {**record.evidence, "followed": [f"{record.kind}: {record.reason}"], ENDED_AT: ended_s}
    return msgspec.structs.replace(
        _with(record, leak), onset_s=leak.onset_s, onset_step=leak.onset_step, evidence={**evidence, **leak.evidence}
    )


def is_ended_leak(record: IncidentRecord) -> bool:
    """True if `record` is of a leak that has ended its rank."""
    return record.kind == "memory_leak" and ENDED_AT in record.evidence


def _soon_after_end(candidate: Candidate, record: IncidentRecord) -> bool:
    """True if `candidate` began when others would fail of the end that `record` tells of."""
    if candidate.family != "failure" or candidate.onset_s is None or not is_ended_leak(record):
        return False
    return bool(-SAME_CAUSE_S <= candidate.onset_s - record.evidence[ENDED_AT] <= ECHO_S)


def _is_end_of(candidate: Candidate, record: IncidentRecord) -> bool:
    """True if `candidate` is the end of a rank by the leak that `record` tells of; what has no time is no end."""
    if candidate.onset_s is None or not overlap(candidate.suspects, record.suspects, ("rank",)):
        return False
    whose = "rank_" if candidate.kind == "crash" and _KILLED in candidate.reason else _ENDS_OF_LEAKS.get(candidate.kind)
    return record.kind == "memory_leak" and whose is not None and any(one.startswith(whose) for one in record.metrics)


def _with(record: IncidentRecord, candidate: Candidate) -> IncidentRecord:
    onset_s, onset_step = record.onset_s, record.onset_step
    named = newly_named(candidate, record) or _device_named(candidate, record)
    if onset_s is None or (named and candidate.onset_s is not None):
        onset_s, onset_step = candidate.onset_s, candidate.onset_step
    suspects = candidate.suspects or record.suspects
    return msgspec.structs.replace(
        record,
        kind=candidate.kind,
        severity=min(record.severity, candidate.severity),
        suspects=suspects,
        reason=candidate.reason,
        onset_s=onset_s,
        onset_step=candidate.onset_step if onset_step is None else onset_step,
        metrics=candidate.metrics or record.metrics,
        evidence={**record.evidence, **candidate.evidence},
    )


def moved(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """True if the evidence has changed so much that whoever plans by it should know."""
    if new.get("slow_iterations", 0) >= 2 * max(old.get("slow_iterations", 0), 5):
        return True
    if new.get("micro_batches") != old.get("micro_batches"):
        return True
    before, after = old.get("ratio"), new.get("ratio")
    return before is not None and after is not None and abs(after / before - 1.0) > 0.1


def _surest(suspects: tuple[Suspect, ...]) -> float:
    return max((suspect.score for suspect in suspects), default=0.0)


def _keys(suspects: tuple[Suspect, ...]) -> list[tuple[int | None, str | None, str | None]]:
    return [(suspect.rank, suspect.node, suspect.device) for suspect in suspects]


def is_of(suspects: tuple[Suspect, ...], record: IncidentRecord) -> bool:
    """True if `suspects`, one at least, are those that `record` names as a fault of devices or hosts."""
    nodes = {suspect.node for suspect in record.suspects} if record.kind == "node_lost" else set()
    keys = {*_keys(record.suspects)} if record.kind in DEVICE_KINDS else set()
    return bool(suspects) and all(
        one.node in nodes or key in keys for one, key in zip(suspects, _keys(suspects), strict=True)
    )


def explains(record: IncidentRecord, candidate: Candidate) -> bool:
    """True if what nobody explains of devices or hosts is a face of `record`, which names their fault.

    Of a leak that is what their memory shows, of a busy host their pace. While the record is open, whenever that is; of
    one that is closed, what began with it.
    """
    onset_s = record.onset_s if record.onset_s is not None else record.opened_at_s
    together = candidate.onset_s is not None and abs(candidate.onset_s - onset_s) <= SAME_CAUSE_S
    unexplained = candidate.kind == "metric_anomaly" and (record.state != "closed" or together)
    return unexplained and _shows(candidate.metrics, record.kind) and is_of(candidate.suspects, record)


def _shows(metrics: Sequence[str], kind: IncidentKind) -> bool:
    """True if a fault of `kind` may be why `metrics` are unusual: a leak or a busy host not of any."""
    if kind == "memory_leak":
        return bool(metrics) and all(_MEMORY in one and one.endswith(_AMOUNTS) for one in metrics)
    return kind != "host_contention" or (bool(metrics) and about_pace(metrics))


def covers(candidate: Candidate, record: IncidentRecord) -> bool:
    """True if `candidate` is the fault of all those that `record` could only say to be unusual."""
    unusual = {*_keys(record.suspects)} if record.kind == "metric_anomaly" else set()
    shown = candidate.kind in DEVICE_KINDS and _shows(record.metrics, candidate.kind)
    return shown and bool(unusual) and unusual <= {*_keys(candidate.suspects)}


def later(candidate: Candidate, record: IncidentRecord) -> bool:
    """True if `candidate` says what is wrong since well after `record`, which could only say that something is unusual.

    What was unusual of a device minutes before its fault is not when the fault began; and a rank that became slow
    after an incident of slowness was opened is another problem than that one.
    """
    if candidate.onset_s is None:
        return False
    if newly_named(candidate, record):
        return candidate.onset_s > record.opened_at_s
    if record.kind != "metric_anomaly" or candidate.kind == record.kind:
        return False
    return candidate.onset_s - (record.opened_at_s if record.onset_s is None else record.onset_s) > LONG_AFTER_S


def newly_named(candidate: Candidate, record: IncidentRecord) -> bool:
    """True if `candidate` names a slow rank of which `record`, an incident of slowness, says nothing."""
    slow = candidate.family == "slow" == family_of(record.kind) and candidate.kind == "slow_compute"
    return slow and any_rank(candidate.suspects) and not overlap(candidate.suspects, record.suspects, ("rank",))


def _device_named(candidate: Candidate, record: IncidentRecord) -> bool:
    """True if `candidate` tells which device has a fault: its driver knows better than programs when it was."""
    if candidate.onset_s is None or record.onset_s is None or abs(candidate.onset_s - record.onset_s) > SAME_CAUSE_S:
        return False
    told = candidate.kind == record.kind and record.kind in DEVICE_KINDS
    named, known = (any(one.device is not None for one in of.suspects) for of in (candidate, record))
    return told and named and not known


def any_rank(suspects: tuple[Suspect, ...]) -> bool:
    """True if a rank is named."""
    return any(suspect.rank is not None for suspect in suspects)


def any_place(suspects: tuple[Suspect, ...]) -> bool:
    """True if a rank, node or device is named."""
    return any(key != (None, None, None) for key in _keys(suspects))


def overlap(left: tuple[Suspect, ...], right: tuple[Suspect, ...], fields: tuple[str, ...]) -> bool:
    """True if some suspect of each side agrees in all of `fields` that both know, and in at least one."""
    for one in left:
        for other in right:
            pairs = [(getattr(one, name), getattr(other, name)) for name in fields]
            known = [(a, b) for a, b in pairs if a is not None and b is not None]
            if known and all(a == b for a, b in known):
                return True
    return False


def apart(candidate: Candidate, record: IncidentRecord) -> bool:
    """True if one is the end of a rank, and the other a hang after the others had gone on without it."""
    anew = stands_anew(candidate.kind, candidate.onset_s, record.evidence)
    return anew or stands_anew(record.kind, record.onset_s, candidate.evidence)


def echoes(candidate: Candidate, record: IncidentRecord) -> bool:
    """True if `candidate` is at most what came of `record`, an incident of another family that names the root.

    Ranks hang that wait for one whose process has failed, as by a full disk; a job is slow of whose ranks one leaks,
    and that rank runs out of memory.
    """
    if record.kind == "memory_leak" and candidate.family == "failure":
        ends = _is_end_of(candidate, record) or _soon_after_end(candidate, record)
        return record.wants_action and ends  # the leak may take days to end its rank
    began_s = record.onset_s if record.onset_s is not None else record.opened_at_s
    if candidate.onset_s is None or not -SAME_CAUSE_S <= candidate.onset_s - began_s <= ECHO_S:
        return False
    same_rank = overlap(candidate.suspects, record.suspects, ("rank",))
    if candidate.kind in HANG_KINDS:
        unnamed = not any_rank(candidate.suspects) and _surest(record.suspects) >= CERTAIN
        return record.kind in PROCESS_KINDS and any_rank(record.suspects) and (same_rank or unnamed)
    slow = candidate.kind in ("slow_job", "slow_compute") and not candidate.hard
    return slow and record.kind == "memory_leak" and (same_rank or not any_place(candidate.suspects))


def roots(candidate: Candidate, record: IncidentRecord) -> bool:
    """True if `candidate` is the root of `record`, which was opened first.

    That is a leak of what it made slow or ended, or of a rank that was only seen to differ from its peers.
    """
    if candidate.kind == "memory_leak" and (whose := _ENDS_OF_LEAKS.get(record.kind)) is not None:
        mine = any(name.startswith(whose) for name in candidate.metrics)
        return mine and overlap(candidate.suspects, record.suspects, ("rank",))
    slowed = record.kind in ("slow_job", "slow_compute")
    if candidate.kind != "memory_leak" or candidate.onset_s is None or not (slowed or covers(candidate, record)):
        return False
    began_s = record.onset_s if record.onset_s is not None else record.opened_at_s
    named = slowed and any_place(record.suspects) and not overlap(candidate.suspects, record.suspects, ("rank",))
    return -SAME_CAUSE_S <= began_s - candidate.onset_s <= ECHO_S and not named


def began_together(candidate: Candidate, record: IncidentRecord, now_s: float) -> bool:
    """True if both began within `SAME_CAUSE_S`, told by one clock.

    Nodes need not share one: onsets are compared where one node tells both, else the times at which the service saw
    them. Silence is counted by the service, so the onset of a lost node is on its clock already.
    """
    silence = "node_lost" in {candidate.kind, record.kind}
    if not silence and overlap(candidate.suspects, record.suspects, ("node",)):
        onset_s = record.onset_s if record.onset_s is not None else record.opened_at_s
        return abs((now_s if candidate.onset_s is None else candidate.onset_s) - onset_s) <= SAME_CAUSE_S
    stood_s, lost_s = candidate.onset_s, record.onset_s
    seen_s = stood_s if candidate.kind == "node_lost" and stood_s is not None else now_s
    if (candidate.kind, record.kind) == ("hang", "node_lost") and stood_s is not None and lost_s is not None:
        since_s = abs(stood_s - lost_s)  # a hang may be known only long after the silence
    else:
        since_s = inf
    return min(since_s, abs(seen_s - record.opened_at_s)) <= SAME_CAUSE_S


def same(candidate: Candidate, record: IncidentRecord, now_s: float) -> bool:
    """True if `candidate` is about the same problem as `record`, which is of its family."""
    if later(candidate, record):
        return False
    if candidate.family == "failure" or not candidate.suspects or not record.suspects:
        return True
    if candidate.family == "slow" and any_rank(candidate.suspects) and any_rank(record.suspects):
        return overlap(candidate.suspects, record.suspects, ("rank",))
    if not any_place(candidate.suspects) or not any_place(record.suspects):
        return True  # about the job as a whole
    if overlap(candidate.suspects, record.suspects, ("node", "device", "rank")):
        return True
    # Many nodes sick in the same way at the same time have one cause, e.g. their leaf switch.
    return began_together(candidate, record, now_s)
