"""The chart of docs/architecture.md: packages, who imports whom, and the way of one sample.

``python -m tests.house`` prints it, ``--write`` puts it into the page. Rooms and arrows are read from the code; the
stations of the sample are named below, and each must exist.
"""

from __future__ import annotations

import argparse
import ast
from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final

from tests.places import ROOT

PACKAGES: Final = ("trainwarden", "collectors", "detectors", "trainer_offline", "actions", "dashboards")
"""The top-level folders. All but the first are packages below it, by its links to them."""
PAGE: Final = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- drawn by `make house` -->\n", "<!-- end of the drawing -->\n"
CORE: Final = "trainwarden"
"""The files directly in `trainwarden` are one room, the base that every package imports."""

PATH: Final = (
    ("trainwarden.hook:autoload", "a training process keeps its steps in shared memory"),
    ("trainwarden.collectors.iterations.collector:IterationsCollector", "a collector reads them"),
    ("trainwarden.collectors.agent.agent:Agent", "the agent stamps, vets and counts"),
    ("trainwarden.collectors.agent.delivery:Delivery", "to the bus, by way of the disk while the bus is away"),
    ("trainwarden.bus.address:connect", "the bus keeps it"),
    ("trainwarden.service_loop:ServiceLoop", "poll, handle, publish, flush, then commit"),
    ("trainwarden.detectors.job.state:JobState", "into the job's ring arrays; a window is cut"),
    ("trainwarden.detectors.peers.peer_deviation:PeerDeviation", "every detector scores the window, all ranks at once"),
    ("trainwarden.detectors.verdict.ensemble:Ensemble", "votes become a verdict"),
    ("trainwarden.detectors.verdict.incidents:IncidentTracker", "verdicts of one cause become one incident"),
    ("trainwarden.actions.engine.handler:EngineHandler", "an incident becomes a plan; `started` is kept before acting"),
    ("trainwarden.actions.launchers.torchrun.client:TorchrunLauncher", "the launcher does it once, by its id"),
)


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module of the product by its dotted name."""
    found = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            if not (path.parent / "__init__.py").exists():
                continue  # `inject` is a folder for PYTHONPATH, not a package
            parts = path.relative_to(root).with_suffix("").parts
            parts = parts if package == CORE else (CORE, *parts)
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(known: Mapping[str, Path]) -> dict[str, set[str]]:
    """Which modules each module imports, at its top, in its functions and for its types alike.

    Packages on the way to a module count as well, since Python runs their ``__init__.py`` first; those that the
    module lies in count only if it asks for something of theirs: they are being run when its turn comes.
    """
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        found: set[str] = set()
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                base = ".".join([*_above(name, path, node.level), *([node.module] if node.module else [])])
                found |= {f"{base}.{alias.name}" for alias in node.names}  # a name in `base`, or a module
        ways = [[way for way in _on_the_way(one) if way in known] for one in found]
        passed = {way for one in ways for way in one[:-1]} - set(_on_the_way(name))
        graph[name] = (passed | {one[-1] for one in ways if one}) - {name}
    return graph


def _above(name: str, path: Path, level: int) -> list[str]:
    """What the dots of a relative import stand for."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    return package[: len(package) - level + 1] if level else []


def _on_the_way(name: str) -> list[str]:
    return list(accumulate(name.split("."), lambda above, part: f"{above}.{part}"))


def room_of(module: str, known: Mapping[str, Path]) -> str:
    """The folder that `module` lies in, at most two deep, as that of ``detectors/pace``; a file beside is its own."""
    if folder_of(module) != CORE:
        return ".".join(module.split(".")[:3])
    parts = module.split(".")
    if len(parts) == 2 and known[module].name not in {"__init__.py", "__main__.py"}:
        return CORE
    return ".".join(parts[:2])


def folder_of(module: str) -> str:
    """The top-level folder that `module` lies in."""
    second = module.split(".")[1:2]
    return second[0] if second and second[0] in PACKAGES else CORE


def rooms(graph: Mapping[str, Iterable[str]], known: Mapping[str, Path]) -> dict[str, set[str]]:
    """Which rooms each room imports from."""
    found: dict[str, set[str]] = {room_of(name, known): set() for name in graph}
    for name, others in graph.items():
        found[room_of(name, known)] |= {room_of(other, known) for other in others} - {room_of(name, known)}
    tables = {f"{CORE}.{folder}" for folder in PACKAGES}  # a package's own __init__ is a table of names, not a room
    return {room: others - tables for room, others in found.items() if room not in tables}


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Sets of nodes that reach each other (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    out: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            circle = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(circle) > 1:
                out.append(sorted(circle))

    for node in graph:
        if node not in index:
            visit(node)
    return out


def reduced(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """`graph` without the arrows that follow from others."""
    reach: dict[str, set[str]] = defaultdict(set)

    def reached(node: str) -> set[str]:
        if node not in reach:
            reach[node] = set().union(*({other} | reached(other) for other in graph.get(node, ())), set())
        return reach[node]

    return {
        node: {other for other in others if not any(other in reached(step) for step in others - {other})}
        for node, others in graph.items()
    }


def part_of(room: str) -> str:
    """The part of the chart that `room` belongs to: a top-level folder, or a package of the core by itself."""
    return folder_of(room) if folder_of(room) != CORE else room.replace(".", "_")


def collapsed(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """`graph` with one node for each top-level folder but the core, whose packages stay apart."""
    found: dict[str, set[str]] = {part_of(room): set() for room in graph}
    for room, others in graph.items():
        found[part_of(room)] |= {part_of(other) for other in others} - {part_of(room)}
    return found


def purpose(module: str) -> str:
    """The first sentence of a module's docstring."""
    text = ast.get_docstring(parsed(modules()[module])) or ""
    return text.split("\n")[0]


def drawing() -> str:
    """The block of the page: a Mermaid flow chart, the packages in words, and the sample's stations."""
    known = modules()
    graph = rooms(imports(known), known)
    lines = ["```mermaid", "flowchart TB"]
    arrows = collapsed(graph)
    lines += [f"  {part}[{_label(part)}]" for part in arrows]
    arrows = reduced({part: others - {CORE} for part, others in arrows.items()})  # every part imports the base
    lines += [f"  {a} --> {' & '.join(sorted(arrows[a]))}" for a in arrows if arrows[a]]
    lines += _way(known)
    lines += ["```", "", "| package | purpose |", "| --- | --- |"]
    lines += [f"| `{_path(room, known)}` | {purpose(room)} |" for room in graph]
    lines += ["", "One sample, from a training process to an action:", ""]
    for number, (place, what) in enumerate(PATH, 1):
        module, _, name = place.partition(":")
        if not hasattr(import_module(module), name):
            raise LookupError(f"{place} is no longer there")
        lines.append(f"{number}. `{known[module].relative_to(ROOT)}` (`{name}`): {what}")
    return "\n".join(lines) + "\n"


def _way(known: Mapping[str, Path]) -> list[str]:
    """Thick, numbered arrows from station to station of the sample."""
    stations = [part_of(room_of(place.partition(":")[0], known)) for place, _ in PATH]
    pairs = enumerate(pairwise(stations), 2)
    return [f"  {a} ==>|{number}| {b}" for number, (a, b) in pairs if a != b]


def _path(room: str, known: Mapping[str, Path]) -> str:
    path = known[room].relative_to(ROOT)
    return f"{path.parent}/" if path.name == "__init__.py" else str(path)


def _label(part: str) -> str:
    return "base" if part == CORE else part.removeprefix(f"{CORE}_")


def page() -> str:
    """The page with the drawing of today."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + "\n" + drawing() + "\n" + END + after


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--write", action="store_true", help="put the drawing into docs/architecture.md")
    if asked.parse_args().write:
        PAGE.write_text(page(), encoding="utf-8")
    else:
        print(drawing(), end="")
