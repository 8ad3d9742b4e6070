"""Vote: the memory of a rank or a device grows and grows while the job trains, and will be used up.

Memory comes and goes with evaluations, checkpoints and garbage; what leaks shows in the floors: the least of each of
many equal spans of time. A leak raises every floor by about the same, a warm-up raises them less and less, a cache that
is filled at once raises one. Of ranks anonymous memory counts: pages of files that a data set maps can be dropped.

Memory of four ranks that train, as their agents would send it: a sawtooth, or with one rank that leaks.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.devices.floors import BINS, SCALES_S, Floors
from trainwarden.detectors.job.common_mode import quiet_median
from trainwarden.detectors.job.object_codec import WholeMemory
from trainwarden.detectors.job.samples import Entity, FamilySamples, name_of, size_in_words
from trainwarden.detectors.job.window import Window, job_duration_s
from trainwarden.detectors.protocol import Role, abstain
from trainwarden.records import IterationRecord, MetricsRecord, Record, Vote
from trainwarden.settings import Config

Sent = tuple[float, Record]
START_S: Final = 1_000_000.0
_SECONDS, _RANKS, _LEAKS, _FROM_S = 160, 4, 1, 40


def leak_records(sick: bool) -> list[Sent]:
    """A step and a sample each second; if `sick` rank 1 keeps 20 MB of each step from the 41st on."""
    rng, out = np.random.default_rng(0), list[Sent]()
    for second in range(_SECONDS):
        at_s = START_S + second + 1.0
        out += [
            (
                at_s,
                IterationRecord(
                    job="job", node="node0", rank=rank, incarnation=str(rank), steps=(second,), end_s=(at_s,),
                    duration_s=(1.0,), compute_s=(0.9,), wait_s=(0.1,),
                ),
            )
            for rank in range(_RANKS)
        ]  # fmt: skip
        memory = 1.5e9 + 3e8 * (second % 3) / 3.0 + rng.normal(0.0, 1e6, _RANKS)
        memory[_LEAKS] += 20e6 * max(0, second - _FROM_S) if sick else 0.0
        names = ("rank_anonymous_memory_bytes",)
        out.append(
            (
                at_s + 0.1,
                MetricsRecord(
                    job="job", node="node0", time_s=at_s, names=names, ranks=tuple(range(_RANKS)),
                    devices=tuple(f"rank-{rank}" for rank in range(_RANKS)),
                    values=(tuple(float(one) for one in memory),),
                ),
            )
        )  # fmt: skip
        left = MetricsRecord(
            job="job", node="node0", time_s=at_s, names=("host_memory_available_bytes",), ranks=(None,),
            devices=("host",), values=((64e9,),),
        )  # fmt: skip
        out.append((at_s + 0.1, left))
    return out


Floats = npt.NDArray[np.float64]
RANK: Final = "rank_anonymous_memory_bytes"
DEVICE: Final = "gpu_memory_used_bytes"
HOST_LEFT: Final = "host_memory_available_bytes"
GROUP_LEFT: Final = "rank_cgroup_memory_available_bytes"
DEVICE_LEFT: Final = "gpu_memory_free_bytes"
MAX_SUSPECTS: Final = 16
USED: Final = (RANK, DEVICE, HOST_LEFT)
WARM_STEPS: Final = 20  # allocators, workers and caches grow until then
SLOW: Final = len(SCALES_S) - 1  # nodes, and jobs whose steps are not known: loading a model lasts minutes as well
_GROUP: Final = "in its control group"
SOON_S: Final = 72 * 3600.0  # what takes longer to fill the memory is for another day


class Leak(NamedTuple):
    """An entity whose floors rise: bytes a second, how much in how long, and what is left `where`."""

    entity: Entity
    metric: str
    rate: float
    grown: float
    span_s: float
    since_s: float
    left: float | None
    where: str

    def shares(self, other: Leak) -> bool:
        """True if both use up the same memory; ranks of one control group are sent the same number."""
        same = (self.metric, self.where, self.entity.node) == (other.metric, other.where, other.entity.node)
        if self.metric == DEVICE:
            return same and self.entity.device == other.entity.device
        return same and (self.where != _GROUP or self.left == other.left)


class MemoryLeak(WholeMemory):
    """Ranks and devices whose memory grows at a steady rate.

    Parameters
    ----------
    config : MemoryLeak.Config
    """

    class Config(Config, frozen=True, kw_only=True):
        """Nothing to set."""

    role = Role(
        reads="samples",
        opens=("verified",),
        weight=0.0,
        metrics=(RANK, DEVICE, HOST_LEFT, GROUP_LEFT, DEVICE_LEFT),
        past=False,
    )
    contract_stream = staticmethod(leak_records)
    more = False
    HELD = (Entity, Floors)
    NOT_KEPT = ("_found",)

    def __init__(self, config: Config) -> None:
        self._floors: dict[str, Floors] = {}
        self._entities: dict[str, dict[int, Entity]] = {}
        self._left: dict[str, float] = {}  # of nodes, and by node and device of GPUs and of ranks' control groups
        self._first: Floats = np.zeros(0)  # what was left on nodes when they were first heard of, by row
        self._restarts = 0
        self._trains = False
        self._found: list[Leak] = []

    def update(self, window: Window) -> None:
        """Observe new samples of ranks and devices while the job trains."""
        if window.restarts != self._restarts:
            self._restarts, self._floors, self._found = window.restarts, {}, []
        warm = len(window.steps) >= WARM_STEPS and not window.phase
        if warm and not self._trains:
            self._trains, self._floors = True, {}
        for samples in window.samples:
            self._note_left(samples)
            for metric in USED:
                if (warm or not len(window.steps)) and metric in samples.names:
                    self._observe(samples, metric)
        if window.samples and self._floors:
            self._found = self._look()

    def score(self, window: Window) -> Vote:
        """Whose memory leaks, the fastest first; normal if nobody's does."""
        if not self._floors:
            return abstain("no memory has been measured since the first steps")
        return self._vote(window) if self._found else Vote(opinion="normal")

    def _restored(self) -> None:
        self._found = self._look(held=True)

    # -- internals -------------------------------------------------------------------------------------------

    def _observe(self, samples: FamilySamples, metric: str) -> None:
        floors = self._floors.setdefault(metric, Floors())
        self._entities.setdefault(metric, {}).update(zip(samples.rows.tolist(), samples.entities, strict=True))
        values = samples.values[:, samples.names.index(metric), -samples.fresh :]
        if metric == HOST_LEFT:
            values = self._used_on_nodes(samples.rows, values)
        for sample in range(samples.fresh):
            floors.observe(samples.rows, samples.times_s[:, sample], values[:, sample])

    def _used_on_nodes(self, rows: npt.NDArray[np.int64], left: Floats) -> Floats:
        """What grows as what is `left` ``[rows, samples]`` falls; it begins with what was left at first."""
        if (more := int(rows.max(initial=-1)) + 1 - len(self._first)) > 0:
            self._first = np.pad(self._first, (0, more), constant_values=np.nan)
        known = np.isfinite(left)
        there = known.any(axis=1)
        first = left[np.arange(len(left)), known.argmax(axis=1)]
        fresh = there & np.isnan(self._first[rows])
        self._first[rows[fresh]] = first[fresh]
        return np.asarray(2.0 * self._first[rows][:, None] - left)

    def _note_left(self, samples: FamilySamples) -> None:
        """What is left on nodes, on devices and in ranks' control groups, by the newest sample."""
        for metric in (HOST_LEFT, GROUP_LEFT, DEVICE_LEFT):
            if metric in samples.names:
                newest = samples.values[:, samples.names.index(metric), -1]
                there = np.flatnonzero(np.isfinite(newest)).tolist()
                whose = (_place(samples.entities[row], metric != HOST_LEFT) for row in there)
                self._left |= dict(zip(whose, newest[there].tolist(), strict=True))

    def _look(self, held: bool = False) -> list[Leak]:
        found: list[Leak] = []
        for metric, floors in self._floors.items():
            if not held:
                floors.judge()
            first = 0 if self._trains and metric != HOST_LEFT else SLOW
            for row in np.flatnonzero((floors.rate[:, first:] > 0.0).any(axis=1)).tolist():
                scale = first + int(np.argmax(floors.rate[row, first:] > 0.0))
                entity, span_s = self._entities[metric][row], SCALES_S[scale] * (BINS - 2)
                rate, grown = float(floors.rate[row, scale]), float(floors.grown[row, scale])
                since_s = float(floors.since_s[row, scale])
                found.append(Leak(entity, metric, rate, grown, span_s, since_s, *self._least_left(entity, metric)))
        soon = [one for one in found if one.left is None or one.left / one.rate < SOON_S]
        blamed = {one.entity.node for one in soon if one.metric == RANK}
        soon = [one for one in soon if one.metric != HOST_LEFT or one.entity.node not in blamed]
        return sorted(soon, key=lambda one: -one.rate)

    def _vote(self, window: Window) -> Vote:
        step_s = float(quiet_median(job_duration_s(window, slice(-100, None))))
        suspects = tuple(
            one.entity.suspect(1.0 if place == 0 else 0.9, _said(one, self._together(one), step_s))
            for place, one in enumerate(self._found[:MAX_SUSPECTS])
        )  # fmt: skip
        first, many = self._found[0], len(self._found)
        who = f"rank {first.entity.rank}" if first.metric == RANK else name_of(*first.entity)
        who = f"node {first.entity.node}" if first.metric == HOST_LEFT else who
        more = f"; so does that of {many - 1} more" if many > 1 else ""
        return Vote(
            opinion="anomalous", score=0.8, reason=f"memory of {who} {suspects[0].reason}{more}", kind="memory_leak",
            severity="sev3", suspects=suspects, onset_s=min(one.since_s for one in self._found), verified=True,
            metrics=tuple(dict.fromkeys(one.metric for one in self._found)),
            at_step=int(window.steps[-1]) if len(window.steps) else None,
        )  # fmt: skip

    def _least_left(self, entity: Entity, metric: str) -> tuple[float | None, str]:
        """What is left of an entity's memory, and where."""
        own = self._left.get(_place(entity, with_device=True))
        if metric == DEVICE:
            return own, "of the device"
        if metric == HOST_LEFT:
            own = None
        node = self._left.get(_place(entity, with_device=False))
        if own is not None and (node is None or own < node):
            return own, _GROUP
        return node, f"on {entity.node or 'its node'}"

    def _together(self, leak: Leak) -> float:
        """Bytes a second by which all that use up the same memory grow."""
        return sum(one.rate for one in self._found if leak.shares(one))


def _place(entity: Entity, with_device: bool) -> str:
    """Whose memory it is: a node's, or a device's of a node."""
    return f"{entity.node}/{entity.device}" if with_device else str(entity.node)


def _said(leak: Leak, together: float, step_s: float) -> str:
    """How fast it grows, and how long there is memory left."""
    a_step = f"{size_in_words(leak.rate * step_s)} a step, " if np.isfinite(step_s) else ""
    an_hour, grown = size_in_words(leak.rate * 3600.0), size_in_words(leak.grown)
    words = f"grows by {a_step}{an_hour} an hour, {grown} in {_span(leak.span_s)}"
    if leak.left is None:
        return words
    left = size_in_words(leak.left)
    return f"{words}; the {left} that are left {leak.where} are used up in {_span(leak.left / together)}"


def _span(seconds: float) -> str:
    """A length of time in words.

    Examples
    --------
    >>> _span(50.0), _span(600.0), _span(10_000.0)
    ('50 s', '10 min', '2.8 h')
    """
    if seconds < 120.0:
        return f"{seconds:.0f} s"
    return f"{seconds / 60.0:.0f} min" if seconds < 7200.0 else f"{seconds / 3600.0:.1f} h"
