"""Others may write into a run folder that was named: torchrun neither waits for what lies there nor follows a link."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from tests.unit.trainwarden.hook.test_planted_files import KINDS, in_time, plant
from trainwarden import rundir
from trainwarden.torchrun.exits import Exit
from trainwarden.torchrun.files import last_lines, last_words, opened, put_whole, read_whole
from trainwarden.torchrun.memory import LOG_NAME as KEEPER_LOG
from trainwarden.torchrun.memory import MemoryFolder
from trainwarden.torchrun.surroundings import Surroundings
from trainwarden.torchrun.watching import LOG_NAME, NodeAgent

PATIENCE_S = 60.0
OLD_NAMES = ("torchrun.new", "plan.1")  # under which files were once written beside


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [rundir.TORCHRUN, rundir.PLAN, rundir.EVENTS, *OLD_NAMES])
def test_a_run_folder_is_used_whatever_lies_there(tmp_path: Path, kind: str, name: str) -> None:
    run, done = tmp_path / "run", threading.Event()
    run.mkdir()
    elsewhere = plant(run / name, kind)
    before = elsewhere.read_text()
    around = in_time(lambda: Surroundings("j", "n", {"TRAINWARDEN_RUN_DIR": str(run)}, print))
    assert isinstance(around, Surroundings)
    in_time(lambda: around.ended(Exit(0, 1, 1.0, 3, None, False)))
    around.placed(0, 0, 1, "")
    around.put_splits([{"number": 1, "micro_batches": [1]}], lambda _number: done.set())
    refused = kind == "folder" and name == rundir.PLAN
    if not refused:
        assert done.wait(PATIENCE_S)
    in_time(around.close)
    assert done.is_set() != refused
    assert elsewhere.read_text() == before


@pytest.mark.parametrize("kind", KINDS)
def test_no_service_is_waited_for_whose_log_was_planted(tmp_path: Path, kind: str) -> None:
    elsewhere = plant(tmp_path / KEEPER_LOG, kind)
    (tmp_path / LOG_NAME).symlink_to(elsewhere)
    before = elsewhere.read_text()
    memory = str(tmp_path / "memory")
    environ = {"TRAINWARDEN_CHECKPOINT_MEMORY": memory}
    keeper = MemoryFolder("j", str(tmp_path), environ, tmp_path, node="n", alone=True, found=print)
    in_time(keeper._start)
    in_time(keeper.start)
    agent = NodeAgent("j", "n", tmp_path, os.environ)
    in_time(lambda: agent._start("embedded:nowhere/bus.db"))
    in_time(agent.close)
    in_time(keeper.close)
    assert elsewhere.read_text() == before


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_planted_is_not_read(tmp_path: Path, kind: str) -> None:
    plant(tmp_path / "said", kind)

    def read() -> bool:
        try:
            read_whole(tmp_path / "said", 1000)
        except OSError:
            return True
        return False

    assert in_time(read)
    assert in_time(lambda: last_lines(tmp_path / "said", 1000)) == []


def test_a_file_is_read_whole_or_its_end(tmp_path: Path) -> None:
    said = tmp_path / "said"
    said.write_bytes(b"first\nwith \xe2\x80\xa8 in it\n\xff last \r\n\n")
    assert read_whole(said, 100) == said.read_bytes()
    with pytest.raises(OSError, match="large"):
        read_whole(said, 10)
    assert last_lines(said, 100) == ["first", "with \u2028 in it", "\ufffd last \r", "", ""]
    assert (last_lines(said, 5), last_words(said), last_words(tmp_path / "none")) == (
        ["t \r", "", ""],
        "\ufffd last",
        "",
    )


@pytest.mark.parametrize("name", ["keeper", "keeper/request.json"])
def test_a_keeper_is_met_nowhere_else(tmp_path: Path, name: str) -> None:
    meeting, elsewhere, found = tmp_path / "keeper", tmp_path / "elsewhere", list[object]()
    made = MemoryFolder("j", str(tmp_path), {}, tmp_path, node="n", alone=False, found=found.append)
    if name == "keeper":
        elsewhere.mkdir()
        (elsewhere / "ring.json").write_text("another's")
        meeting.symlink_to(elsewhere)
        made._start()
        assert (made._keeper, (elsewhere / "ring.json").read_text()) == (None, "another's")
    else:
        meeting.mkdir()
        os.mkfifo(tmp_path / name)
        in_time(lambda: made._look_for_request(1))
        assert found == []


def test_a_file_is_put_whole_and_another_links_count_is_no_file_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "torchrun.json"
    put_whole(path, json.dumps({"pid": 1}))
    put_whole(path, json.dumps({"pid": 2}))
    assert (json.loads(path.read_text()), [one.name for one in tmp_path.iterdir()]) == ({"pid": 2}, ["torchrun.json"])
    (tmp_path / "linked").hardlink_to(path)
    with pytest.raises(OSError, match="no file of ours"):
        opened(tmp_path / "linked", os.O_APPEND)
