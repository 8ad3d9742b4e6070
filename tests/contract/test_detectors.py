"""What every detector of the CATALOG must do: `trainwarden.detectors.testing.checks`, and our own house."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.places import ROOT
from trainwarden import detectors, plugins
from trainwarden.detectors import CATALOG, ENTRY_POINTS
from trainwarden.detectors.configured_detectors import chosen
from trainwarden.detectors.testing import checks
from trainwarden.detectors.testing.checks import Case
from trainwarden.errors import DetectorError
from trainwarden.settings import DetectionSettings

FOLDER = Path(detectors.__file__).parent
every_detector = pytest.mark.parametrize("name", CATALOG)


def of(name: str) -> type[Any]:
    return plugins.load(CATALOG, ENTRY_POINTS, name)


def calm(plugin: type[Any]) -> msgspec.Struct | None:
    """One model may err alone now and then (the rule asks for two): in calm it is asked about the clear cases."""
    return plugin.Config(threshold=0.55) if plugin.role.reads == "scores" else None


@pytest.mark.thorough
@pytest.mark.parametrize("check", checks.CHECKS, ids=lambda check: check.__name__)
@every_detector
def test_contract(name: str, check: Any) -> None:
    plugin = of(name)
    check(Case(plugin, calm(plugin) if check is checks.it_is_calm_while_all_is_well else None))


def test_table_and_folder_agree() -> None:
    """A class that has `update`, `score`, `state` and `restore` is in the table, and the other way round."""
    found = set()
    for path in FOLDER.rglob("[!_]*.py"):
        module = importlib.import_module(".".join(path.relative_to(FOLDER.parents[1]).with_suffix("").parts))
        for attribute, value in vars(module).items():
            own = inspect.isclass(value) and value.__module__ == module.__name__ and attribute[0] != "_"
            if own and all(
                callable(getattr(value, method, None)) for method in ("update", "score", "state", "restore")
            ):
                found.add(f"{module.__name__}:{attribute}")
    shared = {"trainwarden.detectors.protocol:Detector", "trainwarden.detectors.metrics.vote:ModelVote"}
    assert found - shared == set(CATALOG.values())


def test_what_runs_by_default_is_the_table() -> None:
    assert list(chosen(DetectionSettings())) == [
        name for name in CATALOG if not isinstance(CATALOG[name], plugins.OptIn)
    ]


@every_detector
def test_its_page_is_in_the_documentation(name: str) -> None:
    assert f"`{name}`" in (ROOT / "docs" / "detection.md").read_text(encoding="utf-8")


@every_detector
def test_the_state_of_another_detector_is_refused(name: str) -> None:
    other = next(one for one in CATALOG if one != name)
    state = Case(of(other)).made().state()
    with pytest.raises(DetectorError):
        Case(of(name)).made().restore(state)
