"""docker/systemd: units that systemd takes, that are locked up as far as may be, and start what there is."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NoReturn

import pytest

from tests.places import ROOT

FOLDER: Final = ROOT / "docker" / "systemd"
ALL: Final = {path.name: path for path in sorted(FOLDER.iterdir())}
SERVICES: Final = ("agent", "detector", "engine", "serve")
UNITS: Final = {f"trainwarden-{name}": FOLDER / f"trainwarden-{name}.service" for name in SERVICES}
PROGRAM: Final = "/opt/trainwarden/bin/trainwarden"
MOST_EXPOSED: Final = {"trainwarden-agent.service": 4.0, "trainwarden-node.service": 3.0}
"""Score of ``systemd-analyze security``: 0 is locked up, 10 wide open; the agent has to see the machine, the
other writes the node's state as root."""
BLINDING: Final = (
    "PrivateDevices", "ProtectClock", "ProtectKernelLogs", "ProtectProc", "ProcSubset", "PrivateTmp", "PrivateNetwork",
    "MemoryDenyWriteExecute", "PrivateUsers", "User", "DynamicUser",
)  # fmt: skip


def settings_of(unit: Path) -> dict[str, list[str]]:
    """Values by key, sections aside."""
    found: dict[str, list[str]] = {}
    for line in unit.read_text(encoding="utf-8").splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(key, []).append(value)
    return found


def analyze(*words: str, require: Callable[[str], NoReturn]) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        require("systemd-analyze is not installed")
    return subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, timeout=60, check=False)


def test_these_units_are_all_but_those_that_ask_about_the_node() -> None:
    asks = {"trainwarden-node.service", "trainwarden-node.timer"}
    assert set(ALL) == asks | {path.name for path in UNITS.values()}
    assert "/run/trainwarden-node/state" in (ROOT / "docker" / "slurm" / "fault.sh").read_text(encoding="utf-8")
    assert settings_of(ALL["trainwarden-node.service"])["RuntimeDirectory"] == ["trainwarden-node"]


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_starts_its_service_keeps_its_state_and_takes_no_new_rights(name: str) -> None:
    settings = settings_of(UNITS[name])
    assert settings["ExecStart"][0].split()[:2] == [PROGRAM, name.removeprefix("trainwarden-")]
    assert settings["NoNewPrivileges"] == ["yes"]
    assert settings["ProtectSystem"] == ["strict"]
    assert settings["StateDirectory"] == [name]
    assert settings["Restart"] == ["always"]


def test_nothing_blinds_the_agent() -> None:
    settings = settings_of(UNITS["trainwarden-agent"])
    assert [key for key in BLINDING if key in settings] == []
    assert "/dev/kmsg r" in settings["DeviceAllow"]


@pytest.mark.system
@pytest.mark.parametrize("name", ALL)
def test_systemd_takes_the_unit(name: str, tmp_path: Path, require_servers: Callable[[str], NoReturn]) -> None:
    for path in ALL.values():
        text = path.read_text(encoding="utf-8").replace(PROGRAM, str(Path(sys.executable).with_name("trainwarden")))
        (tmp_path / path.name).write_text(text, encoding="utf-8")
    done = analyze("verify", "--man=no", str(tmp_path / name), require=require_servers)
    # A word that systemd does not know is only told, so nothing may be told.
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.system
@pytest.mark.parametrize("name", [name for name in ALL if name.endswith(".service")])
def test_a_unit_is_locked_up(name: str, require_servers: Callable[[str], NoReturn]) -> None:
    done = analyze("security", "--offline=true", "--no-pager", str(ALL[name]), require=require_servers)
    found = re.search(r"exposure level for .*: ([0-9.]+)", done.stdout)
    assert found is not None, done.stdout + done.stderr
    assert float(found[1]) <= MOST_EXPOSED.get(name, 2.0)
