"""`trainwarden status`: what every job on the bus is doing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from trainwarden.cli.ask.jobs_on_bus import is_known_here, views_of
from trainwarden.cli.ask.judging.job_state import JobState, left_unjudged, state_of, table, watched
from trainwarden.cli.ask.runs import run_line, run_object
from trainwarden.cli.shared import kept_runs
from trainwarden.cli.shared.answers import BEGIN, EXIT_CODES, HEALTHY, Blind, worst
from trainwarden.cli.shared.follow import JobView, incident_line
from trainwarden.cli.shared.formatting import counted
from trainwarden.cli.shared.options import BusAddress, ConfigFile, Json
from trainwarden.cli.shared.output import Voice
from trainwarden.json_objects import incident_object
from trainwarden.launching import rates_in
from trainwarden.parallelism.layout import Layout
from trainwarden.records import ActionRecord, IncidentRecord, basis_said

NO_JOB: Final = Blind("no job on this bus yet", BEGIN)
MOST_RUNS: Final = 4  # that are kept; `trainwarden runs` has all
MOST_RATES: Final = 4  # of one validation; `trainwarden actions` has more


def status(*, bus: BusAddress = None, config: ConfigFile = None, json: Json = None) -> int:
    """What every job on the bus is doing; exit codes 0 healthy, 1 an incident or a failed job, 3 not judged.

    Without a bus: that of this folder, or the newest run of watch, launch or demo; with all runs that run now, and a
    line for each of the last.

    Example: trainwarden status --bus kafka://broker:9092 --json
    """

    voice = Voice(json)
    alone = bus is None and config is None
    runs = kept_runs.kept() if alone else []
    views = views_of(bus, config, runs=_current(runs))
    now_s, killed, unseen = time.time(), kept_runs.killed_jobs(runs), left_unjudged(runs)
    states = [state_of(view, now_s, killed=view.job in killed, left=unseen.get(view.job)) for view in views]
    rows = [_row(view, state) for view, state in zip(views, states, strict=True)]
    for text in table(zip(views, states, strict=True)):
        voice.say(text)
    for view, state in zip(views, states, strict=True):
        for text in _details(view, state):
            voice.say(text)
    left = {} if rows else left_unjudged(_current(runs)) or {"": NO_JOB}
    for job, why in left.items():
        voice.say(f"NOT JUDGED: {job}{': ' if job else ''}{why}")
    for run in runs[:MOST_RUNS]:
        voice.say(run_line(run))
    if len(runs) > MOST_RUNS:
        voice.say(f"{counted(len(runs) - MOST_RUNS, 'earlier run')}: trainwarden runs")
    answer = worst([state.answer for state in states])
    blind = dict.fromkeys([*left.values(), *(state.blind for state in states if state.blind is not None)])
    not_judged = msgspec.to_builtins(list(blind))
    voice.answer({"answer": answer, "not_judged": not_judged, "jobs": rows, "runs": [run_object(run) for run in runs]})
    return EXIT_CODES[answer]


def _current(runs: Sequence[kept_runs.KeptRun]) -> list[kept_runs.KeptRun]:
    """Of all kept runs those that run now, and the newest if no bus is here; what `detect` has found does nothing."""
    jobs = [run for run in runs if not run.is_finding] or list(runs)
    newest = [] if is_known_here(None) else jobs[:1]
    return newest + [run for run in jobs if run.running and run not in newest]


def _details(view: JobView, state: JobState) -> Iterator[str]:
    """What the table has no column for."""
    from trainwarden.dashboards.explain.sentences import line

    if state.blind is not None:
        yield f"  {view.job} NOT JUDGED: {state.blind}"
    elif state.answer == HEALTHY:
        yield f"  {view.job} healthy: {watched(view)}"
    if (basis := view.basis()) is not None and basis != ("host", ""):
        yield f"  times of steps are {basis_said(*basis)}"
    if (layout := view.layouts.layout()) is not None:
        yield f"  {layout.summary()}"
    for event in view.beside():
        yield f"  {event.message}"
    if names := _provisional(view):
        yield f"  provisional models, which weigh less until there is enough to judge them by: {', '.join(names)}"
    for incident in state.incidents:
        yield f"  {incident_line(incident)}"
        for said in measured(view.actions.values(), incident):
            yield line(said, 4)


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
    rates = [f"measured: {one}" for one in rates_in(newest.plan).summary[:MOST_RATES]]
    return [f"validated: {newest.plan.get('verdict', 'without an answer')}", *rates]


def _layout_object(layout: Layout) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.structs.asdict(layout)
    return found | {"whole": layout.whole, "said": layout.summary()}


def _row(view: JobView, state: JobState) -> dict[str, Any]:
    """The JSON object of one job."""
    seen_at_s = max((beat.time_s for beat in view.heartbeats.values()), default=None)
    return {
        "job": view.job,
        "answer": state.answer,
        "not_judged": [] if state.blind is None else [msgspec.to_builtins(state.blind)],
        "ended": state.ended,
        "exit_code": view.exit_code,
        "interrupted": view.interrupted,
        "ranks": len(view.ranks()),
        "beside": [{"rank": event.rank, "pid": event.fields.get("pid")} for event in view.beside()],
        "steps": view.steps_done(),
        "iteration_s": {"median": view.iteration_s()},
        "basis": basis[0] if (basis := view.basis()) is not None else None,
        "accelerator": (basis[1] or None) if basis is not None else None,
        "layout": None if (layout := view.layouts.layout()) is None else _layout_object(layout),
        "provisional_models": _provisional(view),
        "last_seen_s": None if seen_at_s is None else round(time.time() - seen_at_s, 1),
        "open_incidents": [incident_object(one) for one in state.incidents if one.wants_action],
        "standing_incidents": [one.id for one in state.incidents],
    }
