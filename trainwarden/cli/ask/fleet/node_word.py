"""What `trainwarden cordon` and `uncordon` have in common: whose launcher is asked, and waiting for its answer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from trainwarden.cli.ask.jobs_on_bus import address_of, open_bus
from trainwarden.cli.shared.machine import user
from trainwarden.cli.shared.options import job_name
from trainwarden.cli.shared.output import Voice
from trainwarden.cli.shared.speak import speak
from trainwarden.clock import Clock, SystemClock
from trainwarden.commands.builders import NodeWord, on_node
from trainwarden.errors import ConfigError
from trainwarden.json_objects import action_object
from trainwarden.protocols import Bus
from trainwarden.records import ActionRecord, CommandRecord, HeartbeatRecord
from trainwarden.settings import load
from trainwarden.topics import ACTIONS, COMMANDS, HEARTBEATS

HEARD_S: Final = 120.0  # of heartbeats, one a second of each node
OVERLAP_S: Final = 60.0  # a bus of several brokers has several clocks
LOOK_S: Final = 0.5  # between two looks for the engine's answer
ENDS: Final = {"done": "done", "failed": "not done", "skipped": "not done"}

Node = Annotated[str, typer.Argument(help="As the agents call it; `trainwarden nodes` lists them.")]
Why = Annotated[str, typer.Option("--why", "--reason", help="For the log, and for whoever finds the node so.")]
Job = Annotated[
    str | None,
    typer.Option(
        "--job",
        metavar="NAME",
        callback=job_name,
        help="A job that its launcher runs; default: the last heard of on the node.",
    ),
]
Wait = Annotated[float, typer.Option("--wait", min=0.0, max=86_400.0, metavar="S", help="Seconds for an answer.")]


def say(
    word: NodeWord,
    node: str,
    job: str | None,
    why: str,
    *,
    wait_s: float,
    bus: str | None,
    key: Path | None,
    config: Path | None,
    json: str | None,
) -> int:
    """Say it to the engines, wait for what one of them makes of it, and tell that."""
    voice, clock, settings = Voice(json), SystemClock(), load(config)
    with open_bus(bus, config, asks=False) as connected:
        command = command_of(connected, word, node, job, at_s=clock.now_s(), why=why)
        command = speak(connected, command, key, settings)
        to = address_of(bus, settings, None)
        voice.say(f"said to the engines on {to}: {word} {node}, by the launcher of job {command.job}")
        action = answer(connected, command, clock, wait_s)
    if action is not None:
        voice.say(f"{ENDS[action.outcome]}: {action.why}")
    elif wait_s > 0.0:
        voice.say(f"no engine has answered within {wait_s:g} s; what becomes of it is told by: trainwarden actions")
    told = {"id": command.id, "kind": command.kind, "node": command.node, "job": command.job}
    voice.answer({"command": told, "action": None if action is None else action_object(action)})
    return int(wait_s > 0.0 and (action is None or action.outcome != "done"))


def command_of(bus: Bus, word: NodeWord, node: str, job: str | None, *, at_s: float, why: str) -> CommandRecord:
    """The word as it goes over the bus, for the launcher of `job` or of the job that was heard of on `node`.

    Raises
    ------
    ConfigError
        If `node` is no name, or nobody knows through which job's launcher it is reached.
    """
    if not node.strip() or not node.isprintable():
        raise ConfigError(f"{word}: name one node; `trainwarden nodes` lists them")
    job = job or _job_on(bus, node, at_s)
    if job is None:
        raise ConfigError(f"{word}: nothing was heard of node {node}; name a job that its launcher runs with --job")
    return on_node(word, node, job, user(), at_s=at_s, why=why)


def _job_on(bus: Bus, node: str, now_s: float) -> str | None:
    """The job whose agent was heard last on `node`; else that of the last action about it."""
    from trainwarden.actions.brakes.nodes import targets

    found = None
    for message in bus.read(HEARTBEATS, from_time_s=now_s - HEARD_S):
        if isinstance(message.record, HeartbeatRecord) and message.record.node == node:
            found = message.record.job
    for message in bus.read(ACTIONS) if found is None else ():
        if isinstance(message.record, ActionRecord) and node in targets(message.record):
            found = message.record.job
    return found


def answer(bus: Bus, command: CommandRecord, clock: Clock, wait_s: float) -> ActionRecord | None:
    """The action that `command` has come to, once it has an end or is held; None if that takes longer than `wait_s`."""
    deadline_s = clock.monotonic_s() + wait_s
    said_s = min((m.time_s for m in bus.read(COMMANDS) if m.record == command), default=command.at_s)  # by its clock
    while clock.monotonic_s() < deadline_s:
        found = None
        for message in bus.read(ACTIONS, from_time_s=said_s - OVERLAP_S):
            if isinstance(message.record, ActionRecord) and message.record.command == command.id:
                found = message.record
        if found is not None and found.outcome in ENDS and not found.plan.get("stale"):  # else it is planned anew
            return found
        clock.sleep(LOOK_S)
    return None
