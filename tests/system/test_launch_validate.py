"""`trainwarden launch --validate` starts a job where all is well, and refuses where something is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.places import ROOT
from tests.servers.ports import free_ports
from tests.system.runs import WARDEN

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

RANK = "import os, pathlib; pathlib.Path(os.environ['DONE'] + os.environ['RANK']).touch()"


def environ(folder: Path) -> dict[str, str]:
    """Everything of the run in `folder`."""
    own = {"XDG_STATE_HOME": str(folder), "PYTHONPATH": str(ROOT), "DONE": str(folder / "done")}
    return {**os.environ, **own, "TRAINWARDEN_NODE": "node-b"}


def test_a_job_starts_where_all_is_well(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*WARDEN, "launch", "--nproc", "2", "--validate", "--checkpoints", "later/ckpt", "--", "python", "-c", RANK],
        env=environ(tmp_path), capture_output=True, timeout=280, cwd=tmp_path, check=False,
    )  # fmt: skip
    said = ended.stdout.decode()
    assert ended.returncode == 0, said + ended.stderr.decode()
    assert "validated 2 ranks" in said
    assert said.index("validated 2 ranks") < said.index("2 ranks, mode observe")
    assert {path.name for path in tmp_path.glob("done*")} == {"done0", "done1"}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_job_does_not_start_where_its_disk_is_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    shell = f'mount -t tmpfs -o size=1m tmpfs {disk}; "$@"'
    launch = ["launch", "--nproc", "2", "--validate", "--checkpoints", str(disk), "--json", str(tmp_path / "it.json")]
    ended = subprocess.run(
        ["unshare", "-m", "bash", "-c", shell, "-", *WARDEN, *launch, "--", "python", "-c", RANK],
        env=environ(tmp_path), capture_output=True, timeout=280, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert ended.returncode == 1, ended.stdout.decode()
    (line,) = [line for line in ended.stderr.decode().splitlines() if "not started" in line]
    assert line.startswith("trainwarden: not started: disk of node-b: ")
    assert "No space left" in line
    assert json.loads((tmp_path / "it.json").read_text())["validation"]["accused"][0]["kind"] == "storage"
    assert [*tmp_path.glob("done*")] == []
    assert not (tmp_path / "trainwarden").exists()


def test_a_signal_ends_the_validation_and_nothing_is_started(tmp_path: Path) -> None:
    launched = subprocess.Popen(
        [*WARDEN, "launch", "--nproc", "2", "--validate", "--", "python", "-c", RANK],
        env=environ(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path,
    )  # fmt: skip
    until_s = time.monotonic() + 100
    while len(below := psutil.Process(launched.pid).children(recursive=True)) < 3 and time.monotonic() < until_s:
        time.sleep(0.02)
    launched.send_signal(signal.SIGTERM)
    assert launched.wait(60) == 128 + signal.SIGTERM
    _, alive = psutil.wait_procs(below, timeout=20)
    assert alive == []
    assert [*tmp_path.glob("done*")] == []


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_of_several_nodes_the_one_whose_disk_is_full_takes_no_part_and_the_other_keeps_a_recording(
    tmp_path: Path,
) -> None:
    """Both see the folder of checkpoints, of which one has a disk in the way; the bus is a file that both reach."""
    disk, site, kept = tmp_path / "ckpt", tmp_path / "site.toml", tmp_path / "kept"
    disk.mkdir()
    site.write_text(f'job = "j"\nbus = "embedded:{tmp_path / "bus.db"}"\n')
    launch = [
        *WARDEN, "launch", "--config", str(site), "--nproc", "2", "--nnodes", "1", "--spares", "1", "--validate",
        "--rdzv", f"127.0.0.1:{free_ports(1)[0]}", "--checkpoints", str(disk), "--keep", str(kept),
        "--", "python", "-c", RANK,
    ]  # fmt: skip
    ill = subprocess.run(
        ["unshare", "-m", "bash", "-c", f'mount -t tmpfs -o size=1m tmpfs {disk}; "$@"', "-", *launch],
        env=environ(tmp_path), capture_output=True, timeout=140, check=False,
    )  # fmt: skip
    assert ill.returncode == 1, ill.stdout.decode()
    assert "not started: disk of node-b: " in ill.stderr.decode()
    assert [*tmp_path.glob("done*")] == []
    well = subprocess.run(launch, env=environ(tmp_path), capture_output=True, timeout=140, check=False)
    said = well.stdout.decode()
    assert well.returncode == 0, said + well.stderr.decode()
    assert said.index("validated 2 ranks") < said.index("this node's part of 1 nodes")
    assert {path.name for path in tmp_path.glob("done*")} == {"done0", "done1"}
    assert (kept / "job.toml").exists()
