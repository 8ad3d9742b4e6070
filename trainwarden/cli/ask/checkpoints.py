"""`trainwarden checkpoints`: which checkpoints are in this node's memory, at the neighbour and in the store."""

from __future__ import annotations

import json as json_module
import socket
import time
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import unquote

import typer

from trainwarden.cli.shared.options import JobName, Json
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import NotJudged

_PATIENCE_S = 60.0  # the keeper asks its peers, of which some may be gone


def checkpoints(
    *,
    job: JobName = None,
    memory: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="As for `keeper`; default TRAINWARDEN_CHECKPOINT_MEMORY or /dev/shm."),
    ] = None,
    json: Json = None,
) -> int:
    """List checkpoints in memory, at the neighbour and in the store, and what would be lost now.

    It asks the keeper of this node; without one it lists this node's memory alone.

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
