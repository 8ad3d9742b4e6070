"""Paths of modules that version 0.1 has left in other hands: plug-ins' imports, and loaders of registered models."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

PLUGIN = """
class Plugin:
    import json; from detectors.protocol import Role; from collectors import CATALOG
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """`trainwarden` as an installation has it, without the folders of a clone beside it."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "trainwarden").symlink_to(ROOT / "trainwarden")
    return tmp_path / "site"


def said(site: Path, code: str) -> list[object]:
    command = [sys.executable, "-c", f"import json, sys\n{code}"]
    done = subprocess.run(
        command, env={"PYTHONPATH": str(site)}, cwd=site, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: list[object] = json.loads(done.stdout)
    return answer


def test_without_asking_no_package_of_ours_lies_beside_trainwarden(site: Path) -> None:
    code = (
        "import trainwarden.cli.main, importlib.util as u\n"
        "print(json.dumps([one for one in trainwarden.former_names.FORMER if u.find_spec(one)]))"
    )
    assert said(site, f"import trainwarden.former_names\n{code}") == []


def test_a_former_path_gives_the_one_module_of_today(site: Path) -> None:
    code = """
from trainwarden import former_names
former_names.accept(), former_names.accept()
import importlib, collectors.agent.collector_runner
former = importlib.import_module("detectors.job.window").Window
from trainwarden.detectors.job.window import Window
from trainwarden.collectors.agent import collector_runner as now
asked = [one for one in sys.meta_path if "FormerNames" in repr(one)]
same = collectors.agent.collector_runner is now
print(json.dumps([former is Window, same, now.__name__, now.__spec__.name, len(asked)]))
"""
    name = "trainwarden.collectors.agent.collector_runner"
    assert said(site, code) == [True, True, name, name, 1]


def test_a_package_of_the_users_own_is_not_hidden(site: Path) -> None:
    (site / "collectors").mkdir()
    (site / "collectors" / "__init__.py").write_text("MINE = True")
    code = """
from trainwarden import former_names
former_names.accept()
import importlib, collectors
try:
    importlib.import_module("collectors.nothing.at_all")
except ModuleNotFoundError as error:
    print(json.dumps([collectors.MINE, error.name]))
"""
    assert said(site, code) == [True, "collectors.nothing"]


def test_a_plug_in_that_was_written_for_it_runs(site: Path) -> None:
    (site / "theirs.py").write_text(PLUGIN)
    folder = site / "theirs-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (folder / "entry_points.txt").write_text("[trainwarden.collectors]\ntheirs = theirs:Plugin\n")
    code = """
from trainwarden import plugins
from trainwarden.collectors import CATALOG
plugin = plugins.load({}, "trainwarden.collectors", "theirs")
from trainwarden.detectors import protocol
print(json.dumps([plugin.__name__, plugin.CATALOG is CATALOG, plugin.Role is protocol.Role]))
"""
    assert said(site, code) == ["Plugin", True, True]


def test_a_loader_that_mlflow_has_kept_is_found(site: Path) -> None:
    """`mlflow.pyfunc.load_model` imports the path that stands in the model's file."""
    code = """
from importlib import import_module
from trainwarden import former_names
former_names.accept()
module = import_module("trainer_offline.registry.pyfunc")
print(json.dumps([module.__name__, callable(module._load_pyfunc)]))
"""
    assert said(site, code) == ["trainwarden.trainer_offline.registry.pyfunc", True]
