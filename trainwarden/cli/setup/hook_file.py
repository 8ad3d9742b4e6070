"""The hook as one file, for those who copy it into an image: made from the package, never edited by hand.

The modules of ``trainwarden/hook`` follow each other, each after those it imports, without the imports between them.
That works as long as a name means one thing in all of them, which is checked here.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from trainwarden import __version__

_PACKAGE = Path(__file__).parents[2] / "hook"


def text(package: Path = _PACKAGE) -> str:
    """The hook's package as one Python file; the same package always gives the same text.

    Parameters
    ----------
    package : Path
        Folder of the sources; another one than the hook's is of use to tests only.

    Returns
    -------
    str
        Source that imports the standard library alone.

    Raises
    ------
    ValueError
        Its modules import something else, import each other in a circle, or mean two things by one name.

    Examples
    --------
    >>> source = text()
    >>> namespace = {"__name__": "trainwarden_hook"}
    >>> exec(compile(source, "trainwarden_hook.py", "exec"), namespace)
    >>> namespace["MicroBatchPlan"](0, 4, 10).adopt(0)
    (3, 3, 2, 2)
    """
    modules = _modules(package)
    _check_names(modules)
    parts = [f"{_preface(modules[''])}\n\n{_imports(modules)}"]
    for name in _order(modules):
        title = f"# {'-' * 16} {name or 'what people and torch call'}"
        why = [f"# {line}".rstrip() for line in modules[name].docstring.splitlines()] if name else []
        parts += ["\n".join([title, *why]), modules[name].body()]
    return "\n\n\n".join(parts) + "\n"


@dataclass(frozen=True, slots=True)
class _Module:
    """One source file: its name as ``watches.calls``, the package itself as ``""``."""

    name: str
    source: str
    tree: ast.Module
    is_package: bool

    @property
    def docstring(self) -> str:
        return ast.get_docstring(self.tree) or ""

    def imports(self) -> Iterator[ast.Import | ast.ImportFrom]:
        """Those of the top level; deeper ones stay where they are, so they must not be of ours."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                if node in self.tree.body:
                    yield node
                elif isinstance(node, ast.ImportFrom) and node.level:
                    raise ValueError(f"{self.name}, line {node.lineno}: an import of ours that is not on top")

    def of_ours(self) -> Iterator[tuple[str, ast.ImportFrom]]:
        """Imports within the package, each with the name of the module that it takes from."""
        here = self.name.split(".") if self.name else []
        for node in self.imports():
            if isinstance(node, ast.ImportFrom) and node.level:
                base = here[: len(here) - node.level + self.is_package]
                yield ".".join([*base, *filter(None, [node.module])]), node

    def bound(self) -> set[str]:
        """Names that the module gives a meaning itself."""
        names: set[str] = set()
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif not isinstance(node, ast.Import | ast.ImportFrom):
                parts = (part for part in ast.walk(node) if isinstance(part, ast.Name))
                names |= {part.id for part in parts if isinstance(part.ctx, ast.Store)}
        return names

    def body(self) -> str:
        """The source without docstring and imports, comments kept."""
        gone: set[int] = set()
        for number, node in enumerate(self.tree.body):
            docstring = number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if docstring or isinstance(node, ast.Import | ast.ImportFrom):
                gone.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        lines = enumerate(self.source.splitlines(), start=1)
        return "\n".join(line for number, line in lines if number not in gone).strip("\n")


def _modules(package: Path) -> dict[str, _Module]:
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        source = path.read_text(encoding="utf-8")
        found[name] = _Module(name, source, ast.parse(source), is_package)
    return found


def _order(modules: dict[str, _Module]) -> list[str]:
    """Each module after those it imports; among equals by name, the package's own last."""
    sorter = TopologicalSorter({name: {needed for needed, _ in modules[name].of_ours()} for name in modules})
    sorter.add("", *(name for name in modules if name))
    try:
        sorter.prepare()
    except CycleError as error:
        raise ValueError(f"modules of the hook import each other: {error.args[1]}") from None
    order: list[str] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        order.extend(ready)
        sorter.done(*ready)
    return order


def _check_names(modules: dict[str, _Module]) -> None:
    """One name, one meaning: who binds it, or where it is imported from."""
    meanings: dict[str, str] = {}
    for name, module in modules.items():
        here = dict.fromkeys(module.bound(), f"of {name}")
        for node in module.imports():
            for alias in node.names:
                if isinstance(node, ast.Import):
                    here[alias.asname or alias.name] = f"import {alias.name}"
                elif not node.level:
                    here[alias.asname or alias.name] = f"{alias.name} from {node.module}"
        for needed, node in module.of_ours():
            if needed not in modules or any(alias.asname for alias in node.names):
                raise ValueError(f"{name}, line {node.lineno}: only names of the hook, and under their own name")
        for bound, meaning in here.items():
            if meanings.setdefault(bound, meaning) != meaning:
                raise ValueError(f"{bound} means two things: {meanings[bound]}, {meaning}")


def _imports(modules: dict[str, _Module]) -> str:
    """All imports from elsewhere, merged; what is not of the standard library is refused."""
    plain: set[str] = set()
    taken: dict[str, set[str]] = {}
    for module in modules.values():
        for node in module.imports():
            names = {f"{alias.name} as {alias.asname}" if alias.asname else alias.name for alias in node.names}
            if isinstance(node, ast.Import):
                plain |= names
            elif not node.level:
                taken.setdefault(node.module or "", set()).update(names)
    taken.pop("__future__", None)
    foreign = {name.partition(".")[0] for name in [*plain, *taken]} - sys.stdlib_module_names
    if foreign:
        raise ValueError(f"the hook imports {', '.join(sorted(foreign))}")
    lines = [f"import {name}" for name in sorted(plain)]
    lines += [f"from {name} import {', '.join(sorted(names))}" for name, names in sorted(taken.items())]
    return "from __future__ import annotations\n\n" + "\n".join(lines)


def _preface(package: _Module) -> str:
    made = f"The hook of trainwarden {__version__} in one file, made by `trainwarden hook`: not to be edited."
    return f'"""{made}\n\n{package.docstring}\n"""'
