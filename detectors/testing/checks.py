"""The contract of detectors: `check_detector` asks one everything, `CHECKS` are the questions one by one.

A third party's test is three lines::

    from trainwarden.detectors.testing.checks import check_detector

    def test_contract() -> None:
        check_detector(MyDetector)

A detector that sees nothing in the job of `trainwarden.detectors.testing.streams` brings its own records: a static
method ``contract_stream(sick: bool)`` gives pairs of (time sent, record) of job ``job``, in which it must find
something if `sick`, and nothing otherwise.

Records as the windows that a detector would be shown of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import numpy as np

from trainwarden.detectors.job.packed import pack
from trainwarden.detectors.job.samples import Entity
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.detectors.metrics.scores import MetricScorer
from trainwarden.detectors.protocol import Detector, Role
from trainwarden.detectors.testing.streams import JOB, METRICS, START_S, Sent, job_records, metric_values
from trainwarden.errors import DetectorError
from trainwarden.records import Vote
from trainwarden.settings import Config, parse
from trainwarden.testing.plugin import check_page, check_plugin

EVERY_S: Final = 0.5
MOST: Final = 1_000  # a longer stream is looked at less often


def windows_of(records: Sequence[Sent], models: ModelBundle | None = None) -> tuple[Window, ...]:
    """The windows of one job, each a copy that stays as it is; with `models` their scores of its metrics."""
    state, out = JobState(JOB), list[Window]()
    scorer = MetricScorer(models)
    ordered = sorted(records, key=lambda entry: entry[0])
    start_s, end_s = ordered[0][0], ordered[-1][0]
    every_s = max(EVERY_S, (end_s - start_s) / MOST)
    now_s, place = float(start_s), 0
    while place < len(ordered):
        now_s += every_s
        while place < len(ordered) and ordered[place][0] <= now_s:
            state.feed(ordered[place][1])
            place += 1
        out.append(_kept(state.window(now_s), scorer))
    return tuple(out)


def _kept(window: Window, scorer: MetricScorer) -> Window:
    found: dict[str, Any] = {
        name: value.copy() for name in Window.__slots__ if isinstance(value := getattr(window, name), np.ndarray)
    }
    for array in found.values():
        array.flags.writeable = False
    found["beats"] = deepcopy(window.beats)  # one object for all windows of a job, which goes on
    if scorer.bundle is not None:
        found["scored"] = scorer.score(window.samples, window.end_s)
        found |= {"unscored": scorer.abstained, "model_versions": scorer.bundle.versions,
                  "provisional": scorer.bundle.provisional, "weights": scorer.bundle.weights}  # fmt: skip
    return replace(window, **found)


@cache
def small_models() -> ModelBundle:
    """Models of the four devices of `trainwarden.detectors.testing.streams.metrics`, trained in a moment."""
    times_s = np.arange(400.0) / 2  # two samples a second
    normal = [(Entity("node0", f"GPU-{one}", one), times_s, metric_values(one, 400)) for one in range(4)]
    config = parse(VoteConfig, {"neighbor_profile": {"bags": 20, "bag_size": 16}, "dtw_samples": 20}, "models")
    return ModelBundle.fit({"GPU": normal}, {"GPU": METRICS}, config, seed=0)


FOREIGN: Final = (b"", b"garbage", b"\x80\x04\x95", b"\x81\xa4kind\xa1x", pack("another detector", {}))


@dataclass
class Case:
    """A detector under test.

    Parameters
    ----------
    plugin : type
        Its class.
    config : Config, optional
        Default its own.
    """

    plugin: type[Any]
    config: Config | None = None

    def made(self) -> Detector:
        """A new one."""
        detector: Detector = self.plugin(self.plugin.Config() if self.config is None else self.config)
        return detector

    @property
    def stream(self) -> Callable[[bool], Sequence[Sent]]:
        """Its own records, else those of the job that all core detectors find something in."""
        own: Callable[[bool], Sequence[Sent]] = getattr(self.plugin, "contract_stream", job_records)
        return own

    @property
    def eventful(self) -> tuple[Window, ...]:
        """Windows of the records that it must find something in."""
        return self.windows(self.stream, True)

    def windows(self, stream: Callable[[bool], Sequence[Sent]], sick: bool) -> tuple[Window, ...]:
        """What it would be shown of a stream; with the scores of models where it reads those."""
        return _windows(stream, sick, self.plugin.role.reads == "scores", ())


def check_detector(plugin: type[Any], config: Config | None = None) -> None:
    """Ask a third party's detector everything.

    Raises
    ------
    AssertionError
        With one sentence on what is not as it should be.

    Examples
    --------
    >>> from trainwarden.detectors.facts.hard_event import HardEvent
    >>> it_says_what_and_why(Case(HardEvent))  # one question; ours have their pages in docs/
    """
    check_page(plugin)
    case = Case(plugin, config)
    for check in CHECKS:
        check(case)


def it_is_a_plugin(case: Case) -> None:
    """A checked `Config`, and what it brings is in order."""
    check_plugin(case.plugin)


def it_says_what_its_votes_may_do(case: Case) -> None:
    """A role, and no vote that claims more."""
    role = getattr(case.plugin, "role", None)
    assert isinstance(role, Role), (
        f"{case.plugin.__name__}.role must be a trainwarden.detectors.protocol.Role, not {role!r}"
    )
    for vote in _votes(case, case.eventful):
        for claim in ("hard", "verified"):
            allowed = not getattr(vote, claim) or {claim, "any"} & set(role.opens)
            assert allowed, f"a vote is {claim}, but its role does not open by that: {vote.reason}"


def it_is_calm_when_there_is_nothing(case: Case) -> None:
    """An empty window gives a vote that is not anomalous."""
    detector, window = case.made(), JobState("job").window(START_S)
    detector.update(window)
    vote = detector.score(window)
    assert isinstance(vote, Vote), f"a vote must be a trainwarden.records.Vote, not {vote!r}"
    assert vote.opinion != "anomalous", f"an empty window is anomalous: {vote.reason}"
    assert vote.opinion == "normal" or vote.reason, "an abstention must say why"


def it_is_calm_while_all_is_well(case: Case) -> None:
    """Healthy jobs are normal, and scores stay in 0..1."""
    for stream in dict.fromkeys((job_records, case.stream)):
        for vote in _votes(case, case.windows(stream, False)):
            assert vote.opinion != "anomalous", f"a healthy job is anomalous: {vote.reason}"
            assert 0.0 <= vote.score <= 1.0, f"a score must be in 0..1, not {vote.score}"
            assert vote.opinion == "normal" or vote.reason, "an abstention must say why"


def it_says_what_and_why(case: Case) -> None:
    """Something is found in the eventful stream, with kind, severity, reason and suspects' reasons."""
    found = [vote for vote in _votes(case, case.eventful) if vote.opinion == "anomalous"]
    assert found, f"{case.plugin.__name__} finds nothing: give it a contract_stream(sick) in which it does"
    for vote in found:
        assert vote.reason, "an anomalous vote must say why"
        assert vote.kind, f"an anomalous vote must have a kind: {vote.reason}"
        assert vote.severity, f"an anomalous vote must have a severity: {vote.reason}"
        assert vote.score >= vote.threshold, f"an anomalous vote must reach its own threshold: {vote}"
        assert all(suspect.reason for suspect in vote.suspects), f"every suspect needs a reason: {vote.suspects}"


def scoring_changes_nothing(case: Case) -> None:
    """One that is asked and one that is not come to the same."""
    asked, silent = case.made(), case.made()
    for window in case.eventful:
        asked.update(window)
        silent.update(window)
        assert asked.score(window) == asked.score(window), "asked twice, it answers differently"
    assert asked.score(window) == silent.score(window), "having been asked changes its answer"
    assert asked.state() == silent.state(), "having been asked changes its state"


def its_state_can_be_cut_anywhere(case: Case) -> None:
    """One that is restored again and again votes as one that lives on."""
    whole, cut = case.made(), case.made()
    for place, window in enumerate(case.eventful):
        if place % 7 == 3:
            fresh = case.made()
            fresh.restore(cut.state())
            cut = fresh
        whole.update(window)
        cut.update(window)
        now_s = window.now_s
        assert cut.score(window) == whole.score(window), f"restored from its state it votes differently at {now_s} s"


def foreign_state_is_refused(case: Case) -> None:
    """Neither garbage nor another detector's state is taken."""
    for state in FOREIGN:
        try:
            case.made().restore(state)
        except DetectorError:
            continue
        raise AssertionError(f"restore must raise DetectorError on a state that is not its own: {state!r}")


def ranks_may_come_in_any_order(case: Case) -> None:
    """Records of one time in another order are the same to it."""

    def opinions(order: tuple[int, ...]) -> list[tuple[str, list[int | None]]]:
        votes = _votes(case, _windows(case.stream, True, case.plugin.role.reads == "scores", order))
        return [(vote.opinion, [suspect.rank for suspect in vote.suspects]) for vote in votes]

    assert opinions((0, 1, 2, 3)) == opinions((3, 1, 0, 2)), "the order of ranks' records changes its votes"


CHECKS: Final[tuple[Callable[[Case], None], ...]] = (
    it_is_a_plugin,
    it_says_what_its_votes_may_do,
    it_is_calm_when_there_is_nothing,
    it_is_calm_while_all_is_well,
    it_says_what_and_why,
    scoring_changes_nothing,
    its_state_can_be_cut_anywhere,
    foreign_state_is_refused,
    ranks_may_come_in_any_order,
)


@cache
def _windows(
    stream: Callable[[bool], Sequence[Sent]], sick: bool, scored: bool, order: tuple[int, ...]
) -> tuple[Window, ...]:
    """Windows of a stream, made once; records of one time go by `order` of their ranks where there is one."""
    first = {rank: place for place, rank in enumerate(order)}
    records = stream(sick)
    if order:
        records = sorted(records, key=lambda sent: (sent[0], first.get(getattr(sent[1], "rank", None) or 0, 0)))
    return windows_of(records, small_models() if scored else None)


def _votes(case: Case, windows: Sequence[Window]) -> list[Vote]:
    detector, votes = case.made(), []
    for window in windows:
        detector.update(window)
        votes.append(detector.score(window))
    return votes
