"""What a rank is told of itself, and how its end is shown."""

from __future__ import annotations

import contextlib
import os
import threading
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import msgspec
import pytest

from trainwarden.actions.launchers.local import ranks
from trainwarden.actions.launchers.local.ranks import (
    LocalJob,
    RanksOutput,
    check_command,
    environment,
    exit_code,
)

PLACE = LocalJob(command=("python", "train.py"), ranks=4, run_dir=Path("/run/one"), job="job", node="node")


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


def test_a_rank_is_told_what_torchrun_would_tell_it_and_nothing_of_a_torchrun_around_us() -> None:
    around = {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "7", "GROUP_RANK": "5"}
    made = environment(PLACE, 2, 3, 29500, around)
    assert {name: value for name, value in made.items() if name.split("_")[0] in ("GROUP", "ROLE", "TORCHELASTIC")} == {
        "GROUP_RANK": "0", "GROUP_WORLD_SIZE": "1", "ROLE_RANK": "2", "ROLE_NAME": "default", "ROLE_WORLD_SIZE": "4",
        "TORCHELASTIC_RESTART_COUNT": "3", "TORCHELASTIC_MAX_RESTARTS": "3", "TORCHELASTIC_RUN_ID": "job",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }  # fmt: skip


def test_a_rank_is_told_of_its_checkpoints_where_their_folder_is_named() -> None:
    place = msgspec.structs.replace(PLACE, checkpoints=Path("/ckpt"))
    stale = {"TRAINWARDEN_RESUME_FROM": "/of/another/job"}
    first = environment(place, 0, 0, 29500, stale)
    assert (first["TRAINWARDEN_CHECKPOINTS"], first.get("TRAINWARDEN_RESUME_FROM")) == ("/ckpt", None)
    again = environment(place, 0, 1, 29500, stale, resume_from=Path("/ckpt/step-40"))
    assert again["TRAINWARDEN_RESUME_FROM"] == "/ckpt/step-40"


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


def test_a_reader_that_stands_still_holds_up_nobody_who_has_news(tmp_path: Path) -> None:
    reading, show = os.pipe()
    output = RanksOutput(msgspec.structs.replace(PLACE, run_dir=tmp_path, show=show))  # without a folder for logs
    source, rank = os.pipe()
    drain = output.drain(0, source)
    os.write(rank, b"a word that cannot be kept\n")
    os.close(rank)
    output.settle([drain])
    os.set_blocking(show, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(show, b"x" * 65_536)
    news: list[str] = []
    speaker = threading.Thread(target=lambda: news.extend(output.news()), daemon=True)
    speaker.start()
    speaker.join(60.0)
    assert [one.split(" ")[0] for one in news] == ["the", "27"], "it waits for the reader"  # and says what is missing
    for number in range(1000):
        output.say(f"sentence {number}")
    os.set_blocking(show, True)
    seen = b""
    while b"more sentences were not shown" not in seen.rpartition(b"xx")[2]:
        seen += os.read(reading, 1 << 20)
        output.say("go on")
    assert b"is not kept any more" in seen
    output.close()
    os.close(show)
    os.close(reading)


def test_ranks_are_numbered_as_torchrun_does_and_meet_on_this_machine() -> None:
    made = environment(PLACE, 1, 0, 29500, {})
    assert made["RANK"] == made["ROLE_RANK"] == made["LOCAL_RANK"] == "1"
    assert made["WORLD_SIZE"] == made["ROLE_WORLD_SIZE"] == made["LOCAL_WORLD_SIZE"] == str(PLACE.ranks)
    assert (made["GROUP_RANK"], made["GROUP_WORLD_SIZE"]) == ("0", "1")
    assert (made["MASTER_ADDR"], made["MASTER_PORT"]) == ("127.0.0.1", "29500")
    assert made["GLOO_SOCKET_IFNAME"] == "lo"
    assert environment(PLACE, 0, 0, 29500, {"GLOO_SOCKET_IFNAME": "mine"})["GLOO_SOCKET_IFNAME"] == "mine"


@pytest.mark.parametrize(("torch", "told"), [("2.8.0+cu128", True), ("2.9.1", False), ("2.15.0", False), (None, True)])
def test_only_older_torch_is_told_to_record_its_calls(torch: str | None, told: bool) -> None:
    """Newer ones do by themselves, and warn of the name in every rank."""

    def version(_: str) -> str:
        if torch is None:
            raise PackageNotFoundError
        return torch

    ranks.call_recording.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "version", version)
        made = environment(PLACE, 0, 0, 0, {})
    ranks.call_recording.cache_clear()
    assert ("TORCH_NCCL_TRACE_BUFFER_SIZE" in made) is told
