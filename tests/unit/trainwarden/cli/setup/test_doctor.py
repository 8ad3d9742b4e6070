"""`doctor`: answers without side effects."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.hook_doubles import write_header
from tests.unit.actions.launchers.slurm.slurm_double import SlurmDouble
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.cli.setup.doctor import doctor
from trainwarden.records import HeartbeatRecord
from trainwarden.topics import HEARTBEATS


def test_doctor_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctor(json="-") == 0
    names = {row["name"]: row["state"] for row in json.loads(capsys.readouterr().out)["checks"]}
    assert names["bus"] == names["checkpoints"] == "note"
    assert names["collector host"] == "fine"
    assert list(tmp_path.iterdir()) == []


def test_doctor_says_what_is_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRAINWARDEN_BUS", f"embedded:{tmp_path}/none/bus.db")
    assert doctor() == 1


def test_doctor_compares_the_clocks_of_the_nodes_with_that_of_the_bus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bus = EmbeddedBus(str(tmp_path / "bus.db"))
    for node, off_s in (("n0", 0.0), ("n1", 61.0), ("n2", -3.0)):
        beat = HeartbeatRecord(job="j", node=node, time_s=time.time() + off_s)
        bus.publish(HEARTBEATS, "j", beat)
    bus.flush()
    bus.close()
    monkeypatch.setenv("TRAINWARDEN_BUS", f"embedded:{tmp_path}/bus.db")
    assert doctor(json="-") == 1
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
    assert rows["clocks"]["state"] == "bad"
    assert "n1 is 61.0 s ahead, n2 is 3.0 s behind" in rows["clocks"]["what"]


def test_doctor_asks_launcher_models_and_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trainwarden-archive").mkdir()
    monkeypatch.setenv("TRAINWARDEN_TRAINER_REGISTRY", "http://127.0.0.1:9")  # the discard port: nobody listens
    assert doctor(json="-") == 1
    rows = {row["name"]: row["state"] for row in json.loads(capsys.readouterr().out)["checks"]}
    assert (rows["launcher torchrun"], rows["models"], rows["archive"]) == ("note", "bad", "fine")


def test_doctor_says_what_the_launcher_may_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    slurm = SlurmDouble()
    monkeypatch.setattr("trainwarden.actions.launchers.slurm.commands.run_program", slurm.run)
    monkeypatch.setenv("TRAINWARDEN_ENGINE_LAUNCHER", "slurm")
    ends = {0: "it can cordon, evict, restart, stop, uncordon", 1234567: "and users of AdminLevel Administrator"}
    for uid, end in ends.items():
        monkeypatch.setattr("os.geteuid", lambda uid=uid: uid)
        doctor(json="-")
        rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
        assert rows["launcher slurm"]["state"] == "fine"
        assert rows["launcher slurm"]["what"].startswith("job job is running; it can ")
        assert rows["launcher slurm"]["what"].endswith(end)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no tmpfs to be small")
def test_doctor_says_that_tmpfs_is_too_small(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trainwarden.rundir.HOOK_ROOM_BYTES", 2**60)
    doctor(json="-")
    (row,) = [row for row in json.loads(capsys.readouterr().out)["checks"] if row["name"] == "tmpfs"]
    assert row["state"] == "note"
    assert row["what"].endswith("MiB free: hook files go to disk")


def test_doctor_says_who_may_write_where_the_hooks_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "hook").mkdir(parents=True)
    write_header(tmp_path / "run" / "hook" / "rank-2-7.hook", 7, pid_namespace=1)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINWARDEN_RUN_DIR", str(tmp_path / "run"))
    assert doctor(json="-") == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
    assert (rows["run folder"]["state"], rows["ranks"]["state"]) == ("fine", "note")
    assert "ranks 2 are in another pid namespace" in rows["ranks"]["what"]
    (tmp_path / "run" / "hook").chmod(0o777)
    assert doctor(json="-") == 1


def test_a_file_in_the_place_of_the_run_folder_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").write_text("x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRAINWARDEN_RUN_DIR", str(tmp_path / "run"))
    assert doctor(json="-") == 1
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
    assert rows["run folder"]["state"] == "bad"
