"""How much longer each rank computes than its likes by its waits, over the newest sampled steps; more than noise?"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.calls.joined import JoinedStep
from trainwarden.detectors.job.common_mode import noise, quiet_median
from trainwarden.detectors.peers.roles import median_of_peers
from trainwarden.detectors.transfers.peer_groups import PeerGroups

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
ROWS: Final = 128  # sampled steps remembered
SPANS: Final = (3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # newest steps that a mean is taken over
KNOWN: Final = 0.75  # of the steps of a span must be known of a rank
OFTEN: Final = 0.6  # of them it must have been late
LEAST_STEPS: Final = 3  # in which it was so by itself: one long step is no straggler
CLIP: Final = 1.0  # one stalled step counts as so much longer
COMPUTES: Final = 1 / 3  # of a step is computing at least
WHOLE: Final = 0.9  # a rank with fewer of its calls joined than this share of its likes' cannot be compared


class Lateness:
    """How many times as long every rank computes as its likes; rows are sampled steps.

    Of two ranks that do the same work the later one is shorter in its kernels, as the other waits for it there. A rank
    behind a slow link is not late by this: what it waits less, its own transfers take longer. So a rank counts as late
    by the smaller of what it is in its kernels less, and what it waits less. Noise makes steps longer by more than it
    makes them shorter, so logarithms are added up.

    Attributes
    ----------
    count : int
        Steps taken in.
    ratios : float [ROWS, ranks], steps : int [ROWS]
        Logarithms of these ratios; newest last; NaN = unknown.
    """

    def __init__(self) -> None:
        self.count = 0
        self.ratios: npt.NDArray[np.float32] = np.full((ROWS, 0), np.nan, dtype=np.float32)
        self.steps = np.full(ROWS, -1, dtype=np.int64)

    @property
    def remembered_steps(self) -> int:
        """Steps that are remembered."""
        return min(self.count, ROWS)

    def resize(self, ranks: int) -> None:
        """Add fresh columns until there are `ranks`."""
        more = ranks - self.ratios.shape[1]
        if more > 0:
            self.ratios = np.hstack([self.ratios, np.full((ROWS, more), np.nan, dtype=np.float32)])

    def forget(self, column: int) -> None:
        """The rank of `column` now runs elsewhere."""
        self.ratios[:, column] = np.nan

    def push(self, step: JoinedStep, likes: PeerGroups, step_s: float) -> None:
        """Add one sampled step, which takes `step_s`, NaN if unknown.

        Ranks compute while they are not in their kernels; those that do so beside their kernels a third of the time in
        which the pipeline has work for them.
        """
        codes = likes.codes
        short = WHOLE * median_of_peers(step.measured.astype(np.float64), codes)[0]
        known = (step.measured > 0) & ~(step.measured < short)
        kernel_s, wait_s = (np.where(known, part, np.nan) for part in (step.kernel_s, step.wait_s))
        others_s, usual_s = median_of_peers(kernel_s, codes)
        late_s = np.fmin(others_s - kernel_s, median_of_peers(wait_s, codes)[0] - wait_s)
        late_s[np.isnan(kernel_s)] = np.nan
        usual_s = usual_s[codes]
        least_s = COMPUTES * likes.filled * step_s
        computes_s = np.fmax(step_s - usual_s, least_s) if np.isfinite(step_s) else usual_s
        for array in (self.ratios, self.steps):
            array[:-1] = array[1:].copy()
        self.ratios[-1] = np.log1p(np.clip(late_s / np.maximum(computes_s, 1e-9), -CLIP / (1.0 + CLIP), CLIP))
        self.steps[-1] = step.step
        self.count += 1

    def found(self, least: float, sure: float) -> npt.NDArray[np.int64]:
        """Over how many of the newest steps each rank has been late for certain, 0 if it has not [ranks].

        It was so in three steps, and its mean, its longest step left out, is `least` at least and `sure` standard
        errors above its likes'. The error is that of the ranks' means among each other, which holds lasting
        differences too, or what single steps' noise makes of it, if that is more.
        """
        out, least = np.zeros(self.ratios.shape[1], dtype=np.int64), float(np.log1p(least))
        recent = (
            self.ratios[-self.remembered_steps :][::-1].astype(np.float64)
            if self.remembered_steps
            else np.zeros((0, out.size))
        )
        known = np.isfinite(recent)
        total = np.cumsum(np.where(known, recent, 0.0), axis=0)
        number, often = np.cumsum(known, axis=0), np.cumsum(known & (recent > 0.0), axis=0)
        times = np.cumsum(known & (recent >= least), axis=0)
        longest = np.maximum.accumulate(np.where(known, recent, -np.inf), axis=0)
        each = _each(recent)
        for span in SPANS:
            if span > self.remembered_steps or (out > 0).all():
                break
            enough = number[span - 1] >= max(3.0, KNOWN * span)
            mean = np.where(enough, total[span - 1] / np.maximum(number[span - 1], 1), np.nan)
            among = float(noise(mean[np.isfinite(mean)])) if enough.any() else 0.0
            error = max(among, each / float(np.sqrt(span)))
            rest = (total[span - 1] - np.where(enough, longest[span - 1], 0.0)) / np.maximum(number[span - 1] - 1, 1)
            late = enough & (rest >= max(least, sure * error)) & (times[span - 1] >= LEAST_STEPS)
            late &= often[span - 1] >= OFTEN * number[span - 1]
            out = np.where((out == 0) & late, span, out)
        return out

    def mean(self, column: int, span: int) -> float:
        """By what share of its likes' computing a rank was later over the newest `span` steps; NaN if not known."""
        part = self.ratios[-min(span, max(self.remembered_steps, 1)) :, column].astype(np.float64)
        known = part[np.isfinite(part)]
        return float(np.expm1(known.mean())) if known.size else float("nan")

    def onset(self, column: int, share: float) -> int:
        """Since how many of the newest steps a rank that is late by `share` has likely been so (Page, 1954)."""
        height = float(np.log1p(share))
        gain = np.nan_to_num(self.ratios[-self.remembered_steps :, column].astype(np.float64)[::-1] - height / 2.0)
        return int(np.argmax(np.cumsum(np.clip(gain, -1.5 * height, 1.5 * height)))) + 1


def _each(recent: Floats) -> float:
    """Noise of single steps: of a usual rank from step to step, and of the ranks in a usual step."""
    if recent.shape[0] < 3:
        return 0.0
    with np.errstate(invalid="ignore"):
        over_time, over_ranks = noise(recent), noise(recent[:32].T)
    both = np.append(quiet_median(over_time), quiet_median(over_ranks))
    return float(np.nanmax(both, initial=0.0))
