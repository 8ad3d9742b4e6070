"""Vote: the same rank does not wait in its collective calls while those that do the same work wait for it.

In synchronous training everybody waits for the slowest, and the slowest for nobody (Wu et al., Falcon, 2024, section
4.3). On devices the host does not see it; the durations of NCCL's kernels do, joined over the ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import msgspec
import numpy as np

from trainwarden.detectors.calls.joined import JoinedStep
from trainwarden.detectors.job.common_mode import quiet_median
from trainwarden.detectors.job.object_codec import WholeMemory
from trainwarden.detectors.job.window import Window, job_duration_s
from trainwarden.detectors.protocol import Role, abstain
from trainwarden.detectors.transfers.contract_stream import late_rank_records
from trainwarden.detectors.transfers.lateness import Lateness
from trainwarden.detectors.transfers.peer_groups import likes
from trainwarden.records import Suspect, Vote
from trainwarden.settings import Config

MAX_SUSPECTS: Final = 16
MOST: Final = 0.25  # of the ranks of one kind of work: if more are late alike, they have more to do
RELIEF: Final = 0.5  # of the share that accuses; a rank that is late by less is back
MAX_SPELLS: Final = 10_000


@dataclass(slots=True)
class StragglerEpisode:
    """One rank being waited for, by the numbers of sampled steps; `to_step` None while it lasts."""

    rank: int
    node: str
    from_step: int
    reported_step: int
    onset_s: float
    share: float
    span: int
    to_step: int | None = None
    blind: bool = False

    @property
    def reason(self) -> str:
        """One sentence part that follows the rank's name."""
        what = f"is waited for in collectives as if it computed {1.0 + self.share:.2f} times as long as its likes"
        return what + (", it or one that shares its unmeasured group" if self.blind else ", and waits least itself")


class CollectiveWaits(WholeMemory):
    """Stragglers by the waits in collective calls, in kernels on the device, of sampled steps.

    Parameters
    ----------
    config : CollectiveWaits.Config

    Notes
    -----
    `spells` holds every spell found, newest last. All of a rank's groups count together, so that one whose group is
    late because of another rank has waited for that rank there, and is not accused.
    """

    class Config(Config, frozen=True, kw_only=True):
        """What makes a straggler.

        Attributes
        ----------
        least_share
            By how much of its likes' computing a rank must be later than they are, in the mean. Somewhat less than the
            tenth that is to be found, as a mean is uncertain too.
        sure
            Standard errors that its mean must be above theirs.
        """

        least_share: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 0.06
        sure: Annotated[float, msgspec.Meta(ge=3.0, le=100.0)] = 6.0

    role = Role(reads="calls", opens=("verified",))
    more = False
    contract_stream = staticmethod(late_rank_records)
    HELD = (StragglerEpisode,)

    def __init__(self, config: Config) -> None:
        self._config = config
        self._memory = Lateness()
        self._nodes: tuple[str, ...] = ()
        self._open: dict[int, StragglerEpisode] = {}
        self.spells: list[StragglerEpisode] = []

    def update(self, window: Window) -> None:
        """Observe the sampled steps that were joined since the last window."""
        self._follow_nodes(window)
        for step in window.calls:
            if not _planned(window, step.step) and (step.measured > 0).sum() > 1:
                self._observe(step, window)

    def score(self, window: Window) -> Vote:
        """The late ranks, latest first."""
        if not self._memory.count:
            return abstain("no rank tells how long its collective calls take")
        if self._memory.count < 3:
            return abstain("warm-up")
        if not self._open:
            ranks, steps = np.isfinite(self._memory.ratios[-1]).sum(), self._memory.remembered_steps
            return Vote(opinion="normal", reason=f"{ranks} ranks compared over {steps} sampled steps")
        late = sorted(self._open.values(), key=lambda spell: -spell.share)[:MAX_SUSPECTS]
        first = late[0]
        suspects = tuple(
            Suspect(score=min(1.0, spell.share / first.share), reason=spell.reason, rank=spell.rank, node=spell.node)
            for spell in late
        )
        excess = first.share / self._config.least_share
        return Vote(
            opinion="anomalous", score=excess / (1.0 + excess), kind="slow_compute", severity="sev3",
            reason=f"rank {first.rank} {first.reason}", suspects=suspects, verified=True,
            onset_s=min(spell.onset_s for spell in late), onset_step=min(spell.from_step for spell in late),
            at_step=int(self._memory.steps[-1]), metrics=("collective_wait_seconds",),
        )  # fmt: skip

    def _restored(self) -> None:
        self.spells = [*(spell for spell in self.spells if spell.to_step is not None), *self._open.values()]

    # -- internals -------------------------------------------------------------------------------------------

    def _follow_nodes(self, window: Window) -> None:
        self._memory.resize(len(window.ranks))
        if window.nodes != self._nodes:
            for column, (old, new) in enumerate(zip(self._nodes, window.nodes, strict=False)):
                if old != new:
                    self._memory.forget(column)
                    self._close(column)
            self._nodes = window.nodes

    def _observe(self, step: JoinedStep, window: Window) -> None:
        alike = likes(step, window)
        codes = alike.codes
        self._memory.push(step, alike, _step_s(window, step))
        found = np.where(window.live, self._memory.found(self._config.least_share, self._config.sure), 0)
        late = found > 0
        crowd = np.bincount(codes, weights=late) > np.maximum(1.0, MOST * np.bincount(codes))
        for column in np.flatnonzero(late & ~crowd[codes]).tolist():
            if column not in self._open:
                self._begin(column, int(found[column]), step, window)
        for column in list(self._open):
            self._go_on(column, bool(window.live[column]))
        self._mark_blind(step, window)

    def _begin(self, column: int, span: int, step: JoinedStep, window: Window) -> None:
        memory = self._memory
        share = memory.mean(column, span)
        rows = memory.onset(column, share)
        step_s = np.nan_to_num(_step_s(window, step))
        began_s = step.time_s - (step.step - int(memory.steps[-rows]) + 1) * float(step_s)
        spell = StragglerEpisode(
            rank=int(window.ranks[column]), node=window.nodes[column], from_step=int(memory.steps[-rows]),
            reported_step=step.step, onset_s=began_s, share=share, span=span,
        )  # fmt: skip
        self._open[column] = spell
        self.spells = [*self.spells[-MAX_SPELLS:], spell]

    def _go_on(self, column: int, live: bool) -> None:
        """Keep the largest share of a late rank, or let go of it."""
        spell, memory = self._open[column], self._memory
        now = memory.mean(column, spell.span)
        if not live or now < RELIEF * self._config.least_share:
            self._close(column)
        elif np.isfinite(now):
            spell.share = max(spell.share, now)

    def _close(self, column: int) -> None:
        spell = self._open.pop(column, None)
        if spell is not None:
            spell.to_step = int(self._memory.steps[-1])
            self._memory.forget(column)  # what it was before it came back accuses it no more

    def _mark_blind(self, step: JoinedStep, window: Window) -> None:
        """Ranks that are late together and share a group that is not measured: any of them may be the one."""
        for spell in self._open.values():
            spell.blind = False
        if window.counts is None or len(self._open) < 2:
            return
        for comm in step.blind.tolist():
            members = [column for column in window.counts.members(comm).tolist() if column in self._open]
            for column in members if len(members) > 1 else ():
                self._open[column].blind = True


def _step_s(window: Window, step: JoinedStep) -> float:
    """How long the step took: as its iterations say, or by its calls' clocks; NaN if neither tells."""
    if len(window.steps):
        rows = np.flatnonzero(window.steps == step.step)
        part = slice(int(rows[-1]), int(rows[-1]) + 1) if rows.size else slice(-16, None)
        took_s = float(quiet_median(job_duration_s(window, part)))
        if np.isfinite(took_s):
            return took_s
    return step.period_s


def _planned(window: Window, step: int) -> bool:
    """Whether slowness is planned in a step."""
    rows = np.flatnonzero(window.steps == step)
    return bool(window.quiet_rows[rows[-1]]) if rows.size else window.starting
