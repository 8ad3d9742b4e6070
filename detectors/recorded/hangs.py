"""Hangs of a recording without heartbeats: no rank makes a step, and GPUs run kernels that do no work.

A collective that waits keeps its GPU at full utilisation and near idle power. A job that has ended is idle in both, one
that evaluates is neither; where either is not measured that cannot be told apart, and nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

import msgspec
import numpy as np

from trainwarden.detectors.collectives.findings import CollectiveFinding, listed, to_event
from trainwarden.detectors.recorded.witnesses import TIMES, Steps, ended
from trainwarden.recorded.job import Floats, RecordedJob
from trainwarden.records import EventRecord

BUSY: Final = "gpu_utilization_ratio"
POWER: Final = "gpu_power_watts"
LEAST_S: Final = 60.0  # where all GPUs spin: whoever saves or evaluates has a GPU that does not
SAVING_S: Final = 300.0  # one that saves while the others wait for it in a barrier looks like a culprit
BEFORE_S: Final = 600.0  # of work, which a standstill is compared with
SAMPLES: Final = 5
ENOUGH: Final = 6.0  # intervals in which a standstill must be seen
AT_WORK: Final = 0.5  # of utilisation: a GPU with less does not belong to the job, or does not spin
SPINS: Final = 0.9  # utilisation of a waiting kernel in nine of ten samples,
NEVER_BELOW: Final = 0.7  # and in all
GAP: Final = 0.3  # utilisation of a GPU whose job has ended, if only until the next one
NO_WORK: Final = 0.5  # of the usual power
SCORE: Final = 0.5
_ALL: Final = "GPUs run kernels at the power of no work, as in a collective that does not end"

State = Literal["spins", "idle", "other"]


@dataclass(frozen=True, slots=True)
class _Gpu:
    rank: int | None
    node: str
    times_s: Floats
    busy: Floats
    watts: Floats
    every_s: float

    def at_work(self, until_s: float) -> bool:
        """Whether it worked for the job in the time before."""
        rows = (self.times_s > until_s - BEFORE_S) & (self.times_s <= until_s)
        return int(rows.sum()) >= SAMPLES and float(np.median(self.busy[rows])) >= AT_WORK

    def state(self, still_s: float, settled_s: float, until_s: float) -> State:
        """What it does from `settled_s` until `until_s`, beside what it did before `still_s`."""
        before = (self.times_s > still_s - BEFORE_S) & (self.times_s <= still_s)
        now = (self.times_s > settled_s) & (self.times_s <= until_s)
        heard = self.times_s[now]
        if heard.size < SAMPLES or until_s - heard[-1] > 3.0 * self.every_s:
            return "other"  # it is told of no more
        busy, watts = self.busy[now], self.watts[now]
        if float(np.quantile(watts, 0.9)) > NO_WORK * float(np.median(self.watts[before])):
            return "other"  # it works
        if float(np.quantile(busy, 0.1)) >= SPINS and float(busy.min()) >= NEVER_BELOW:
            settling = (self.times_s > still_s) & (self.times_s <= settled_s)
            return "spins" if float(self.busy[settling].min(initial=1.0)) >= GAP else "other"
        return "idle" if float(np.median(busy)) < AT_WORK else "other"


def hang_events(job: RecordedJob, known: Iterable[EventRecord] = ()) -> list[EventRecord]:
    """Events of `job` where its steps stopped while its GPUs spun, told when that has lasted too long for a pause.

    Parameters
    ----------
    known : iterable of EventRecord
        What else the recording tells; ends and failures among them are no hangs.
    """
    steps, gpus = Steps.of(job), _gpus(job)
    if steps is None or len(gpus) < 2:
        return []
    events, found, hung = list(known), list[EventRecord](), list[int]()
    lasted_s = np.diff(np.append(steps.ends_s, max(float(gpu.times_s[-1]) for gpu in gpus)))
    for place in np.flatnonzero(lasted_s >= LEAST_S).tolist():
        still_s, pause_s = float(steps.ends_s[place]), TIMES * float(steps.longest_s[place])
        if not lasted_s[place] >= pause_s:  # nor where none is known
            continue
        event = _hang(job, gpus, still_s, steps.usual_s, pause_s)
        if event is None or event.time_s > still_s + lasted_s[place] or ended(job, events, still_s, event.time_s):
            continue
        found.append(event)
        hung.append(place)
        steps = steps.without(hung)
    return found


def _hang(job: RecordedJob, gpus: list[_Gpu], still_s: float, usual_s: float, pause_s: float) -> EventRecord | None:
    """The event of a standstill since `still_s`, of a job whose pauses may last for `pause_s`."""
    mine = [gpu for gpu in gpus if gpu.at_work(still_s)]
    if len(mine) < 2:
        return None
    every_s = max(gpu.every_s for gpu in mine)
    settled_s = still_s + 2.0 * (usual_s + every_s)
    for least_s in (LEAST_S, SAVING_S):
        until_s = max(still_s + max(least_s, pause_s), settled_s + ENOUGH * every_s)
        idle = _culprits(mine, still_s, settled_s, until_s)
        if idle is not None and (not idle or least_s == SAVING_S):
            return _event(job, idle, still_s, until_s)
    return None


def _culprits(gpus: list[_Gpu], still_s: float, settled_s: float, until_s: float) -> list[_Gpu] | None:
    """GPUs that idle while most spin; None if this is no hang."""
    states = [gpu.state(still_s, settled_s, until_s) for gpu in gpus]
    if "other" in states or states.count("spins") < max(2, len(gpus) // 2 + 1):
        return None
    return [gpu for gpu, state in zip(gpus, states, strict=True) if state == "idle"]


def _event(job: RecordedJob, idle: list[_Gpu], still_s: float, until_s: float) -> EventRecord:
    """A hang without a suspect, or with the only one that does not wait in a kernel."""
    alone = idle[0] if len(idle) == 1 else None
    what = "its GPU idles while those of all others spin without work"
    ranks = (alone.rank,) if alone is not None and alone.rank is not None else ()
    places = (alone.node,) if alone is not None and not ranks and alone.node else ()
    who = f"{listed(ranks)}: {what}" if ranks else f"{places[0]}: one of its GPUs idles" if places else _ALL
    finding = CollectiveFinding(
        kind="hang", ranks=ranks, scores=(SCORE,) * len(ranks), group="", op="", seq=None, places=places,
        reason=f"{who}; no rank has ended a step for {until_s - still_s:.0f} s", evidence=(what,) * len(ranks),
    )  # fmt: skip
    nodes = {alone.rank: alone.node} if alone is not None and alone.rank is not None else {}
    event = to_event(finding, job=job.name, time_s=until_s, nodes=nodes, source="gpu_metrics")
    own = {**event.fields, "since_s": still_s}
    return msgspec.structs.replace(event, id=f"{event.id}/t{still_s * 1000:.0f}", fields=own)


def _gpus(job: RecordedJob) -> list[_Gpu]:
    """Of which both are measured, in the same rows."""
    table = job.metrics
    if table is None or BUSY not in table.names or POWER not in table.names:
        return []
    busy, watts = (table.values[:, table.names.index(name)] for name in (BUSY, POWER))
    there = np.isfinite(busy) & np.isfinite(watts)
    found = []
    for entity, every_row in table.rows_of(np.unique(table.entity[there])):
        rows = every_row[there[every_row]]
        if rows.size > 2 * SAMPLES:
            times_s = table.times_s[rows]
            every_s = float(np.median(np.diff(times_s)))
            node = table.nodes[entity] or ""
            found.append(_Gpu(table.ranks[entity], node, times_s, busy[rows], watts[rows], every_s))
    return found
