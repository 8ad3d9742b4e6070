"""`check-config`, `doctor`, `plan`, `bench`: questions that are answered at once."""

from __future__ import annotations

import importlib
import os
import platform
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from trainwarden import plugins
from trainwarden.bus import address as buses
from trainwarden.cli.output import Voice, check_json_target, write_json
from trainwarden.errors import ConfigError, WardenError
from trainwarden.protocols import Scope
from trainwarden.settings import Settings, load

MAX_CLOCK_STEP_S = 1.0  # more between two reads of one machine's clock means that it jumps


def check_config(path: Path) -> int:
    """Check a settings file, its plug-ins' parts included; the first mistake is one sentence and exit code 2."""
    _check_plugins(load(path))
    Voice().say(f"{path}: fine")
    return 0


def _check_plugins(settings: Settings) -> None:
    import collectors
    import detectors
    from actions import launchers
    from actions.engine.policy import PolicyConfig
    from detectors.verdict.ensemble import EnsembleConfig
    from trainwarden.settings import parse

    tables = (
        (collectors.CATALOG, collectors.ENTRY_POINTS, settings.agent.collectors, "agent.collectors"),
        (detectors.CATALOG, detectors.ENTRY_POINTS, settings.detection.detectors, "detection.detectors"),
        (
            launchers.CATALOG,
            launchers.ENTRY_POINTS,
            {settings.engine.launcher: settings.engine.launcher_settings},
            "engine.launcher",
        ),
    )
    for catalog, group, wanted, where in tables:
        for name, raw in wanted.items():
            plugins.configure(plugins.load(catalog, group, name), raw, f"{where}.{name}")
    parse(EnsembleConfig, settings.detection.ensemble, "detection.ensemble")
    parse(PolicyConfig, settings.engine.policy, "engine.policy")


def doctor(*, config: Path | None, json: str | None) -> int:
    """Is everything reachable, permitted and in time; 1 if something that is needed is not."""
    check_json_target(json)
    voice = Voice(json)
    settings = load(config)
    checks = [_check_bus(settings), _check_clock(), _check_shm(), *_check_collectors(settings)]
    for check in checks:
        voice.say(f"{check['state']:>5}  {check['name']}: {check['what']}")
    write_json({"checks": checks}, json)
    return 1 if any(check["state"] == "bad" for check in checks) else 0


def _row(name: str, state: str, what: str) -> dict[str, str]:
    return {"name": name, "state": state, "what": what}


def _check_bus(settings: Settings) -> dict[str, str]:
    """Whether the bus answers; an embedded one that does not exist yet is not made by asking."""
    scheme, _, place = settings.bus.partition(":")
    if scheme == "embedded" and not Path(place).exists():
        usable = os.access(Path(place).absolute().parent, os.W_OK)
        what = "does not exist yet; the first service makes it" if usable else "its folder may not be written to"
        return _row("bus", "note" if usable else "bad", f"{settings.bus}: {what}")
    try:
        buses.connect(settings.bus, settings.kafka).close()
    except WardenError as error:
        return _row("bus", "bad", f"{settings.bus}: {error}")
    return _row("bus", "fine", settings.bus)


def _check_clock() -> dict[str, str]:
    wall_s, steady_s = time.time(), time.monotonic()
    time.sleep(0.05)
    drift_s = abs((time.time() - wall_s) - (time.monotonic() - steady_s))
    state = "fine" if drift_s < MAX_CLOCK_STEP_S else "bad"
    return _row("clock", state, f"wall and steady clock differ by {drift_s * 1000:.1f} ms over 50 ms")


def _check_shm() -> dict[str, str]:
    usable = os.access("/dev/shm", os.W_OK)
    what = "/dev/shm holds the hook's files" if usable else "/dev/shm may not be written: hook files go to disk"
    return _row("tmpfs", "fine" if usable else "note", what)


def _check_collectors(settings: Settings) -> list[dict[str, str]]:
    import collectors
    from trainwarden.clock import SystemClock

    scope = Scope(job=settings.job, node=settings.node, run_dir=settings.run_dir or ".")
    rows = []
    for name, raw in settings.agent.collectors.items():
        plugin = plugins.load(collectors.CATALOG, collectors.ENTRY_POINTS, name)
        collector = plugin(plugins.configure(plugin, raw, f"agent.collectors.{name}"), scope, SystemClock())
        reason = collector.supported()
        collector.close()
        rows.append(_row(f"collector {name}", "fine" if reason is None else "note", reason or "supported here"))
    return rows


def plan_microbatches(source: str, json: str | None) -> int:
    """Solve ``{"micro_batch_s": [...], "total": M}`` read from `source` (a file, or ``-`` for standard input).

    Raises
    ------
    ConfigError
        If the input is not that object or has no solution.
    """
    from actions.planners.microbatches import solve

    check_json_target(json)
    try:
        raw = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        question = msgspec.json.decode(raw, type=_Question)
    except OSError as error:
        raise ConfigError(f"plan: '{source}' cannot be read ({error.strerror})") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"plan: input must be {{'micro_batch_s': [...], 'total': M}}: {error}") from error
    counts = solve(question.micro_batch_s, question.total)
    slowest_s = max(m * t for m, t in zip(counts, question.micro_batch_s, strict=True))
    Voice(json).say(f"{' '.join(map(str, counts))}  (slowest rank {slowest_s:.4f} s)")
    write_json({"micro_batches": list(counts), "iteration_s": slowest_s}, json)
    return 0


class _Question(msgspec.Struct, forbid_unknown_fields=True):
    micro_batch_s: list[float]
    total: int


def bench(names: Sequence[str], json: str | None, table: Path | None = None) -> int:
    """Run the benchmarks whose name contains one of `names` (all without names); 1 if a bar does not hold.

    Benchmarks that come from tables print them at the end; `table` names a Markdown file for them.

    Raises
    ------
    ConfigError
        If the benchmarks are not here, none has such a name, or a file cannot be written.
    """
    check_json_target(json)
    if table is not None and not (table.absolute().parent.is_dir() and os.access(table.absolute().parent, os.W_OK)):
        raise ConfigError(f"--table: folder '{table.absolute().parent}' does not exist or may not be written to")
    root = Path(__file__).resolve().parents[2]
    files = sorted((root / "tests" / "benchmarks").glob("bench_*.py"))
    if not files:
        raise ConfigError("bench: the benchmarks live in the repository; run this from a clone of it")
    sys.path.insert(0, str(root))
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as the services run
    voice = Voice(json)
    rows: list[dict[str, Any]] = []
    tables: list[dict[str, Any]] = []
    shown: dict[str, str] = {}
    for file in files:
        module = importlib.import_module(f"tests.benchmarks.{file.stem}")
        wanted = [name for name in module.NAMES if not names or any(word in name for word in names)]
        if not wanted:
            continue
        voice.say(f"running {file.stem} ...")
        # Those with tables work out only what is asked for, and say how far they are.
        run = module.benchmarks(wanted, voice.say) if hasattr(module, "TABLES") else module.benchmarks()
        for row in run:
            tables += row.pop("tables", [])
            shown |= {form: row.pop(form) for form in ("text", "markdown") if form in row}
            if row["name"] in wanted:
                rows.append(row)
                voice.say(_bench_line(row))
    if not rows:
        raise ConfigError(f"bench: no benchmark is called {' or '.join(names)}")
    if shown:
        voice.say(f"\n{shown['text']}\n")
    if table is not None:
        _write_table(table, shown.get("markdown"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    machine = {"cores": os.cpu_count(), "memory_bytes": memory, "python": platform.python_version()}
    more = {"tables": tables} if tables else {}
    write_json({"machine": machine, "benchmarks": rows, **more}, json)
    return 1 if any(row["holds"] is False for row in rows) else 0


def _write_table(target: Path, markdown: str | None) -> None:
    if markdown is None:
        raise ConfigError("--table: none of these benchmarks has a table")
    try:
        target.write_text(markdown)
    except OSError as error:
        raise ConfigError(f"--table: '{target}' cannot be written ({error.strerror})") from error


def _bench_line(row: dict[str, Any]) -> str:
    verdict = {True: "holds", False: "DOES NOT HOLD", None: "no bar"}[row["holds"]]
    value = f"{row['value']:.4g} {row['unit']}" if row["value"] is not None else "skipped"
    if row["value"] is None and row.get("skipped"):
        value += f", {row['skipped']}"
    line = f"{row['name']}: {value} (bar {row['bar']}, {verdict})"
    if row.get("peer") and row["peer"]["value"] is not None:
        line += f"; {row['peer']['name']} {row['peer']['version']}: {row['peer']['value']:.4g}"
        line += f", ratio {row['ratio']:.2f}" if row["ratio"] is not None else ""
    return line
