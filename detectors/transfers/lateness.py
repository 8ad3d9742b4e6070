"""How much longer each rank computes than its likes by its waits, over the newest sampled steps; more than noise?"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from detectors.calls.joined import JoinedStep
from detectors.job.common_mode import noise, quiet_median
from detectors.peers.roles import Codes, median_of_peers

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
ROWS: Final = 128  # sampled steps remembered
SPANS: Final = (3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # newest steps that a mean is taken over
KNOWN: Final = 0.75  # of the steps of a span must be known of a rank
OFTEN: Final = 0.6  # of them it must have been late
LEAST_STEPS: Final = 3  # in which it was so by itself: one long step is no straggler
CLIP: Final = 1.0  # one stalled step counts as so much
COMPUTES: Final = 1 / 3  # of a step is computing at least
WHOLE: Final = 0.9  # a rank with fewer of its calls joined than this share of its likes' cannot be compared


class Lateness:
    """By how much every rank is later than its likes, as a share of their computing; rows are sampled steps.

    Of two ranks that do the same work the later one is shorter in its kernels, as the other waits for it there. A rank
    behind a slow link is not late by this: what it waits less, its own transfers take longer. So a rank counts as late
    by the smaller of what it is in its kernels less, and what it waits less.

    Attributes
    ----------
    count : int
        Steps taken in.
    shares : float [ROWS, ranks], steps : int [ROWS]
        Newest last; NaN = unknown.
    """

    def __init__(self) -> None:
        self.count = 0
        self.shares: npt.NDArray[np.float32] = np.full((ROWS, 0), np.nan, dtype=np.float32)
        self.steps = np.full(ROWS, -1, dtype=np.int64)

    @property
    def kept(self) -> int:
        """Steps that are remembered."""
        return min(self.count, ROWS)

    def widen(self, ranks: int) -> None:
        """Add fresh columns until there are `ranks`."""
        more = ranks - self.shares.shape[1]
        if more > 0:
            self.shares = np.hstack([self.shares, np.full((ROWS, more), np.nan, dtype=np.float32)])

    def forget(self, column: int) -> None:
        """The rank of `column` now runs elsewhere."""
        self.shares[:, column] = np.nan

    def push(self, step: JoinedStep, codes: Codes, step_s: float) -> None:
        """Add one sampled step of ranks whose work is told by `codes`; a step takes `step_s`, NaN if unknown.

        Ranks compute while they are not in their kernels; those that do so beside their kernels a third of the time.
        """
        short = WHOLE * median_of_peers(step.joined.astype(np.float64), codes)[0]
        known = (step.joined > 0) & ~(step.joined < short)
        kernel_s, wait_s = (np.where(known, part, np.nan) for part in (step.kernel_s, step.wait_s))
        others_s, usual_s = median_of_peers(kernel_s, codes)
        late_s = np.fmin(others_s - kernel_s, median_of_peers(wait_s, codes)[0] - wait_s)
        late_s[np.isnan(kernel_s)] = np.nan
        usual_s = usual_s[codes]
        computes_s = np.fmax(step_s - usual_s, COMPUTES * step_s) if np.isfinite(step_s) else usual_s
        for array in (self.shares, self.steps):
            array[:-1] = array[1:].copy()
        self.shares[-1] = np.clip(late_s / np.maximum(computes_s, 1e-9), -CLIP, CLIP)
        self.steps[-1] = step.step
        self.count += 1

    def found(self, least: float, sure: float) -> npt.NDArray[np.int64]:
        """Over how many of the newest steps each rank has been late for certain, 0 if it has not [ranks].

        It was so in three steps, its mean is `least` at least and `sure` standard errors above its likes'. The error is
        that of the ranks' means among each other, which holds lasting differences too, or what single steps' noise
        makes of it, if that is more.
        """
        out = np.zeros(self.shares.shape[1], dtype=np.int64)
        recent = self.shares[-self.kept :][::-1].astype(np.float64) if self.kept else np.zeros((0, out.size))
        known = np.isfinite(recent)
        total = np.cumsum(np.where(known, recent, 0.0), axis=0)
        number, often = np.cumsum(known, axis=0), np.cumsum(known & (recent > 0.0), axis=0)
        times = np.cumsum(known & (recent >= least), axis=0)
        each = _each(recent)
        for span in SPANS:
            if span > self.kept or (out > 0).all():
                break
            enough = number[span - 1] >= max(3.0, KNOWN * span)
            mean = np.where(enough, total[span - 1] / np.maximum(number[span - 1], 1), np.nan)
            among = float(noise(mean[np.isfinite(mean)])) if enough.any() else 0.0
            error = max(among, each / float(np.sqrt(span)))
            with np.errstate(invalid="ignore"):
                late = (mean >= max(least, sure * error)) & (times[span - 1] >= LEAST_STEPS)
            late &= often[span - 1] >= OFTEN * number[span - 1]
            out = np.where((out == 0) & late, span, out)
        return out

    def mean(self, column: int, span: int) -> float:
        """Mean share of one rank over the newest `span` steps; NaN where nothing is known."""
        part = self.shares[-min(span, max(self.kept, 1)) :, column].astype(np.float64)
        known = part[np.isfinite(part)]
        return float(known.mean()) if known.size else float("nan")

    def onset(self, column: int, share: float) -> int:
        """Since how many of the newest steps a rank that is late by `share` has likely been so (Page, 1954)."""
        gain = np.nan_to_num(self.shares[-self.kept :, column].astype(np.float64)[::-1] - share / 2.0)
        return int(np.argmax(np.cumsum(np.clip(gain, -1.5 * share, 1.5 * share)))) + 1

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The whole state; `load` takes it back."""
        return {"shares": self.shares, "steps": self.steps, "count": np.array(self.count)}

    def load(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        """Go on from `arrays`.

        Raises
        ------
        ValueError, KeyError
            If they are not a state's.
        """
        shares, steps = arrays["shares"], arrays["steps"]
        if shares.shape[:1] != (ROWS,) or steps.shape != (ROWS,):
            raise ValueError("these are no steps of ranks")
        self.shares, self.steps = shares.astype(np.float32), steps.astype(np.int64)
        self.count = int(arrays["count"])


def _each(recent: Floats) -> float:
    """Noise of single steps: of a usual rank from step to step, and of the ranks in a usual step."""
    if recent.shape[0] < 3:
        return 0.0
    with np.errstate(invalid="ignore"):
        over_time, over_ranks = noise(recent), noise(recent[:32].T)
    both = np.append(quiet_median(over_time), quiet_median(over_ranks))
    return float(np.nanmax(both, initial=0.0))


def alike(step: JoinedStep, roles: tuple[str, ...]) -> Codes:
    """Which ranks do the same work: those that make the same kinds of calls and have said the same role."""
    packed = np.packbits(step.kinds, axis=1) if step.kinds.shape[1] else np.zeros((len(roles), 1), dtype=np.uint8)
    _, own = np.unique(np.ascontiguousarray(packed).view([("", packed.dtype)] * packed.shape[1]), return_inverse=True)
    if len(set(roles)) < 2:
        return own.reshape(-1).astype(np.intp)
    names, said = np.unique(np.array(roles, dtype=np.str_), return_inverse=True)
    return np.asarray(own.reshape(-1) * names.size + said.reshape(-1), dtype=np.intp)
