"""`trainwarden bench`: how fast and how good it is on this machine, beside named peers."""

from __future__ import annotations

import importlib
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

import typer

from trainwarden.cli.shared.machine import CHECKOUT, one_blas_thread
from trainwarden.cli.shared.options import Json
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Parts of names, or a whole topic like planners.")
    ] = None,
    *,
    json: Json = None,
    table: Annotated[Path | None, typer.Option(metavar="FILE.md", help="Write the tables as Markdown.")] = None,
) -> int:
    """Measure speed, overhead and quality of detection, each beside a named peer where there is one.

    Example: trainwarden bench hook codec
    """
    voice = Voice(json)
    if table is not None and not (table.absolute().parent.is_dir() and os.access(table.absolute().parent, os.W_OK)):
        raise ConfigError(f"--table: folder '{table.absolute().parent}' does not exist or may not be written to")
    rows: list[dict[str, Any]] = []
    tables: list[dict[str, Any]] = []
    shown: dict[str, str] = {}
    for row, asked in _measured(names or [], voice):
        tables += row.pop("tables", [])
        shown |= {form: row.pop(form) for form in ("text", "markdown") if form in row}
        if asked:
            rows.append(row)
            voice.say(_line(row))
    if not rows:
        raise ConfigError(f"bench: no benchmark is called {' or '.join(names or [])}")
    if shown:
        voice.say(f"\n{shown['text']}\n")
    if table is not None:
        _write_table(table, shown.get("markdown"))
    more = {"tables": tables} if tables else {}
    voice.answer({"machine": _machine(), "benchmarks": rows, **more})
    return 1 if any(row["holds"] is False for row in rows) else 0


def _measured(names: Sequence[str], voice: Voice) -> Iterator[tuple[dict[str, Any], bool]]:
    """Every row of the files that hold one of `names` (all without names), and whether it was asked for.

    Raises
    ------
    ConfigError
        If the benchmarks are not here.
    """
    files = sorted((CHECKOUT / "tests" / "benchmarks").glob("bench_*.py"))
    if not files:
        raise ConfigError("bench: the benchmarks live in the repository; run this from a clone of it")
    sys.path.insert(0, str(CHECKOUT))
    one_blas_thread()  # as the services run
    for file in files:
        module: ModuleType = importlib.import_module(f"tests.benchmarks.{file.stem}")
        wanted = _wanted(file.stem.removeprefix("bench_"), module.NAMES, names)
        if not wanted:
            continue
        voice.say(f"running {file.stem} ...")
        # Those with tables work out only what is asked for, and say how far they are.
        run = module.benchmarks(wanted, voice.say) if hasattr(module, "TABLES") else module.benchmarks()
        for row in run:
            yield row, row["name"] in wanted


def _wanted(topic: str, there_are: Sequence[str], words: Sequence[str]) -> list[str]:
    """Which of the benchmarks of a file about `topic` are asked for by `words`; without words all.

    Examples
    --------
    >>> _wanted("planners", ["microbatch_ms", "cluster_ms"], ["planners"])
    ['microbatch_ms', 'cluster_ms']
    >>> _wanted("planners", ["microbatch_ms", "cluster_ms"], ["cluster", "hook"])
    ['cluster_ms']
    """
    return [name for name in there_are if not words or topic in words or any(word in name for word in words)]


def _machine() -> dict[str, Any]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {"cores": os.cpu_count(), "memory_bytes": memory, "python": platform.python_version()}


def _write_table(target: Path, markdown: str | None) -> None:
    if markdown is None:
        raise ConfigError("--table: none of these benchmarks has a table")
    try:
        target.write_text(markdown)
    except OSError as error:
        raise ConfigError(f"--table: '{target}' cannot be written ({error.strerror})") from error


def _line(row: dict[str, Any]) -> str:
    verdict = {True: "holds", False: "DOES NOT HOLD", None: "no bar"}[row["holds"]]
    value = f"{row['value']:.4g} {row['unit']}" if row["value"] is not None else "skipped"
    if row["value"] is None and row.get("skipped"):
        value += f", {row['skipped']}"
    line = f"{row['name']}: {value} (bar {row['bar']}, {verdict})"
    if row.get("peer") and row["peer"]["value"] is not None:
        line += f"; {row['peer']['name']} {row['peer']['version']}: {row['peer']['value']:.4g}"
        line += f", ratio {row['ratio']:.2f}" if row["ratio"] is not None else ""
    return line
