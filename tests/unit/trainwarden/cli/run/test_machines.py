"""Where there can be no machines within this one, a sentence says why, and nothing is begun."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from trainwarden.cli import main as command_line
from trainwarden.cli.run.demo import demo
from trainwarden.cli.run.machines import Machines
from trainwarden.errors import ConfigError


def test_without_root_the_demo_of_a_lost_node_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ConfigError, match="demo --fault node-lost: network namespaces are made by root"):
        demo(fault="node-lost")


def test_without_a_program_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "nsenter" else f"/usr/bin/{name}")
    with pytest.raises(ConfigError, match="nsenter is not installed"):
        Machines(2)


def test_a_demo_whose_one_training_machine_keeps_the_leases_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be the one that is lost, and nobody could follow."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)  # so that nothing begins where it is not refused
    monkeypatch.setattr(sys, "argv", ["trainwarden", "demo", "--fault", "node-lost", "--nodes", "2"])
    with pytest.raises(SystemExit) as ended:
        command_line.run()
    assert ended.value.code == 2
    assert "--nodes" in capsys.readouterr().err
