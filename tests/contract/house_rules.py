"""The rules of the house, each a function from a checkout to what breaks it; nothing is imported, files are read."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from tests.house import CORE, PACKAGES, circles, imports, modules, parsed, rooms

MOST_LINES: Final = 500
MOST_FILES: Final = 20
MOST_FUNCTION_LINES: Final = 40
MOST_POSITIONAL: Final = 5
_FIRST: Final = re.compile(r"\bRead\s+`([\w.]+)`\s+first\b")
_BY_FOLDER: Final = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(set(PACKAGES) - {CORE})})\b", re.MULTILINE)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def circles_of_files(root: Path) -> list[str]:
    """Files that import each other, directly or by way of others, as ``a <-> b``."""
    return sorted(" <-> ".join(circle) for circle in circles(_graph(root)[1]))


def circles_of_rooms(root: Path) -> list[str]:
    """Rooms that import each other."""
    known, graph = _graph(root)
    return sorted(" <-> ".join(circle) for circle in circles(rooms(graph, known)))


def long_files(root: Path) -> list[str]:
    """Files of more than 500 lines."""
    return [name for name, path in _files(root) if path.read_text(encoding="utf-8").count("\n") > MOST_LINES]


def full_folders(root: Path) -> list[str]:
    """Folders with more than 20 files, their ``__init__.py`` not counted."""
    folders: dict[str, int] = {}
    for name, _ in _files(root):
        folder, _, file = name.rpartition("/")
        folders[folder] = folders.get(folder, 0) + (file != "__init__.py")
    return [folder for folder, files in folders.items() if files > MOST_FILES]


def long_functions(root: Path) -> list[str]:
    """Functions of more than 40 lines, signature and docstring not counted."""
    found = []
    for name, node in _functions(root):
        body = node.body[ast.get_docstring(node, clean=False) is not None :]
        if body and (node.end_lineno or 0) - body[0].lineno + 1 > MOST_FUNCTION_LINES:
            found.append(name)
    return found


def many_parameters(root: Path) -> list[str]:
    """Functions with more than 5 positional parameters, ``self`` and ``cls`` not counted."""
    found = []
    for name, node in _functions(root):
        positional = {one.arg for one in (*node.args.posonlyargs, *node.args.args)} - {"self", "cls"}
        if len(positional) > MOST_POSITIONAL:
            found.append(name)
    return found


def rooms_without_a_door(root: Path) -> list[str]:
    """Rooms whose docstring does not say ``Read `FILE` first`` of a file that lies in them."""
    known = modules(root)
    found = []
    for name, path in known.items():
        if path.name == "__init__.py" and path.parent.parent != root:
            named = _FIRST.search(ast.get_docstring(parsed(path)) or "")
            if named is None or named[1] not in known or not named[1].startswith(f"{name}."):
                found.append(name)
    return found


def imports_by_the_folder(root: Path) -> list[str]:
    """Files that name a package by its folder: where a clone is the working directory there would be two of it."""
    folders = [*PACKAGES, "tests", "docker", "examples"]
    paths = [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]
    return [str(path.relative_to(root)) for path in paths if _BY_FOLDER.search(path.read_text(encoding="utf-8"))]


@cache
def _graph(root: Path) -> tuple[dict[str, Path], dict[str, set[str]]]:
    """The modules of a checkout, and who imports whom."""
    known = modules(root)
    return known, imports(known)


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """Every file of the packages by its name."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            yield str(path.relative_to(root)), path


def _functions(root: Path) -> Iterator[tuple[str, Function]]:
    """Every function under its file's name and those of the classes and functions around it."""

    def within(node: ast.AST, lead: str) -> Iterator[tuple[str, Function]]:
        for child in ast.iter_child_nodes(node):
            named = isinstance(child, ast.ClassDef | Function)
            name = f"{lead}{'.' if '::' in lead else '::'}{child.name}" if named else lead
            if isinstance(child, Function):
                yield name, child
            yield from within(child, name)

    for name, path in _files(root):
        yield from within(parsed(path), name)
