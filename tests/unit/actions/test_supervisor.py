"""The local launcher's parts that need no process: environments, the plan file, settings, refusals."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from actions.launchers.local.control import MAX_PATH_BYTES, Rebalance, Request, Restart, State
from actions.launchers.local.plan import KEPT_PLANS, PlanFile
from actions.launchers.local.ranks import Place, check_command, environment, exit_code
from actions.launchers.local.supervisor import Supervisor, SupervisorConfig
from tests.doubles import ManualClock
from trainwarden.errors import ConfigError
from trainwarden.settings import parse

PLACE = Place(command=("python", "train.py"), ranks=4, run_dir=Path("/run/one"), job="job", node="node")


def test_a_rank_is_told_who_it_is_and_keeps_the_rest() -> None:
    made = environment(PLACE, 2, 3, 29500, {"HOME": "/home/x", "RANK": "9", "OMP_NUM_THREADS": "8"})
    assert {made[name] for name in ("RANK", "LOCAL_RANK")} == {"2"}
    assert (made["WORLD_SIZE"], made["MASTER_ADDR"], made["MASTER_PORT"]) == ("4", "127.0.0.1", "29500")
    assert (made["HOME"], made["OMP_NUM_THREADS"]) == ("/home/x", "8")
    ours = {name: value for name, value in made.items() if name.startswith("TRAINWARDEN_")}
    assert ours == {
        "TRAINWARDEN_HOOK_DIR": "/run/one/hook", "TRAINWARDEN_RUN_DIR": "/run/one", "TRAINWARDEN_JOB": "job",
        "TRAINWARDEN_NODE": "node", "TRAINWARDEN_ATTEMPT": "3",
    }  # fmt: skip


def test_the_hooks_folder_comes_first_on_the_path() -> None:
    first, *rest = environment(PLACE, 0, 0, 1, {"PYTHONPATH": "a:b"})["PYTHONPATH"].split(os.pathsep)
    assert Path(first, "sitecustomize.py").is_file()
    assert rest == ["a", "b"]


def test_python_means_the_interpreter_that_runs_us() -> None:
    assert Path(check_command(["python", "x.py"])[0]).is_absolute()
    assert check_command(["./train.sh", "python"]) == ("./train.sh", "python")


@pytest.mark.parametrize(("code", "shown"), [(0, 0), (3, 3), (-9, 137), (-15, 143)])
def test_exit_codes_are_a_shells(code: int, shown: int) -> None:
    assert exit_code(code) == shown


def test_plans_are_numbered_and_the_last_few_stay_readable(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = PlanFile(path)
    assert (plan.number, plan.micro_batches) == (0, ())
    for number in range(1, 21):
        plan.put((number, 24 - number), "why", f"op-{number}")
    kept = json.loads(path.read_bytes())
    assert (kept["number"], kept["micro_batches"], kept["why"]) == (20, [20, 4], "why")
    assert [old["number"] for old in kept["history"]] == list(range(20 - KEPT_PLANS, 20))
    again = PlanFile(path)
    again.put((1, 23), "repeat", "op-20")  # the launcher was killed before it noted op-20
    assert (again.number, again.micro_batches) == (20, (20, 4))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"number": 3'])
def test_a_damaged_plan_file_is_no_plan(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    assert PlanFile(path).number == 0


def test_a_plan_must_fit_ranks_and_total(tmp_path: Path) -> None:
    plan = PlanFile(tmp_path / "plan.json")
    assert plan.refusal((5, 3), 2) is None
    assert "3 ranks" in str(plan.refusal((5, 3), 3))
    plan.put((5, 3), "", "op")
    assert "8" in str(plan.refusal((5, 4), 2))


@pytest.mark.parametrize("request_", [State("j"), Restart("j", "op", (1, 2), "why"), Rebalance("j", "op", (1, 2))])
def test_requests_survive_the_wire(request_: Request) -> None:
    assert msgspec.json.decode(msgspec.json.encode(request_), type=Request) == request_


def test_who_is_waited_for_depends_on_the_mode() -> None:
    graces = [SupervisorConfig(mode=mode).failure_grace_s for mode in ("observe", "auto", "confirm")]
    assert graces == sorted(graces)
    with pytest.raises(ConfigError, match="mode"):
        parse(SupervisorConfig, {"mode": "yolo"}, "launch")


@pytest.mark.parametrize(("command", "ranks"), [([], 1), (["true"], 0)])
def test_a_launch_of_nothing_is_refused(command: list[str], ranks: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a command"):
        Supervisor(command, ranks, tmp_path, "job", "node", ManualClock())


def test_a_run_folder_too_deep_for_a_socket_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / ("x" * MAX_PATH_BYTES)
    with pytest.raises(ConfigError, match="too long"):
        Supervisor(["true"], 1, deep, "job", "node", ManualClock()).run()
