"""`trainwarden runs`: the runs of watch, launch, demo and detect that are kept for this user."""

from __future__ import annotations

import time
from typing import Final

import msgspec

from trainwarden.cli.shared import kept_runs
from trainwarden.cli.shared.answers import BEGIN, EXIT_CODES, NOT_JUDGED, Blind
from trainwarden.cli.shared.formatting import counted
from trainwarden.cli.shared.options import Json
from trainwarden.cli.shared.output import Voice

NOTHING_RUN: Final = Blind("nothing has run here yet", BEGIN)


def runs(*, json: Json = None) -> int:
    """The kept runs of watch, launch, demo and detect, newest first, with their size; age and bytes limit them.

    Example: trainwarden runs --json
    """
    voice = Voice(json)
    kept = kept_runs.kept()
    sizes = [kept_runs.size_of(run.path) for run in kept]
    for run, size in zip(kept, sizes, strict=True):
        voice.say(f"{run_line(run)}  {size / 1e6:,.1f} MB")
    total = f"{counted(len(kept), 'run')}, {sum(sizes) / 1e6:,.1f} MB in {kept_runs.place()}"
    voice.say(f"{total} (limits: runs.keep_days and runs.total_bytes)")
    more = {}
    if not kept:
        voice.say(f"NOT JUDGED: {NOTHING_RUN}")
        more = {"answer": NOT_JUDGED, "not_judged": [msgspec.to_builtins(NOTHING_RUN)]}
    rows = [run_object(run) | {"bytes": size} for run, size in zip(kept, sizes, strict=True)]
    voice.answer({"runs": rows, **more})
    return 0 if kept else EXIT_CODES[NOT_JUDGED]


def run_line(run: kept_runs.KeptRun) -> str:
    """One line for a person."""
    begun = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(run.about.started_at_s))
    if (result := run.about.result) is None:
        said = "running" if run.running else "its command was killed"
    else:
        steps = "steps not counted" if result["steps"] is None else f"{result['steps']} steps"
        incidents = len(result["incidents"])
        judged = f"{incidents} incident(s)" if incidents else result.get("answer", "0 incident(s)")
        said = f"exit code {result['exit_code']}, {steps}, {judged}"
    return f"run {begun} {run.about.job}: {said}; {run.path}"


def run_object(run: kept_runs.KeptRun) -> dict[str, object]:
    """The JSON object of one run."""
    about: dict[str, object] = msgspec.to_builtins(run.about)
    return {"path": str(run.path), "running": run.running, **about}
