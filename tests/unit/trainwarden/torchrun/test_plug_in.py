"""The plug-in in the users' Python: found by torchrun, light, harmless where it is not wanted."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from tests.places import ROOT
from trainwarden import torchrun

OURS = "trainwarden.torchrun"
LIGHT = """
import sys
import trainwarden.torchrun as plug_in
plug_in.handler()
light = set(sys.modules)
import trainwarden.torchrun.agent, trainwarden.torchrun.exits, trainwarden.torchrun.surroundings
tops = {name.partition('.')[0] for name in sys.modules}
print(sorted(name for name in light if name.startswith('trainwarden.torchrun.')))
print(sorted(tops - set(sys.stdlib_module_names) - {'__main__', 'trainwarden'}))
"""


def test_torchrun_finds_it_by_its_entry_point():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["torchrun.handlers"] == {torchrun.NAME: f"{OURS}:handler"}


def test_in_other_torchruns_it_loads_nothing_and_in_ours_the_standard_library():
    """-S: nothing is there but the standard library."""
    command = [sys.executable, "-S", "-c", LIGHT]
    said = subprocess.run(command, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == ["[]", "[]"]


@pytest.mark.parametrize(
    ("environ", "words", "preset"),
    [
        ({"PET_RDZV_BACKEND": "trainwarden"}, [], True),
        ({}, ["--rdzv-backend=trainwarden", "train.py"], True),
        ({}, ["--rdzv_backend", "trainwarden", "train.py"], True),
        ({"PET_RDZV_BACKEND": "c10d"}, ["train.py"], False),
        ({"PET_RDZV_BACKEND": "trainwarden", "PET_MAX_RESTARTS": "2"}, [], None),
    ],
)
def test_failures_are_counted_by_the_service_unless_somebody_said_otherwise(monkeypatch, environ, words, preset):
    for name in ("PET_RDZV_BACKEND", "PET_MAX_RESTARTS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["torchrun", *words])
    assert callable(torchrun.handler())
    import os

    expected = {True: torchrun.MAX_RESTARTS, False: None, None: "2"}[preset]
    assert os.environ.get("PET_MAX_RESTARTS") == expected
