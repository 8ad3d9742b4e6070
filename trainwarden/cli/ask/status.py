"""`trainwarden status`: what every job on the bus is doing."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from trainwarden.cli.ask.jobs_on_bus import open_bus, read_jobs
from trainwarden.cli.shared import kept_runs
from trainwarden.cli.shared.follow import JobView, incident_line
from trainwarden.cli.shared.options import BusAddress, ConfigFile, Json
from trainwarden.cli.shared.output import Voice
from trainwarden.json_objects import incident_object
from trainwarden.launching import rates_in
from trainwarden.parallelism.layout import Layout
from trainwarden.records import ActionRecord, IncidentRecord, basis_said

MOST_RATES: Final = 4  # of one validation; `trainwarden actions` has more


def status(*, bus: BusAddress = None, config: ConfigFile = None, json: Json = None) -> int:
    """What every job on the bus is doing; exit code 1 while an incident is open.

    Without a bus: the newest run of watch, launch or demo, and a line for each earlier one that is kept.

    Example: trainwarden status --bus kafka://broker:9092 --json
    """
    from dashboards.explain.sentences import line

    voice = Voice(json)
    with open_bus(bus, config) as connected:
        rows = []
        for _, view in sorted(read_jobs(connected).items()):
            incidents = [i for i in view.incidents.values() if i.state != "closed"]
            rows.append(_row(view, incidents))
            median = view.iteration_s()
            pace = "no iteration yet" if median is None else f"step {view.last_step()}, {median:.3f} s/iteration"
            voice.say(f"{view.job}: {'ended' if view.ended else 'running'}, {len(view.ranks())} ranks, {pace}")
            if (basis := view.basis()) is not None and basis != ("host", ""):
                voice.say(f"  times of steps are {basis_said(*basis)}")
            if (layout := view.layouts.layout()) is not None:
                voice.say(f"  {layout.said()}")
            for event in view.beside():
                voice.say(f"  {event.message}")
            if names := _provisional(view):
                voice.say(
                    f"  provisional models, which weigh less until there is enough to judge them by: {', '.join(names)}"
                )
            for incident in incidents:
                voice.say(f"  {incident_line(incident)}")
                for said in measured(view.actions.values(), incident):
                    voice.say(line(said, 4))
        if not rows:
            voice.say("no job on this bus yet")
    runs = kept_runs.kept() if bus is None and config is None else []
    for run in runs:
        voice.say(_run_line(run))
    voice.answer({"jobs": rows, "runs": [_run_object(run) for run in runs]})
    return 1 if any(row["open_incidents"] for row in rows) else 0


def _provisional(view: JobView) -> list[str]:
    """Who votes by models that had too little to be judged by."""
    votes = view.verdicts[-1].votes if view.verdicts else {}
    return [name for name, vote in votes.items() if vote.provisional]


def measured(actions: Iterable[ActionRecord], incident: IncidentRecord) -> list[str]:
    """What the newest validation of the suspects of `incident` has come to, and the numbers, slowest first."""
    tried = [one for one in actions if one.incident == incident.id and one.kind == "validate"]
    done = [one for one in tried if one.outcome == "done"]
    if not done:
        return []
    newest = max(done, key=lambda one: one.finished_at_s or one.at_s)
    rates = [f"measured: {one}" for one in rates_in(newest.plan).said[:MOST_RATES]]
    return [f"validated: {newest.plan.get('verdict', 'without an answer')}", *rates]


def _layout_object(layout: Layout) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.structs.asdict(layout)
    return found | {"whole": layout.whole, "said": layout.said()}


def _run_object(run: kept_runs.KeptRun) -> dict[str, Any]:
    about: dict[str, Any] = msgspec.to_builtins(run.about)
    return {"path": str(run.path), "running": run.running, **about}


def _run_line(run: kept_runs.KeptRun) -> str:
    begun = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(run.about.started_at_s))
    if run.about.result is None:
        said = "running" if run.running else "its command was killed"
    else:
        steps = run.about.result["steps"]
        counted = "steps not counted" if steps is None else f"{steps} steps"
        incidents = len(run.about.result["incidents"])
        said = f"exit code {run.about.result['exit_code']}, {counted}, {incidents} incident(s)"
    return f"run {begun} {run.about.job}: {said}; {run.path}"


def _row(view: JobView, incidents: list[IncidentRecord]) -> dict[str, Any]:
    """The JSON object of one job with its open `incidents`."""
    seen_at_s = max((beat.time_s for beat in view.heartbeats.values()), default=None)
    return {
        "job": view.job,
        "ended": view.ended,
        "ranks": len(view.ranks()),
        "beside": [{"rank": event.rank, "pid": event.fields.get("pid")} for event in view.beside()],
        "steps": view.steps_done(),
        "iteration_s": {"median": view.iteration_s()},
        "basis": basis[0] if (basis := view.basis()) is not None else None,
        "accelerator": (basis[1] or None) if basis is not None else None,
        "layout": None if (layout := view.layouts.layout()) is None else _layout_object(layout),
        "provisional_models": _provisional(view),
        "last_seen_s": None if seen_at_s is None else round(time.time() - seen_at_s, 1),
        "open_incidents": [incident_object(incident) for incident in incidents],
    }
