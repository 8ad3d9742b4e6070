"""The rules of the house, each a function from a checkout to what breaks it; nothing is imported, files are read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

PACKAGES: Final = ("trainwarden", "collectors", "detectors", "trainer_offline", "actions", "dashboards")
MOST_LINES: Final = 300
MOST_FILES: Final = 15
MOST_FUNCTION_LINES: Final = 40
MOST_POSITIONAL: Final = 5
_FIRST: Final = re.compile(r"\bRead\s+`([\w.]+)`\s+first\b")

Graph = dict[str, frozenset[str]]


@dataclass(frozen=True)
class Module:
    """One file of the house."""

    name: str
    path: Path
    is_package: bool
    source: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """Its room: the folder (or file) below the package that it lies in, such as ``detectors.pace``."""
        return ".".join(self.name.split(".")[:2])


@cache
def modules(root: Path) -> dict[str, Module]:
    """Every file of the packages by its import name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            name = ".".join(parts[:-1] if is_package else parts)
            source = path.read_text(encoding="utf-8")
            found[name] = Module(name, path, is_package, source, ast.parse(source))
    return found


def imports(house: dict[str, Module]) -> Graph:
    """Which file imports which: also within functions, also for types alone, and the packages on the way to each."""
    return {
        name: frozenset(target for found in _imported(module) for target in _on_the_way(found, house)) - {name}
        for name, module in house.items()
    }


def _imported(module: Module) -> Iterator[str]:
    """Dotted names that a file's import statements may mean: ``from a import b`` is either ``a`` or ``a.b``."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = module.name.split(".") if module.is_package else module.name.split(".")[:-1]
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _on_the_way(name: str, house: dict[str, Module]) -> Iterator[str]:
    """Files that Python runs for ``import name``: every package above it, then itself."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        if ".".join(parts[:end]) in house:
            yield ".".join(parts[:end])


def between_rooms(graph: Graph, house: dict[str, Module]) -> Graph:
    """The same between rooms."""
    found: dict[str, set[str]] = {module.room: set() for module in house.values()}
    for name, targets in graph.items():
        found[house[name].room] |= {house[target].room for target in targets} - {house[name].room}
    return {room: frozenset(targets) for room, targets in found.items()}


def circles(graph: Graph) -> list[str]:
    """Groups in which everyone reaches everyone else, as ``a <-> b <-> c``."""
    reach: dict[str, set[str]] = {}
    for start in graph:
        seen: set[str] = set()
        waiting = list(graph[start])
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                waiting += graph[one]
        reach[start] = seen
    groups = {tuple(sorted(other for other in reach[one] if one in reach[other])) for one in graph if one in reach[one]}
    return sorted(" <-> ".join(group) for group in groups)


def circles_of_files(root: Path) -> list[str]:
    """Files that import each other, directly or by way of others."""
    return circles(imports(modules(root)))


def circles_of_rooms(root: Path) -> list[str]:
    """Rooms that import each other."""
    house = modules(root)
    return circles(between_rooms(imports(house), house))


def long_files(root: Path) -> list[str]:
    """Files of more than 300 lines."""
    return [one.name for one in modules(root).values() if one.source.count("\n") > MOST_LINES]


def full_folders(root: Path) -> list[str]:
    """Folders with more than 15 files, their ``__init__.py`` not counted."""
    counts: dict[str, int] = {}
    for one in modules(root).values():
        if not one.is_package:
            folder = one.name.rpartition(".")[0]
            counts[folder] = counts.get(folder, 0) + 1
    return [folder for folder, files in counts.items() if files > MOST_FILES]


def _functions(module: Module) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function of a file under its name with the classes and functions around it."""

    def within(node: ast.AST, lead: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{lead}.{child.name}"
                if not isinstance(child, ast.ClassDef):
                    yield name, child
                yield from within(child, name)
            else:
                yield from within(child, lead)

    yield from within(module.tree, module.name)


def long_functions(root: Path) -> list[str]:
    """Functions of more than 40 lines, docstring and signature not counted."""
    found = []
    for module in modules(root).values():
        for name, node in _functions(module):
            body = node.body[1:] if ast.get_docstring(node, clean=False) is not None else node.body
            if body and (node.end_lineno or 0) - body[0].lineno + 1 > MOST_FUNCTION_LINES:
                found.append(name)
    return found


def many_parameters(root: Path) -> list[str]:
    """Functions with more than 5 positional parameters, ``self`` and ``cls`` not counted."""
    found = []
    for module in modules(root).values():
        for name, node in _functions(module):
            positional = [one.arg for one in (*node.args.posonlyargs, *node.args.args)]
            if len([one for one in positional if one not in ("self", "cls")]) > MOST_POSITIONAL:
                found.append(name)
    return found


def rooms_without_a_door(root: Path) -> list[str]:
    """Rooms whose docstring does not say ``Read `FILE` first`` of a file that lies in them."""
    house = modules(root)
    found = []
    for one in house.values():
        if one.is_package and "." in one.name:
            named = _FIRST.search(ast.get_docstring(one.tree) or "")
            if named is None or named[1] not in house or not named[1].startswith(f"{one.name}."):
                found.append(one.name)
    return found
