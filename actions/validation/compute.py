"""Burn-in of all devices: who computes slowly, wrongly, or is held back; each suspect again, among others."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from trainwarden.actions.validation import judgement
from trainwarden.actions.validation.judgement import LEAST_PEERS, ROUNDS, Reference, is_slow
from trainwarden.actions.validation.participants import Participants
from trainwarden.actions.validation.results import Finding, RankReport
from trainwarden.actions.validation.schedules import turns
from trainwarden.records import IncidentKind

BUSY_SHARE = 0.8  # of a processor; less is worth a word, as then times of links hold little


def limit_s(budget_s: float) -> float:
    """After how long a rank counts as silent at its burn-in; after half of that it leaves off and reports what it has.

    Room for a process that has a twentieth of a processor at the usual tenth of a second, and for a longer
    burn-in one and a half times its length in that half.

    Examples
    --------
    >>> [round(limit_s(budget_s)) for budget_s in (0.1, 3.0, 3600.0)]
    [12, 39, 10830]
    """
    return 10.0 + min(20.0 * budget_s, 20.0 + 3.0 * budget_s)


_ROUNDS = ("among all", *("among witnesses",) * ROUNDS)


class ComputeStage:
    """The burn-in of `cast`, `budget_s` seconds of each device at a time.

    Attributes
    ----------
    accused : list of Finding
    noted : list of str
    unjudged : list of str
    busy_s : dict of int to float
        The best time of each rank for the same work.
    gflop_s : dict of int to float
        10^9 floating-point operations a second in that time, of each rank that tells how many they are.
    """

    def __init__(self, cast: Participants, budget_s: float, baseline_s: Mapping[str, float]) -> None:
        self._cast, self._budget_s, self._baseline_s = cast, budget_s, baseline_s
        self.accused: list[Finding] = []
        self.noted: list[str] = []
        self.unjudged: list[str] = []
        self.busy_s: dict[int, float] = {}
        self.gflop_s: dict[int, float] = {}
        self.held_back: set[int] = set()
        self._again: dict[int, list[RankReport]] = {}

    def run(self) -> None:
        """A round of all, and others for suspects and their witnesses."""
        reports = self._round(self._cast.present)
        self.busy_s = {rank: judgement.best_s(report) for rank, report in reports.items() if report.busy_s}
        for rank, best_s in self.busy_s.items():
            if (flop := reports[rank].flop) is not None and best_s > 0.0:
                self.gflop_s[rank] = flop / best_s / 1e9
        reference = judgement.compute_reference(reports, self._cast.joined, self._baseline_s)
        slow = self._slow(reports, reference)
        throttled = judgement.throttled(reports)
        wrong = {rank for rank, report in reports.items() if report.wrong}
        for rank, report in sorted(reports.items()):
            if report.error is not None and not report.crowded:
                self._accuse("gpu_lost", rank, f"cannot compute ({report.error})", None, ("its burn-in",))
        if suspects := {*slow, *throttled, *wrong}:
            self._confirm(suspects, slow, throttled, reports, reference)
            self._judge_wrong(wrong, reports)
        self._note_busy_nodes(reports)
        if lonely := [
            str(rank)
            for rank, report in sorted(reports.items())
            if report.busy_s and self._ratio(rank, report, reference) is None
        ]:
            self.unjudged.append(
                f"how fast ranks {', '.join(lonely)} compute: fewer than {LEAST_PEERS} of their kind, and no baseline"
            )

    def _confirm(
        self,
        suspects: set[int],
        slow: dict[int, float],
        throttled: dict[int, float],
        reports: Mapping[int, RankReport],
        reference: Reference,
    ) -> None:
        """Accuse those that are suspicious in every round, among witnesses that are not."""
        asked = (*sorted(suspects), *self._witnesses(suspects, reports))
        still_slow, still_throttled = slow, throttled
        for _ in range(ROUNDS):
            again = self._round(asked)
            reference = self._later(reference, again, suspects)
            still_slow = _both(still_slow, self._slow(again, reference))
            still_throttled = _both(still_throttled, judgement.throttled(again))
            self._again = {rank: [*self._again.get(rank, []), report] for rank, report in again.items()}
        self._judge_slow(slow, still_slow)
        self._judge_throttled(still_throttled)

    def _round(self, ranks: tuple[int, ...]) -> dict[int, RankReport]:
        joined = self._cast.joined
        node, at_once = {r: joined[r].node for r in ranks}, {r: joined[r].at_once for r in ranks}
        reports: dict[int, RankReport] = {}
        for turn in turns(ranks, node, at_once):
            reports |= self._cast.burn_in(turn, self._budget_s, limit_s(self._budget_s))
        return reports

    def _witnesses(self, suspects: set[int], reports: Mapping[int, RankReport]) -> list[int]:
        """For each kind of device under suspicion three others, so that there is a median without the suspects."""
        kinds = {self._cast.joined[rank].device for rank in suspects}
        chosen: list[int] = []
        for kind in sorted(kinds):
            clean = [r for r in sorted(reports) if r not in suspects and self._cast.joined[r].device == kind]
            chosen += clean[-(LEAST_PEERS - 1) :]
        return chosen

    def _later(self, first: Reference, again: Mapping[int, RankReport], suspects: set[int]) -> Reference:
        """What the witnesses took in the second round, or everybody in the first where that was more."""
        clean = {rank: report for rank, report in again.items() if rank not in suspects and report.busy_s}
        medians = {}
        for kind, before_s in first.median_s.items():
            now_s = [statistics.median(r.busy_s) for rank, r in clean.items() if self._cast.joined[rank].device == kind]
            medians[kind] = max(before_s, statistics.median(now_s)) if now_s else before_s
        return Reference(medians, first.baseline_s)

    def _ratio(self, rank: int, report: RankReport, reference: Reference) -> float | None:
        member = self._cast.joined[rank]
        return reference.ratio(judgement.best_s(report), member.device, member.name)

    def _slow(self, reports: Mapping[int, RankReport], reference: Reference) -> dict[int, float]:
        ratios = {rank: self._ratio(rank, report, reference) for rank, report in reports.items() if report.busy_s}
        return {rank: ratio for rank, ratio in ratios.items() if ratio is not None and is_slow(ratio)}

    def _judge_slow(self, first: Mapping[int, float], again: Mapping[int, float]) -> None:
        for rank, ratio in sorted(first.items()):
            if rank not in again:
                self.noted.append(
                    f"rank {rank} computed {ratio:.2f} times as long as its peers, but not when asked again"
                )
                continue
            text = f"computes {again[rank]:.2f} times as long as its peers ({self._cast.joined[rank].device})"
            self._accuse("slow_compute", rank, text, again[rank], _ROUNDS)

    def _judge_throttled(self, ratios: Mapping[int, float]) -> None:
        for rank, ratio in sorted(ratios.items()):
            text = f"is held back by its control group: {ratio:.1f} times as long as its peers for the same work"
            self._accuse("host_contention", rank, text, ratio, (*_ROUNDS, "the kernel"))
            self.held_back.add(rank)

    def _judge_wrong(self, wrong: set[int], first: Mapping[int, RankReport]) -> None:
        """Products are exact, so one that is wrong has the reference as its witness, whether it is so again or not."""
        for rank in sorted(wrong):
            of = [first[rank], *self._again.get(rank, [])]
            bad, done = sum(one.wrong for one in of), sum(len(one.wall_s) for one in of)
            text = (
                f"computes wrong products: {bad} of {done}, with the same operands ({self._cast.joined[rank].device})"
            )
            self._accuse("silent_corruption", rank, text, None, ("the exact sums of rows and columns",))

    def _note_busy_nodes(self, reports: Mapping[int, RankReport]) -> None:
        """A node whose ranks all wait for processors is busy; its devices are not slow for that."""
        by_node: dict[str, list[float]] = {}
        for rank, report in reports.items():
            if self._cast.joined[rank].at_once is not None and (share := judgement.satisfaction(report)) is not None:
                by_node.setdefault(self._cast.joined[rank].node, []).append(share)
        for node, shares in sorted(by_node.items()):
            if (share := sorted(shares)[len(shares) // 2]) < BUSY_SHARE:
                self.noted.append(f"{node} is busy: its ranks had {share:.0%} of a processor while they computed")

    def _accuse(self, kind: IncidentKind, rank: int, text: str, ratio: float | None, seen: tuple[str, ...]) -> None:
        node = self._cast.node(rank)
        self.accused.append(
            Finding(
                kind=kind,
                text=f"rank {rank} on {node} {text}",
                ranks=(rank,),
                nodes=(node,),
                ratio=ratio,
                witnesses=seen,
            )
        )


def _both(first: Mapping[int, float], again: Mapping[int, float]) -> dict[int, float]:
    """Who is in both, with the smaller ratio."""
    return {rank: min(ratio, again[rank]) for rank, ratio in first.items() if rank in again}
