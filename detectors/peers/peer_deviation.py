"""Vote: one rank computes longer than its peers, relative to its own earlier level or from the start.

Robust z-score of every rank's compute time against its role group (median and median absolute deviation), with a least
absolute and relative deviation, and localisation by compute against wait: in synchronous training the straggler
computes longest and waits least (Wu et al., Falcon, 2024, section 4.3).
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.common_mode import median_of_others, quiet_median
from trainwarden.detectors.job.object_codec import WholeMemory
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.peers.episodes import Episode, Evidence, calm_rows, spell_ratio, trimmed_mean
from trainwarden.detectors.peers.memory import HELD_BACK, LEARN, LEAST_PEERS, PeerMemory, PeerStep
from trainwarden.detectors.peers.roles import Codes
from trainwarden.detectors.peers.rules import Finding, PeerDeviationConfig, against_peers, against_self, apart_of_two
from trainwarden.detectors.protocol import Role, abstain
from trainwarden.records import Suspect, Vote

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
MAX_SUSPECTS: Final = 16
FOLLOWED: Final = 64  # newest steps of a spell that its ratio is taken over
KINDS: Final[tuple[Evidence, ...]] = ("compute", "wait", "duration")
OF_TWO: Final = "of two nobody can say which is the odd one"
UNTOLD: Final = len(KINDS)  # durations alone, of ranks whose devices work behind the host's back: nobody's own time


class PeerDeviation(WholeMemory):
    """Stragglers among ranks of one role, and stages that are slow as a whole.

    Ranks are compared with their own earlier level, all others' changes taken out, and from the start with the other
    ranks of their role (of all roles where a role has fewer than three ranks). A role of three ranks or more that is
    slower than the other roles is named: pipeline stages of one model should take equally long. Its ranks are suspects
    if they became slow; a stage that is slow from the start accuses none of them.

    Parameters
    ----------
    config : PeerDeviation.Config

    Notes
    -----
    `episodes` holds every spell found, newest last. Steps are judged one by one in their order, so that it makes no
    difference how many of them one window brings.
    """

    Config = PeerDeviationConfig
    role = Role(reads="steps", opens=("verified",))
    more = False
    HELD = (Episode,)

    def __init__(self, config: PeerDeviationConfig) -> None:
        self._config = config
        self._next_seq = 0
        self._nodes: tuple[str, ...] = ()
        self._roles: tuple[str, ...] = ()
        self._memory = PeerMemory()
        self._slow: Floats = np.zeros(0)  # log ratio of ranks that are slow now, 0 for the others
        self._kind = -1  # place in KINDS of what is judged, -1 before the first step
        self._other_kind = 0  # newest steps in a row that had another kind
        self._open: dict[int, Episode] = {}
        self.episodes: list[Episode] = []

    def update(self, window: Window) -> None:
        """Judge every row that closed since the last window; rows in which slowness is planned are left out."""
        rows = window.fresh(self._next_seq)
        self._next_seq = window.next_seq
        self._widen(window)
        if len(window.steps[rows]) == 0 or len(window.ranks) < 2:
            return
        kinds, work = _work_s(window, rows)
        own, wait = np.log(work), window.wait_s[rows].astype(np.float64)
        busy, quiet = quiet_median(window.busy_s(rows).T), window.quiet_rows[rows]
        for index in range(len(own)):
            step, end_s = int(window.steps[rows][index]), float(window.ends_s[rows][index])
            if not self._of_this_kind(int(kinds[index])) or self._kind == UNTOLD:
                continue
            if quiet[index]:
                self._memory.warm_up(step, end_s - float(busy[index]), own[index])
                continue
            self._memory.push(PeerStep(step, end_s, float(busy[index]), own[index], wait[index]), self._slow)
            self._judge(window)

    def score(self, window: Window) -> Vote:
        """The slow ranks, worst first."""
        if len(window.ranks) < 2:
            return abstain("fewer than two ranks")
        if self._kind == UNTOLD:
            return abstain("only durations are known, and ranks that compute on a device wait for each other there")
        if self._memory.count < LEARN + HELD_BACK // 4:
            return abstain("warm-up")
        if not self._open:
            if ratio := apart_of_two(self._memory, self._config, window.live):
                return abstain(f"one of two ranks takes {ratio:.2g} times as long as the other, and {OF_TWO}")
            return Vote(opinion="normal", score=self._calm_score())
        # A stage that is slow from the start is a split of the model that is uneven, and no fault of its ranks.
        split = {column for column, episode in self._open.items() if episode.stage and episode.row == 0}
        slow = sorted(self._open.items(), key=lambda entry: (entry[0] in split, -self._slow[entry[0]]))[:MAX_SUSPECTS]
        worst = max(float(self._slow[slow[0][0]]), 1e-6)
        suspects = tuple(
            Suspect(
                score=float(np.clip(self._slow[column] / worst, 0.0, 1.0)),
                reason=episode.reason(float(np.exp(self._slow[column]))),
                rank=episode.rank,
                node=episode.node,
            )
            for column, episode in slow
            if column not in split
        )
        first = slow[0][1]
        who = f"rank {first.rank} {suspects[0].reason}" if suspects else first.of_stage(float(np.exp(worst)))
        excess = worst / float(np.log(1.15))
        return Vote(
            opinion="anomalous",
            score=excess / (1.0 + excess),
            reason=who,
            kind="slow_compute",
            severity="sev3",
            suspects=suspects,
            metrics=("iteration_duration_seconds" if first.evidence == "duration" else "iteration_compute_seconds",),
            onset_s=min(episode.onset_s for _, episode in slow),
            onset_step=min(episode.from_step for _, episode in slow),
            at_step=self._memory.step(0),
            verified=True,
        )

    def _restored(self) -> None:
        over = [episode for episode in self.episodes if episode.to_step is not None]
        self.episodes = over + list(self._open.values())

    # -- bookkeeping -----------------------------------------------------------------------------------------

    def _widen(self, window: Window) -> None:
        more = len(window.ranks) - self._slow.size
        self._memory.resize(len(window.ranks))
        self._slow = np.append(self._slow, np.zeros(max(0, more)))
        if window.nodes != self._nodes:
            old = self._nodes
            for column, node in enumerate(window.nodes):
                if column < len(old) and old[column] != node:
                    self._memory.forget(column)
                    self._close(column, 0)
            self._nodes = window.nodes
        if window.roles != self._roles:
            self._roles = window.roles
            self._memory.assign(window.roles)

    def _of_this_kind(self, kind: int) -> bool:
        """False for steps that were measured in another way than those before; if that lasts, all starts anew."""
        if self._kind < 0:
            self._kind = kind
        if kind == self._kind:
            self._other_kind = 0
            return True
        self._other_kind += 1
        if self._other_kind < LEARN:
            return False
        for column in list(self._open):
            self._close(column, 0)
        self._memory = PeerMemory()
        self._memory.resize(self._slow.size)
        self._memory.assign(self._roles)
        self._kind, self._other_kind = kind, 0
        return True

    # -- judgement -------------------------------------------------------------------------------------------

    def _judge(self, window: Window) -> None:
        free = window.live & (self._slow == 0)
        findings = against_self(self._memory, self._config, free)
        findings += against_peers(self._memory, self._config, free, window.live)
        if findings:
            victims = self._victims()
            for finding in findings:
                for place, column in enumerate(finding.columns):
                    if not victims[column] and self._slow[column] == 0:
                        self._start(window, finding, place)
        if self._open:
            self._follow(window.live)

    def _victims(self) -> Flags:
        """True for ranks that wait clearly longer than the others [ranks]."""
        wait = self._memory.wait_levels_s()
        others = median_of_others(wait[None, :])[0]
        with np.errstate(invalid="ignore"):
            return np.asarray(wait > others + 0.1 * self._memory.typical_s)

    # -- episodes --------------------------------------------------------------------------------------------

    def _start(self, window: Window, finding: Finding, place: int) -> None:
        memory, column = self._memory, int(finding.columns[place])
        height, rows = float(finding.heights[place]), int(finding.rows[place])
        self._slow[column] = height
        memory.mark(column, rows, sick=True)
        from_step, onset_s = memory.step(rows - 1), memory.begin_s(rows - 1)
        if finding.basis == "peers" and rows == memory.count:
            same = memory.codes == memory.codes[column]
            few = np.count_nonzero(same) < LEAST_PEERS
            others = np.flatnonzero(~same if finding.stage else same | few)
            from_step, onset_s = memory.first(column, others, 0.5 * height) or (from_step, onset_s)
        episode = Episode(
            rank=int(window.ranks[column]), node=window.nodes[column], from_step=from_step,
            reported_step=memory.step(0), onset_s=onset_s, ratio=float(np.exp(height)), basis=finding.basis,
            evidence=KINDS[self._kind], row=memory.count - rows, needed=int(finding.needed[place]),
            stage=finding.stage,
        )  # fmt: skip
        self._open[column] = episode
        self.episodes.append(episode)

    def _follow(self, live: Flags) -> None:
        """Bring the ratios of slow ranks up to date and let go of those that are back."""
        memory, config = self._memory, self._config
        columns = np.array(list(self._open), dtype=np.intp)
        spells = list(self._open.values())
        rows = min(FOLLOWED, memory.remembered_steps)
        risen = self._above(columns, spells, rows)
        length = np.array([memory.count - episode.row for episode in spells])
        needed = np.array([max(config.relief_steps, episode.needed) for episode in spells])
        age = np.arange(rows, 0, -1)[:, None]
        recent = np.where(age <= np.minimum(length, needed), risen, np.nan)
        now, level = np.nan_to_num(quiet_median(recent)), trimmed_mean(recent)
        over = ~live[columns] | (now < np.log(config.relief_ratio))
        within = np.where(age <= length, risen, np.nan)
        self._slow[columns] = np.maximum(now, 1e-3)
        for place, (column, episode) in enumerate(zip(columns, spells, strict=True)):
            full = length[place] >= needed[place]
            episode.worst = max(episode.worst, float(level[place])) if full else episode.worst
            calm = calm_rows(within[:, place], float(np.log(config.relief_ratio))) if over[place] else 0
            kept = within[: rows - calm, place]
            episode.ratio = spell_ratio(kept, episode.worst, float(memory.spread[column]), int(needed[place]))
            if over[place]:
                self._close(int(column), min(calm, int(length[place]) - 1))

    def _above(self, columns: Codes, spells: list[Episode], rows: int) -> Floats:
        """Log ratios over the newest steps by the rule that found each spell [rows, spells]."""
        memory = self._memory
        with np.errstate(invalid="ignore"):
            level = np.fmin(memory.base[0, columns], memory.anchor[0, columns])
        own = memory.tail("relative", rows, columns) - level
        apart = memory.tail("apart", rows, columns)
        stage = np.array([bool(episode.stage) for episode in spells])
        if stage.any():
            apart[:, stage] += memory.stage_tail(rows, memory.codes[columns[stage]])
        return np.where(np.array([episode.basis == "self" for episode in spells]), own, apart)

    def _close(self, column: int, calm: int) -> None:
        """End the spell of `column`, whose newest `calm` steps were no longer part of it."""
        self._slow[column] = 0.0
        episode = self._open.pop(column, None)
        if episode is not None:
            episode.to_step = self._memory.step(calm)
            self._memory.mark(column, calm, sick=False)
            self._memory.healed[column] = self._memory.count - calm

    def _calm_score(self) -> float:
        """How far the most deviating rank is from being called slow, below one half."""
        memory = self._memory
        if memory.count < 10 or not np.isfinite(memory.base[0]).any():
            return 0.0
        risen = quiet_median(memory.tail("relative", 10, np.arange(memory.ranks)) - memory.base[0])
        excess = float(np.nanmax(np.append(risen, 0.0))) / float(np.log(1.2))
        return min(0.499, excess / (1.0 + excess))


def _work_s(window: Window, rows: slice) -> tuple[npt.NDArray[np.int64], Floats]:
    """How each step was measured [rows], a place in `KINDS` or `UNTOLD`, and how long ranks worked [rows, ranks]."""
    busy, wait, compute = window.busy_s(rows), window.wait_s[rows].astype(np.float64), window.work_s(rows)
    known = np.isfinite(busy).sum(axis=1)
    computes, waits = (2 * np.isfinite(part).sum(axis=1) >= np.maximum(known, 1) for part in (compute, busy - wait))
    behind = window.asynchronous
    untold = 2 * np.isfinite(busy[:, behind]).sum(axis=1) >= np.maximum(known, 1)
    kinds = np.where(computes, 0, np.where(waits, 1, np.where(untold, UNTOLD, 2)))
    alone = np.where(behind, np.nan, busy)
    work = np.where(kinds[:, None] == 0, compute, np.where(kinds[:, None] == 1, np.maximum(busy - wait, 1e-6), alone))
    return kinds.astype(np.int64), work
