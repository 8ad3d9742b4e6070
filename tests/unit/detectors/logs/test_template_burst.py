"""Bursts of new templates on one rank, and everything that only resembles them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import msgspec
import pytest

from tests.unit.detectors.detection_streams import JOB, START_S, log_lines
from trainwarden.detectors.job.object_codec import ObjectCodec
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.job.window import LogLine
from trainwarden.detectors.logs.template_burst import TemplateBurst
from trainwarden.detectors.logs.templates import OVERFLOW, LogTemplates
from trainwarden.errors import DetectorError
from trainwarden.records import Vote

Say = Callable[[int, float], list[str]]


def chatter(rank: int, at_s: float) -> list[str]:
    """Two lines each half second, as every rank says them."""
    return [f"step {int(at_s * 2)} loss 3.{rank}", f"tokens per second {1000 + int(at_s)}"]


def storm(at_s: float, lines: int = 20) -> list[str]:
    return [f"cannot reach peer 10.0.0.{i}, will try again in {i} ms" for i in range(lines)]


def run(
    detector: TemplateBurst, say: Say, *, ranks: Sequence[int | None] = (0, 1, 2, 3), until_s: float = 60.0,
    from_s: float = 0.0, state: JobState | None = None,
) -> list[Vote]:  # fmt: skip
    """Votes each half second while every rank says what `say` gives."""
    state = state or JobState(JOB)
    votes, at_s = [], from_s
    while at_s < until_s:
        for rank in ranks:
            lines = say(rank or 0, at_s)
            times = [(START_S + at_s + 0.5 * i / max(1, len(lines)), line) for i, line in enumerate(lines)]
            record = log_lines(rank, times, first=1 + int(at_s * 2000))
            state.feed(msgspec.structs.replace(record, source=f"source-{rank}"))
        at_s += 0.5
        window = state.window(START_S + at_s)
        detector.update(window)
        votes.append(detector.score(window))
    return votes


def made(**settings: float) -> TemplateBurst:
    return TemplateBurst(msgspec.convert(settings, TemplateBurst.Config))


def test_one_rank_that_says_something_new_again_and_again_is_the_suspect() -> None:
    votes = run(made(), lambda rank, at_s: chatter(rank, at_s) + (storm(at_s) if rank == 2 and at_s >= 40 else []))
    assert not any(vote.opinion == "anomalous" for vote in votes[:80])
    vote = votes[90]
    assert (vote.opinion, vote.kind, vote.severity) == ("anomalous", "log_storm", "sev3")
    assert [suspect.rank for suspect in vote.suspects] == [2]
    assert "cannot reach peer" in vote.reason
    assert vote.onset_s == pytest.approx(START_S + 40.0, abs=0.5)
    assert vote.score >= vote.threshold


def test_it_is_over_when_it_is_over() -> None:
    votes = run(
        made(), lambda rank, at_s: chatter(rank, at_s) + (storm(at_s) if rank == 2 and 40 <= at_s < 46 else []),
        until_s=60.0,
    )  # fmt: skip
    assert any(vote.opinion == "anomalous" for vote in votes)
    assert votes[-1].opinion == "normal"


def test_what_everybody_says_is_the_way_of_the_program() -> None:
    votes = run(made(), lambda rank, at_s: chatter(rank, at_s) + (storm(at_s) if at_s >= 40 else []))
    assert not any(vote.opinion == "anomalous" for vote in votes)


def test_a_block_of_lines_printed_at_once_is_none() -> None:
    votes = run(made(), lambda rank, at_s: chatter(rank, at_s) + (storm(at_s, 300) if rank == 0 and at_s == 40 else []))
    assert not any(vote.opinion == "anomalous" for vote in votes)


def test_what_normal_time_said_as_often_is_no_news() -> None:
    talk: Say = lambda rank, at_s: chatter(rank, at_s) + (storm(at_s) if rank == 0 else [])  # noqa: E731 - a table of one
    assert not any(vote.opinion == "anomalous" for vote in run(made(), talk))


def test_a_known_template_far_above_its_own_rate_counts() -> None:
    def say(rank: int, at_s: float) -> list[str]:
        return chatter(rank, at_s) + storm(at_s, 60 if rank == 1 and at_s >= 40 else 1)

    lone = run(made(), lambda rank, at_s: chatter(rank, at_s) + (storm(at_s, 1) if rank == 1 and at_s < 10 else [])
               + (storm(at_s, 60) if rank == 1 and at_s >= 40 else []))  # fmt: skip
    assert any(vote.opinion == "anomalous" for vote in lone)
    assert not any(vote.opinion == "anomalous" for vote in run(made(), say)), "the others say it too"


def test_it_abstains_while_it_learns_and_says_why() -> None:
    votes = run(made(), lambda rank, at_s: chatter(rank, at_s) + (storm(at_s) if rank == 2 else []), until_s=10.0)
    assert {vote.opinion for vote in votes} == {"abstain"}
    assert votes[0].reason


def test_normal_lines_can_be_learnt_beforehand() -> None:
    normal = [LogLine("n", "s", 0, line, START_S + i) for i in range(50) for line in [*chatter(0, i), *storm(i, 60)]]
    known, unknown = made(warm_up_s=1e6), made(warm_up_s=1e6)
    known.fit(normal)
    unknown.fit([line for line in normal if "peer" not in line.line])
    say: Say = lambda rank, at_s: chatter(rank, at_s) + (storm(at_s, 30) if rank == 1 and at_s >= 30 else [])  # noqa: E731
    assert {vote.opinion for vote in run(known, say, until_s=40.0)} == {"normal"}
    assert any(vote.opinion == "anomalous" for vote in run(unknown, say, until_s=40.0))


def test_a_source_without_peers_must_exceed_all_it_ever_said() -> None:
    quiet = run(made(), lambda rank, at_s: chatter(rank, at_s) + (storm(at_s) if at_s >= 40 else []), ranks=[None])
    loud = run(made(), lambda rank, at_s: chatter(rank, at_s) + (storm(at_s, 90) if at_s >= 40 else []), ranks=[None])
    assert not any(vote.opinion == "anomalous" for vote in quiet)
    assert any(vote.opinion == "anomalous" for vote in loud)


def test_memory_is_bounded() -> None:
    store = LogTemplates(64)
    letters = "abcdefghijklmnopqrstuvwxyz"
    for i in range(5_000):
        store.find(" ".join(letters[(i * k) % 26] * (1 + i % 7) for k in range(1, 3 + i % 5)))
    assert len(store) <= 64
    assert store.find("something quite different that found no room") == OVERFLOW


def test_a_line_costs_linear_time() -> None:
    """Ten times the line may cost more than ten times as much only by the noise of the clock: lines are cut anyway."""

    def took_s(line: str) -> float:
        begun = time.perf_counter()
        for i in range(50):
            LogTemplates(100).find(f"{i} {line}")
        return time.perf_counter() - begun

    assert took_s("a1 " * 1_000_000) < 50 * took_s("a1 " * 100) + 1.0


def test_restored_templates_go_on_as_they_were() -> None:
    store = LogTemplates(100)
    first = store.find("worker alpha ready after 3 s")
    store.find("worker beta ready after 5 s")
    again = LogTemplates(100)
    ObjectCodec().load(again, ObjectCodec().dump(store))
    assert again.find("worker gamma ready after 9 s") == first
    kept = {"_words": ["list", [["list", ["<*>"]]]], "_leaves": ["dict", [("a", ["list", [7]])]]}
    with pytest.raises(DetectorError, match="templates that are not there"):
        ObjectCodec().load(again, kept)
