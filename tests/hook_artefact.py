"""A plug-in for pytest: every test of that run finds the one-file hook where it looks for the package.

``python -m pytest -p tests.hook_artefact ...`` with the file's path in ``HOOK_ARTEFACT``. The file stands in for
``trainwarden.hook`` and for each of its modules, so tests import a part from its room in both forms.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import trainwarden

PACKAGE = Path(trainwarden.__file__).with_name("hook")


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("trainwarden.hook", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["trainwarden.hook"] = module
    for source in PACKAGE.rglob("*.py"):
        parts = source.relative_to(PACKAGE.parent).with_suffix("").parts
        sys.modules[".".join(["trainwarden", *(part for part in parts if part != "__init__")])] = module
    spec.loader.exec_module(module)
    trainwarden.hook = module  # type: ignore[attr-defined]
    return module


assert "trainwarden.hook" not in sys.modules, "somebody has imported the package before"
ARTEFACT = _load(Path(os.environ["HOOK_ARTEFACT"]))


def pytest_sessionfinish() -> None:
    """Nobody has put the package back."""
    hooks = {id(module) for name, module in sys.modules.items() if f"{name}.".startswith("trainwarden.hook.")}
    assert hooks == {id(ARTEFACT)}
