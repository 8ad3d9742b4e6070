"""Where there can be no machines within this one, a sentence says why, and nothing is begun."""

from __future__ import annotations

import os
import shutil

import pytest

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
