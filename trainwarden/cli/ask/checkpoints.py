"""`trainwarden checkpoints`: which checkpoints are in this node's memory, at the neighbour and in the store."""

from __future__ import annotations

import json as json_module
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote

import typer

from trainwarden.cli.shared.formatting import counted
from trainwarden.cli.shared.options import BusAddress, ConfigFile, JobName, Json
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import NotJudged, WardenError

if TYPE_CHECKING:
    from trainwarden.cli.shared.follow import JobView

_PATIENCE_S = 60.0  # the keeper asks its peers, of which some may be gone


def checkpoints(
    *,
    job: JobName = None,
    memory: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="As for `keeper`; default TRAINWARDEN_CHECKPOINT_MEMORY or /dev/shm."),
    ] = None,
    bus: BusAddress = None,
    config: ConfigFile = None,
    json: Json = None,
) -> int:
    """List checkpoints in memory, at the neighbour and in the store, and what would be lost now.

    It asks the keeper of this node; without one it lists this node's memory alone. Where saves were measured and the
    bus or a kept run knows of failures, it proposes how often to save.

    Example: trainwarden checkpoints --job llama
    """
    from trainwarden.checkpoint.slots import job_folder

    root = None if memory is None else str(memory)
    folders = [job_folder(job, root)] if job else sorted(job_folder("", root).parent.glob("job-*"))
    jobs = [_of(folder) for folder in folders if folder.is_dir()]
    if not jobs:
        raise NotJudged(f"no job keeps checkpoints in {job_folder(job or '', root).parent} of this node")
    voice = Voice(json)
    for one in jobs:
        for line in _lines(one):
            voice.say(line)
        if "stall_s" in one:  # last, as a bus may be away
            one.update(_proposal(one, bus, config))
            voice.say(f"  a save holds training up for {one['stall_s']:.2g} s; {_interval_words(one)}")
    voice.answer({"jobs": jobs})
    return 0


def _of(folder: Path) -> dict[str, Any]:
    from trainwarden.actions.keeper.keeper import Keeper
    from trainwarden.actions.keeper.service import listing
    from trainwarden.checkpoint.slots import SOCKET, Slots
    from trainwarden.clock import SystemClock

    slots = Slots(folder)
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(_PATIENCE_S)
            line.connect(f"/proc/self/fd/{slots.descriptor}/{SOCKET}")
            line.sendall(b'{"ask":"list"}\n')
            answer: dict[str, Any] = json_module.loads(line.makefile("rb").read())
            return {**answer, "keeper": True}
    except (OSError, ValueError):
        job = unquote(folder.name.removeprefix("job-"))
        node = socket.gethostname()
        alone = Keeper(slots, job=job, node=node, ring=[node], peers={}, clock=SystemClock())
        return {**listing(alone, alone.survey(), time.time()), "keeper": False}


def _proposal(one: dict[str, Any], bus: str | None, config: Path | None) -> dict[str, Any]:
    """How often to save, by what a save has cost and how often the job has failed; else why that is not known."""
    from trainwarden.cli.ask.jobs_on_bus import views_of

    try:
        views = views_of(bus, config, one["job"])
    except WardenError as error:
        return {"no_interval": f"what is known of failures cannot be read: {error}"}
    found = interval_of(one["stall_s"], views)
    return {"no_interval": found} if isinstance(found, str) else {"interval": found}


def interval_of(stall_s: float, views: Sequence[JobView]) -> dict[str, Any] | str:
    """The interval that Young and Daly would choose for a job that `views` have seen; or why there is none.

    Failures are incidents for which the ranks have to be started again.
    """
    from trainwarden.actions.planners.questions.interval import Interval, IntervalQuestion
    from trainwarden.actions.remedies.table import load

    spans = [[*(one.time_s for one in view.verdicts), *(one.time_s for one in view.events)] for view in views]
    watched_s = sum(max(span) - min(span) for span in spans if span)
    known = [incident for view in views for incident in view.incidents.values()]
    remedies = load(None)
    failures = sum(one.kind == "node_lost" or remedies.restart_of(one) is not None for one in known)
    if not failures or not watched_s:
        return f"no failure is known of the {watched_s / 3600:.1f} h that were watched"
    steps = [step_s for view in views if (step_s := view.iteration_s())]
    question = IntervalQuestion(stall_s, watched_s / failures, steps[-1] if steps else None)
    answer = Interval().answer(question)
    return {
        "interval_s": answer.interval_s, "lost_share": answer.lost_share, "failures": failures, "watched_s": watched_s,
        **({"steps": answer.steps, "step_s": question.step_s} if answer.steps is not None else {}),
    }  # fmt: skip


def _lines(one: dict[str, Any]) -> list[str]:
    said = [f"{one['job']}: " + ("" if one["keeper"] else "no keeper answers, so this node's memory alone is listed")]
    for row in one["checkpoints"]:
        ranks = ", ".join(map(str, row["missing_ranks"][:8]))
        state = "complete" if row["complete"] else f"lacks ranks {ranks}"
        said.append(
            f"  step {row['step']:<10} {row['tier']:<10} {row['bytes']:>15,} B  {row['age_s']:.0f} s old  {state}"
        )
    for what, back in one["if_lost"].items():
        to = "everything is lost" if back is None else f"back to step {back['step']}, {back['age_s']:.0f} s old"
        said.append(f"  if {what} is lost now: {to}" if what != "all nodes" else f"  if all nodes are lost now: {to}")
    said += [f"  {who}: {why}" for who, why in one["away"].items()]
    return said


def _interval_words(one: dict[str, Any]) -> str:
    if (found := one.get("interval")) is None:
        return f"no interval is proposed: {one.get('no_interval')}"
    steps = f" ({found['steps']} steps)" if "steps" in found else ""
    of = f"{counted(found['failures'], 'failure')} in {found['watched_s'] / 3600:.1f} h"
    return f"with {of}, saves every {found['interval_s']:.3g} s{steps} lose least: {100 * found['lost_share']:.2g} %"
