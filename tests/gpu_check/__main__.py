"""The command: which checks, on what, and the report."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from tests.gpu_check import checks
from tests.gpu_check.checks import Lab, Value, Values
from tests.gpu_check.table import CHECKS, NAMES, RANKS, Row, row
from tests.places import ROOT

_ASK: Final = """
import json, torch
there = torch.cuda.is_available()
nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
nccl = ".".join(map(str, nccl)) if nccl else None
device, gpus = (torch.cuda.get_device_name(0), torch.cuda.device_count()) if there else (None, 0)
print(json.dumps({"device": device, "torch": torch.__version__, "nccl": nccl, "gpus": gpus}))
"""
Machine = dict[str, Any]
Part = tuple[frozenset[str], Callable[[Lab], Values]]


def machine() -> Machine:
    """Device, torch and NCCL of this machine; asked in a process of its own, which then lets go of the GPU."""
    done = subprocess.run([sys.executable, "-c", _ASK], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        return {"device": None, "torch": None, "nccl": None, "gpus": 0}
    found: Machine = json.loads(done.stdout.splitlines()[-1])
    return found


def _part(prefixes: Sequence[str], run: Callable[[Lab], Values]) -> Part:
    return frozenset(name for name in NAMES if name.removesuffix("_after") in prefixes), run


def parts() -> list[Part]:
    """What belongs together: names of rows, and who fills them."""

    jobs: dict[str, Callable[..., Values]] = {
        "slow_rank": checks.slow_rank,
        "stopped_rank": checks.stopped_rank,
        "skipped": checks.skipped,
        "healthy_ddp": checks.healthy("ddp"),
        "healthy_fsdp2": checks.healthy("fsdp2"),
        "healthy_graph": checks.healthy("graph"),
    }
    found: list[Part] = []
    for ranks in RANKS:
        for name, check in jobs.items():
            more = _MORE.get(name, ()) if ranks == RANKS[0] else ()
            found.append(_part((f"{name}_{ranks}", *more), partial(check, ranks=ranks)))
    found.append(_part(("slow_link_4",), checks.slow_link))
    found.append(_part(("hook_overhead", "plugin_overhead"), checks.overhead))
    found.append(_part(("event_record_us", "event_query_us", "event_elapsed_us"), checks.costs))
    found.append(_part(tuple(name for name in NAMES if name.startswith("nvml_")), checks.nvml))
    return found


_MORE: Final = {
    "slow_rank": ("wait_split_error",),
    "healthy_ddp": ("timed_ranks", "step_time_error", "hook_step_us", "collectives_recorded"),
    "healthy_graph": ("graph_loss_error",),
}


def rows_of(values: Values, *, hardware: bool, missing: str) -> list[Row]:
    """Every row of the table; `missing` is why there is nothing where nothing is said."""
    rows = []
    for check in CHECKS:
        value: Value = values.get(check.name, missing)
        why = value if isinstance(value, str) else None
        rows.append(row(check, None if isinstance(value, str) else value, hardware=hardware, why=why))
    return rows


def carried_out(lab: Lab, wanted: frozenset[str], *, hardware: bool) -> Values:
    """The values of `wanted` that can be had here; one check that breaks does not stop the others."""
    on_cpu = frozenset(check.name for check in CHECKS if check.gloo)
    values: Values = {}
    for names, run in parts():
        here = names & wanted if hardware else names & wanted & on_cpu
        if not here:
            continue
        print(f"gpu-check: {', '.join(sorted(here))} ...", file=sys.stderr, flush=True)
        try:
            found = run(lab)
        except Exception as error:
            found = dict.fromkeys(here, f"{type(error).__name__}: {error}"[:300])
        values |= {name: value for name, value in found.items() if name in here}
    if not hardware:
        values |= dict.fromkeys(wanted - on_cpu, "needs a GPU")
    return values


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The command line's words."""
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__)
    parser.add_argument(
        "--backend", choices=("nccl", "gloo"), default="nccl", help="gloo: on processors, to try it out"
    )
    parser.add_argument("--only", default="", help="names of rows, with commas")
    parser.add_argument("--json", type=Path, default=ROOT / "gpu-check.json", help="where the report goes")
    parser.add_argument("--to", type=Path, default=ROOT / "gpu-check", help="where recordings and logs go")
    args = parser.parse_args(given)
    args.wanted = frozenset(filter(None, args.only.split(","))) or frozenset(NAMES)
    unknown = sorted(args.wanted - set(NAMES))
    if unknown:
        parser.error(f"there is no check '{unknown[0]}'; there are: {', '.join(NAMES)}")
    return args


def main(given: Sequence[str] | None = None, ask: Callable[[], Machine] = machine) -> int:
    """Carry it out; 1 if a bar does not hold on hardware."""
    args = arguments(given)
    here = ask()
    hardware = args.backend == "nccl" and bool(here["gpus"])
    values: Values = {}
    missing = "there is no GPU here"
    if hardware or args.backend == "gloo":
        missing = "not asked for"
        args.to.mkdir(parents=True, exist_ok=True)
        values = carried_out(Lab(args.to.resolve(), args.backend), args.wanted, hardware=hardware)
    rows = rows_of(values, hardware=hardware, missing=missing)
    report = {name: here[name] for name in ("device", "torch", "nccl")} | {"rows": [one.plain() for one in rows]}
    args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if not hardware and args.backend == "nccl":
        print(f"gpu-check: there is no GPU here, so nothing was checked; {args.json} says so in every row")
        return 0
    for one in (one for one in rows if one.check in args.wanted):
        said = one.why if one.value is None else f"{one.value:.4g} {one.unit}"
        print(f"{'' if one.holds is None else 'ok  ' if one.holds else 'NOT '}{one.check}: {said}")
    return int(any(one.seen_on_hardware and one.holds is False for one in rows))


if __name__ == "__main__":
    sys.exit(main())
