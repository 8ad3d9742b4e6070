"""What every collector of the CATALOG keeps to (`trainwarden.testing`), and that CATALOG and folder agree."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

from trainwarden import collectors, plugins
from trainwarden.collectors import CATALOG, ENTRY_POINTS
from trainwarden.testing.collector import CHECKS, Case

# Settings under which a collector finds nothing of what it looks for.
ABSENT: dict[str, dict[str, Any]] = {
    "nic": {"sysfs": "/nonexistent"},
    "host": {"proc": "/nonexistent"},
    "stacks": {"command": "nonexistent"},
    "logs": {"kmsg_path": "/nonexistent/kmsg"},
}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    for folder in ("hook", "logs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "logs" / "rank-0.log").write_text("one\ntwo\n")
    return tmp_path


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", sorted(CATALOG))
def test_contract(name: str, check: Any, run_dir: Path) -> None:
    case = Case(plugins.load(CATALOG, ENTRY_POINTS, name), run_dir, absent=ABSENT.get(name, {}))
    check(case)
    if check.__name__ in {"its_position_survives_a_restart", "what_it_yields_fits"} and (reason := case.there()):
        pytest.skip(reason)


def test_catalog_and_folder_agree() -> None:
    folder = Path(inspect.getfile(collectors)).parent
    found = set()
    for path in folder.rglob("[!_]*.py"):
        module = importlib.import_module(".".join(path.relative_to(folder.parents[1]).with_suffix("").parts))
        for attribute, value in vars(module).items():
            if inspect.isclass(value) and value.__module__ == module.__name__ and hasattr(value, "collect"):
                found.add(f"{module.__name__}:{attribute}")
    assert found == set(CATALOG.values())
