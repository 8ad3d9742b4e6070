"""docker/slurm: nodes are drained for their own faults alone, and never in doubt; a real Slurm drains and lets wait."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NoReturn

import pytest

from tests.places import ROOT
from tests.servers.kafka import ServerMissing
from tests.servers.slurm import NODE, Slurm

pytestmark = pytest.mark.system

SCRIPTS: Final = ROOT / "docker" / "slurm"
NAMES: Final = ("prolog", "epilog", "healthcheck")
FAULT: Final = f"CRITICAL: node {NODE}: j: gpu_lost sev1: GPU 3 fell off the bus (i1) | incidents=1;;;0\nmore\n"
WHY: Final = f"trainwarden: node {NODE}: j: gpu_lost sev1: GPU 3 fell off the bus (i1)"
Refuse = Callable[[str], NoReturn]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def asked(tmp_path: Path) -> Path:
    """What a stand-in for scontrol was called with; Slurm's own is used further down."""
    program = tmp_path / "bin" / "scontrol"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\necho "NodeName={NODE} State=IDLE Reason=x"\n')
    program.chmod(0o755)
    return tmp_path / "asked"


def run(name: str, state: Path, folder: Path = SCRIPTS) -> subprocess.CompletedProcess[str]:
    """A script as Slurm runs it: no PATH, hardly any environment."""
    environ = {"SLURMD_NODENAME": NODE, "TRAINWARDEN_NODE_STATE": str(state)}
    return subprocess.run(
        [str(folder / f"{name}.sh")], env=environ, capture_output=True, text=True, timeout=30, check=False
    )


def with_scontrol(tmp_path: Path) -> Path:
    """The scripts, with the stand-in first on their PATH."""
    folder = tmp_path / "scripts"
    shutil.copytree(SCRIPTS, folder)
    text = (folder / "fault.sh").read_text(encoding="utf-8")
    assert text.count("PATH=/usr/sbin") == 1
    text = text.replace("PATH=/usr/sbin", f"PATH={tmp_path}/bin:/usr/sbin")
    (folder / "fault.sh").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_of_the_node_drains_it_and_only_the_prolog_fails(
    name: str, state: Path, asked: Path, tmp_path: Path
) -> None:
    state.write_text(FAULT)
    done = run(name, state, with_scontrol(tmp_path))
    assert done.returncode == (1 if name == "prolog" else 0), done.stderr
    assert asked.read_text().splitlines()[-1] == f"update NodeName={NODE} State=DRAIN Reason={WHY}"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "said",
    [
        None,
        "",
        "OK: nothing is known against node node7 | incidents=0;;;0\n",
        "UNKNOWN: the bus is away: no broker answers\n",
        "CRITICAL: the bus is away: no broker answers\n",
        "WARNING: node node7: j: gpu_memory_error sev3: one row was remapped (i1)\n",
        "CRITICAL: node node70: j: gpu_lost sev1: another node (i1)\n",
        "CRITICAL: j: hang sev2: of a job (i1)\n",
        "\0\0\xff CRITICAL: node node7: \n",
        "\n" + FAULT,
        FAULT + "x" * 100_000,
    ],
)
def test_in_doubt_nothing_is_done(name: str, said: str | None, state: Path, asked: Path, tmp_path: Path) -> None:
    if said is not None:
        state.write_text(said)
    assert run(name, state, with_scontrol(tmp_path)).returncode == 0
    assert not asked.exists()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("doubt", ["old", "another's", "link", "folder", "no scontrol", "no shared file"])
def test_a_file_that_cannot_be_trusted_is_no_fault(
    name: str, doubt: str, state: Path, asked: Path, tmp_path: Path
) -> None:
    folder = with_scontrol(tmp_path)
    state.write_text(FAULT)
    match doubt:
        case "old":
            long_ago_s = time.time() - 600
            os.utime(state, (long_ago_s, long_ago_s))
        case "another's":
            if os.geteuid() != 0:
                pytest.skip("only root may give files away")
            os.chown(state, 65534, 65534)
        case "link":
            state.rename(tmp_path / "elsewhere")
            state.symlink_to(tmp_path / "elsewhere")
        case "folder":
            state.unlink()
            state.mkdir()
        case "no scontrol":
            (tmp_path / "bin" / "scontrol").write_text("#!/bin/sh\nexit 1\n")
        case "no shared file":
            (folder / "fault.sh").unlink()
    # A prolog without scontrol knows of a fault all the same: Slurm itself drains the node then.
    assert run(name, state, folder).returncode == (1 if (name, doubt) == ("prolog", "no scontrol") else 0)
    assert not asked.exists()


def test_a_node_may_go_by_its_hosts_name(state: Path, asked: Path, tmp_path: Path) -> None:
    state.write_text(FAULT.replace(f"node {NODE}:", f"node {socket.gethostname()}:"))
    assert run("prolog", state, with_scontrol(tmp_path)).returncode == 1
    assert asked.exists()


def test_shellcheck_has_nothing_to_say(require_servers: Refuse) -> None:
    if shutil.which("shellcheck") is None:
        require_servers("shellcheck is not installed")
    scripts = [*SCRIPTS.glob("*.sh"), *(ROOT / "docker").glob("*.sh")]
    done = subprocess.run(
        ["shellcheck", "--external-sources", "--source-path=SCRIPTDIR", *map(str, scripts)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


@pytest.fixture
def slurm(tmp_path: Path, state: Path, require_servers: Refuse) -> Iterator[Callable[..., Slurm]]:
    """Starts a real controller and node with some of the three scripts."""
    # Slurm runs scripts with an environment of its own: what is elsewhere is written into copies.
    folder = tmp_path / "scripts"
    shutil.copytree(SCRIPTS, folder)
    text = (folder / "fault.sh").read_text(encoding="utf-8").replace("/run/trainwarden-node/state", str(state))
    text = text.replace("# export SLURM_CONF=/opt/slurm/etc/", f"export SLURM_CONF={tmp_path}/slurm/")
    (folder / "fault.sh").write_text(text, encoding="utf-8")
    started: list[Slurm] = []

    def start(**scripts: str) -> Slurm:
        settings = "\n".join(f"{key}={folder}/{name}.sh" for key, name in scripts.items())
        try:
            started.append(Slurm(tmp_path / "slurm", settings))
        except ServerMissing as missing:
            require_servers(str(missing))
        started[0].start()
        return started[0]

    yield start
    for one in started:
        one.stop()


def test_slurm_drains_the_node_with_our_reason_and_lets_jobs_wait(
    slurm: Callable[..., Slurm], state: Path, tmp_path: Path
) -> None:
    server = slurm(Prolog="prolog", HealthCheckProgram="healthcheck")
    out = tmp_path / "out"
    submit = ("sbatch", "--parsable", f"--output={out}", "--wrap", "echo ran")
    first = server.ask(*submit)
    wait_until(lambda: out.exists() and "ran" in out.read_text(), server, first)
    server.wait_for_state("IDLE")
    state.write_text(FAULT)
    assert f"Reason={WHY} [" in server.wait_for_state("DRAIN")
    waiting = server.ask(*submit)
    time.sleep(3.0)  # a health check and several scheduling rounds
    assert "JobState=PENDING" in server.ask("scontrol", "--oneliner", "show", "job", waiting)
    state.unlink()  # mended
    server.ask("scontrol", "update", f"NodeName={NODE}", "State=RESUME")
    wait_until(lambda: "COMPLETED" in server.ask("scontrol", "--oneliner", "show", "job", waiting), server, waiting)


def test_a_prolog_alone_keeps_the_job_off_the_node(slurm: Callable[..., Slurm], state: Path, tmp_path: Path) -> None:
    server = slurm(Prolog="prolog")
    state.write_text(FAULT)
    job = server.ask("sbatch", "--parsable", f"--output={tmp_path / 'out'}", "--wrap", "echo ran")
    assert f"Reason={WHY} [" in server.wait_for_state("DRAIN")
    wait_until(lambda: "JobState=PENDING" in server.ask("scontrol", "--oneliner", "show", "job", job), server, job)
    out = tmp_path / "out"
    assert not out.exists() or "ran" not in out.read_text()  # Slurm itself may have written why


def test_an_epilog_alone_lets_no_other_job_follow(slurm: Callable[..., Slurm], state: Path, tmp_path: Path) -> None:
    server = slurm(Epilog="epilog")
    go, out = tmp_path / "go", tmp_path / "out"
    script = f"echo begun; while [ ! -e {go} ]; do sleep 0.1; done"
    job = server.ask("sbatch", "--parsable", f"--output={out}", "--wrap", script)
    wait_until(lambda: out.exists() and "begun" in out.read_text(), server, job)
    state.write_text(FAULT)
    go.touch()
    assert f"Reason={WHY} [" in server.wait_for_state("DRAIN")
    wait_until(lambda: "COMPLETED" in server.ask("scontrol", "--oneliner", "show", "job", job), server, job)


def wait_until(true: Callable[[], bool], slurm: Slurm, job: str) -> None:
    end_s = time.monotonic() + 40.0
    while not true():
        assert time.monotonic() < end_s, slurm.ask("scontrol", "show", "job", job) + slurm.tail()
        time.sleep(0.2)
