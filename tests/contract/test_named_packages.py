"""What the extras ask for is used by the product: each package that they name is imported by a module of ours."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Final

import pytest

from tests.house import PACKAGES
from tests.places import ROOT

# What the design is built with, and where at least one module of the product uses it.
NAMED: Final = {
    "pandas": "trainer_offline", "ruptures": "trainer_offline", "stumpy": "trainer_offline",
    "tslearn": "trainer_offline", "sklearn": "detectors", "mlflow": "trainer_offline",
    "torch": "actions", "pynvml": "collectors", "kafka": "trainwarden", "prometheus_client": "trainwarden",
}  # fmt: skip
# Loaded by others for us, by name: sums and compression of Kafka's records, and what uvicorn speaks.
BY_OTHERS: Final = {"crc32c": "kafka", "lz4": "kafka", "zstandard": "kafka", "h11": "uvicorn", "openpyxl": "pandas"}
DEV: Final = ("dev", "all")


@cache
def importers() -> dict[str, list[str]]:
    """Modules of the product by the package that they import, within functions too; not what is for types alone."""
    found: dict[str, list[str]] = {}
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for name in imported(path):
            found.setdefault(name.partition(".")[0], []).append(path.relative_to(ROOT).as_posix())
    return found


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    for_types = {id(inner) for node in typing for part in node.body for inner in ast.walk(part)}
    names: set[str] = set()
    for node in (node for node in ast.walk(tree) if id(node) not in for_types):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module") and node.args:
            argument = node.args[0]
            names |= (
                {argument.value} if isinstance(argument, ast.Constant) and isinstance(argument.value, str) else set()
            )
    return names


def asked() -> dict[str, set[str]]:
    """Import names by the requirement that brings them, of the base and of every extra but those for developers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [one for name, part in project["optional-dependencies"].items() if name not in DEV for one in part]
    names = {re.split(r"[\s\[<>=!~;]", one)[0].lower() for one in [*project["dependencies"], *extras]} - {"trainwarden"}
    found: dict[str, set[str]] = {name: set() for name in names}
    for module, distributions in packages_distributions().items():
        for name in {re.sub(r"[-_.]+", "-", one).lower() for one in distributions} & names:
            found[name].add(module)
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("package", NAMED)
def test_the_product_is_built_with_what_its_design_names(package: str) -> None:
    assert [one for one in importers().get(package, []) if one.startswith(f"{NAMED[package]}/")] != []


@pytest.mark.thorough
def test_no_extra_asks_for_what_nobody_uses() -> None:
    used = set(importers()) | {name for name, loader in BY_OTHERS.items() if loader in importers()}
    unused = sorted(name for name, modules in asked().items() if modules and not modules & used)
    assert unused == []
