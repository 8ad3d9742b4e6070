"""Operations, phases and the generation of a local job, without a process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import msgspec
import pytest

from tests.unit.actions.launchers.local.runner_double import RANKS, Launch
from trainwarden import rundir
from trainwarden.actions.launchers.local.control import CAPABILITIES
from trainwarden.actions.launchers.local.journal import CUT_SHORT, KEPT_OPERATIONS
from trainwarden.launching import Verb


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return Launch(tmp_path)


def test_state_tells_nodes_and_ranks_on_them(launch: Launch) -> None:
    state = launch.state()
    assert (state.phase, state.attempt, state.generation, state.step) == ("running", 0, 1, 7)
    assert [(node.node, node.state, node.ranks) for node in state.nodes] == [("n0", "healthy", (0, 1, 2))]
    assert state.ranks_running == (0, 1, 2)


def test_a_restart_goes_on_without_anybody_waiting_for_it(launch: Launch) -> None:
    report = launch.submit(launch.operation())
    assert (report.state, report.text) == ("running", "waits for 3 ranks to end")
    assert launch.state().phase == "restarting"
    assert launch.state().under_way == ("op",)
    launch.coordinator.advance()
    assert launch.poll("op").state == "running"
    launch.runner.let_go()
    launch.coordinator.advance()
    assert launch.poll("op").state == "done"
    assert launch.runner.starts == [(0, (0, 1, 2)), (1, (0, 1, 2))]
    state = launch.state()
    assert (state.phase, state.attempt, state.generation, state.under_way) == ("running", 1, 2, ())


def test_the_same_id_is_told_how_far_it_is_whatever_the_generation(launch: Launch) -> None:
    operation = launch.operation()
    launch.submit(operation)
    assert launch.submit(operation).state == "running"
    launch.runner.let_go()
    launch.coordinator.advance()
    assert launch.submit(operation).state == "done"
    assert len(launch.runner.starts) == 2


def test_what_was_planned_before_something_was_done_is_refused(launch: Launch) -> None:
    early = launch.operation("late")
    launch.submit(launch.operation("split", "rebalance", split=(2, 2, 2)))
    report = launch.submit(early)
    assert (report.state, report.reason) == ("refused", "stale")
    assert report.text == "it was planned at generation 1, the job is at 2"
    assert launch.poll("late").state == "unknown"
    assert len(launch.runner.starts) == 1


def test_operations_wait_for_each_other(launch: Launch) -> None:
    launch.submit(launch.operation("a", ranks=(1,)))
    assert launch.submit(launch.operation("b", "rebalance", split=(2, 2, 2))).state == "accepted"
    assert launch.state().under_way == ("a", "b")
    launch.runner.let_go()
    launch.coordinator.advance()
    assert [launch.poll(name).state for name in "ab"] == ["done", "done"]
    assert launch.state().micro_batches == (2, 2, 2)
    assert launch.runner.starts[1:] == [(1, (1,))]


def test_every_verb_is_offered_or_has_a_sentence(launch: Launch) -> None:
    for verb in get_args(Verb):
        report = launch.submit(launch.operation(verb, verb, split=(1, 1, 1)))
        if verb in CAPABILITIES.can:
            assert report.reason in (None, "over", "stale") or (verb, report.reason) == ("validate", "unfit"), report
        else:
            assert (report.state, report.reason) == ("refused", "unsupported")
            assert report.text == CAPABILITIES.cannot[verb]
            assert report.text.startswith("this launcher cannot")


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ({"job": "another"}, "unknown_job"),
        ({"ranks": (RANKS,)}, "unknown_target"),
        ({"kind": "rebalance", "split": (1, 2)}, "unfit"),
    ],
)
def test_refusals_have_a_reason_and_leave_everything_as_it_was(
    launch: Launch, field: dict[str, object], reason: str
) -> None:
    job = field.pop("job", "job")
    before = launch.state()
    operation = msgspec.structs.replace(launch.operation("op", **field), job=job)  # type: ignore[arg-type]
    assert launch.submit(operation).reason == reason
    assert launch.state() == before


def test_a_start_that_fails_is_a_failed_operation_and_a_failed_job(launch: Launch) -> None:
    launch.submit(launch.operation())
    launch.runner.broken = OSError("no process slot")
    launch.runner.let_go()
    launch.coordinator.advance()
    report = launch.poll("op")
    assert (report.state, "no process slot" in report.text) == ("failed", True)
    assert launch.state().phase == "failed"
    assert launch.submit(launch.operation("op")).state == "failed"  # for good, by its id


def test_a_stop_ends_the_job_and_comes_too_late_twice(launch: Launch) -> None:
    launch.submit(launch.operation("stop", "stop"))
    assert launch.state().phase == "stopping"
    launch.runner.let_go()
    launch.coordinator.advance()
    assert (launch.poll("stop").state, launch.state().phase) == ("done", "ended")
    assert (launch.coordinator.over, launch.coordinator.exit_code) == (True, 143)
    assert launch.submit(launch.operation("more")).reason == "over"


def test_what_is_under_way_when_the_job_ends_has_failed(launch: Launch, tmp_path: Path) -> None:
    launch.submit(launch.operation("a"))
    launch.submit(launch.operation("b"))
    launch.coordinator.end()
    launch.coordinator.close()
    kept = json.loads((tmp_path / rundir.LAUNCHER_STATE).read_bytes())["operations"]
    assert kept == {name: {"state": "failed", "text": CUT_SHORT} for name in "ab"}


@pytest.mark.parametrize("mode", ["observe", "auto", "confirm"])
def test_a_failed_job_waits_for_help_as_long_as_its_mode_says(mode: str, tmp_path: Path) -> None:
    launch = Launch(tmp_path, mode)
    launch.runner.fail(1, 7)
    launch.coordinator.advance()
    assert launch.state().phase == "failed"
    launch.clock.sleep({"observe": 2.9, "auto": 59.0, "confirm": 3599.0}[mode])
    launch.coordinator.advance()
    assert launch.state().phase == "failed"
    launch.clock.sleep(1.0)
    launch.coordinator.advance()
    assert launch.state().phase == "stopping"
    launch.runner.let_go()
    assert (launch.coordinator.over, launch.coordinator.exit_code) == (True, 7)


# --- kills ---------------------------------------------------------------------------------------------------------


def test_a_launcher_after_a_killed_one_knows_what_it_had_promised(launch: Launch) -> None:
    launch.submit(launch.operation("split", "rebalance", split=(2, 2, 2)))
    late = launch.operation("late")
    launch.submit(launch.operation("cut"))
    launch.kill()
    assert launch.poll("split").state == "done"
    assert (launch.poll("cut").state, launch.poll("cut").text) == ("failed", CUT_SHORT)
    assert launch.state().generation == 4  # two operations and a second life
    assert launch.state().attempt == 1
    assert launch.submit(late).reason == "stale"
    assert launch.runner.starts == [(1, (0, 1, 2))]


def test_a_split_that_was_written_but_not_noted_was_done(launch: Launch, tmp_path: Path) -> None:
    launch.submit(launch.operation("split", "rebalance", split=(2, 2, 2)))
    path = tmp_path / rundir.LAUNCHER_STATE
    kept = json.loads(path.read_bytes())
    kept["operations"]["split"]["state"] = "accepted"  # as on disk when the kill came
    path.write_text(json.dumps(kept))
    launch.kill()
    assert launch.poll("split").state == "done"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"operations": 5}'])
def test_a_damaged_file_is_a_fresh_start(launch: Launch, content: bytes, tmp_path: Path) -> None:
    (tmp_path / rundir.LAUNCHER_STATE).write_bytes(content)
    launch.kill()
    assert (launch.state().attempt, launch.state().generation) == (0, 1)


def test_a_full_disk_ends_nothing(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("trainwarden.actions.launchers.local.journal.save_json", full)
    launch.submit(launch.operation())
    launch.runner.let_go()
    launch.coordinator.advance()
    assert launch.poll("op").state == "done"


def test_only_so_many_are_kept_and_the_forgotten_are_stale(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainwarden.actions.launchers.local.journal.save_json", lambda *_: None)
    monkeypatch.setattr("trainwarden.actions.launchers.local.microbatch_plan.save_json", lambda *_: None)
    first = launch.operation("op-0", "rebalance", split=(2, 2, 2))
    launch.submit(first)
    for number in range(1, KEPT_OPERATIONS + 1):
        launch.submit(launch.operation(f"op-{number}", "rebalance", split=(2, 2, 2)))
    assert launch.poll("op-1").state == "done"
    assert launch.poll("op-0").state == "unknown"
    assert launch.submit(first).reason == "stale"
