"""What a rank tells its launcher: that it may be started again alone, until it gives up; and of each transition."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.trainwarden.transition.harness import Died, Ranks, until_it_asks
from trainwarden import rundir
from trainwarden.topics import EVENTS
from trainwarden.transition import ResilientStep, TooFewMembers

pytestmark = pytest.mark.thorough  # members meet over a real store


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINWARDEN_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("TRAINWARDEN_HOOK_DIR", str(rundir.prepare(tmp_path) / rundir.HOOK))
    monkeypatch.setenv("TRAINWARDEN_ATTEMPT", "2")
    monkeypatch.setenv("TRAINWARDEN_ENDS_WITH", "77")
    return tmp_path


def offers(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / rundir.HOOK).iterdir())


def step(steps: ResilientStep) -> None:
    for micro in steps.micro_batches():
        steps.model.count(micro)  # type: ignore[operator]
    if steps.due:
        steps.optimizer.step()
    steps.optimizer.zero_grad()


def test_a_rank_offers_to_be_started_again_until_its_job_is_at_its_end(ranks: Ranks, run_dir: Path) -> None:
    steps = ranks.make()
    assert offers(run_dir) == ["resilient-77-2-0"]
    step(steps)
    assert offers(run_dir) == ["resilient-77-2-0"]
    steps.close()
    assert offers(run_dir) == []


def test_a_rank_whose_job_cannot_go_on_has_all_started_again(ranks: Ranks, run_dir: Path) -> None:
    def go_on() -> None:
        steps = ranks.make(0, 2, least=2)
        step(steps)
        step(steps)

    ranks.start(go_on)
    ranks.start(_die_in_its_second_step, ranks)
    ranks.wait()
    assert [type(error) for error in ranks.errors.values()] == [TooFewMembers]
    assert offers(run_dir) == []


def test_the_launcher_learns_who_died_who_finished_the_step_and_how_long_each_part_took(
    ranks: Ranks, run_dir: Path
) -> None:
    def go_on() -> None:
        steps = ranks.make(0, 2)
        step(steps)
        step(steps)

    ranks.start(go_on)
    ranks.start(_die_in_its_second_step, ranks)
    ranks.wait()
    assert not ranks.errors
    [line] = (run_dir / rundir.EVENTS).read_bytes().splitlines()
    event = EVENTS.decode(line)
    assert (event.kind, event.message, event.rank) == ("transition", "rank 1 died, and 1 ranks finished step 1", 0)
    assert {name: event.fields.pop(name) for name in ("step", "ranks", "gone")} == {"step": 1, "ranks": 1, "gone": "1"}
    assert event.fields.keys() == {"members_s", "group_s", "state_s", "again_s"}
    assert all(0.0 < value < 30.0 for value in event.fields.values())


def test_a_newcomer_that_dies_within_its_first_step_is_not_said_to_have_joined(ranks: Ranks, run_dir: Path) -> None:
    def go_on() -> None:
        steps = ranks.make(0, 2)
        step(steps)
        step(steps)
        ranks.start(newcomer)
        until_it_asks(ranks)
        steps._waits = True
        step(steps)

    def newcomer() -> None:
        _die(ranks, ranks.make(1, 2))

    ranks.start(go_on)
    ranks.start(_die_in_its_second_step, ranks)
    ranks.wait()
    assert not ranks.errors
    told = [EVENTS.decode(line) for line in (run_dir / rundir.EVENTS).read_bytes().splitlines()]
    assert [one.message for one in told] == [f"rank 1 died, and 1 ranks finished step {number}" for number in (1, 2)]
    assert all("joined" not in one.fields for one in told)


def test_what_is_told_of_another_run_of_the_job_is_news(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Detection drops an event whose id it knows; attempts and epochs are numbered anew in each run."""

    def go_on(ranks: Ranks) -> None:
        steps = ranks.make(0, 2)
        step(steps)
        step(steps)

    for _ in range(2):
        ranks = Ranks(monkeypatch)
        ranks.start(go_on, ranks)
        ranks.start(_die_in_its_second_step, ranks)
        ranks.wait()
        ranks.close()
    told = [EVENTS.decode(line) for line in (run_dir / rundir.EVENTS).read_bytes().splitlines()]
    assert (len(told), len({one.id for one in told})) == (2, 2)


def test_a_launcher_that_has_named_no_place_is_told_nothing(ranks: Ranks, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRAINWARDEN_RUN_DIR", "TRAINWARDEN_HOOK_DIR"):
        monkeypatch.delenv(name, raising=False)
    steps = ranks.make()
    step(steps)
    steps.close()


def test_a_full_disk_stops_no_step(ranks: Ranks, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWARDEN_HOOK_DIR", "/dev/full/hook")
    monkeypatch.setenv("TRAINWARDEN_RUN_DIR", "/dev/full")
    steps = ranks.make()
    step(steps)
    steps._launcher.report("0:aa", 1, "rank 1 died", {})
    steps.close()


def _die_in_its_second_step(ranks: Ranks) -> None:
    steps = ranks.make(1, 2)
    step(steps)
    _die(ranks, steps)


def _die(ranks: Ranks, steps: ResilientStep) -> None:
    for _ in steps.micro_batches():
        ranks.dead.add(steps._members.name)
        assert steps._group is not None
        steps._group.leave()
        raise Died
