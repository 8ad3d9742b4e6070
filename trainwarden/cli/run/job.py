"""`trainwarden job`: what a job of torchruns does, and an operator's commands to its rendezvous."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
import typer

from trainwarden.cli.run.launch_node import NodesAsked, job_client
from trainwarden.cli.shared.machine import user
from trainwarden.cli.shared.options import ConfigFile, Json, job_name
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError, LauncherError
from trainwarden.launching import NODE_VERBS, LauncherState, Report, Verb
from trainwarden.network.host_port import host_and_port
from trainwarden.settings import load

VERBS: Final[dict[str, Verb]] = {
    "suspend": "pause", "resume": "resume", "restart": "restart", "stop": "stop",
    "evict": "evict", "cordon": "cordon", "uncordon": "uncordon",
}  # fmt: skip
"""By a person's word, what launchers call it."""
Word = Literal["status", "suspend", "resume", "restart", "stop", "evict", "cordon", "uncordon"]


def job(
    word: Annotated[Word, typer.Argument()],
    node: Annotated[str | None, typer.Argument(help="Whom to evict, cordon or uncordon.")] = None,
    *,
    name: Annotated[str, typer.Option("--job", callback=job_name, help="Name of the job.")],
    rdzv: Annotated[str, typer.Option(metavar="HOST:PORT", help="Its rendezvous; several with commas.")],
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Holds the nodes' token, or one's own.")
    ] = None,
    why: Annotated[str, typer.Option(help="Why; the launchers' logs and the log of actions say it.")] = "",
    wait: Annotated[
        float, typer.Option(min=0.0, max=3600.0, metavar="SECONDS", help="For an answer, and for the end.")
    ] = 60.0,
    config: ConfigFile = None,
    json: Json = None,
) -> int:
    """What a job on several nodes does; suspend, resume, restart or stop all of it; take nodes out or back.

    Exit code 1 if it is not done.

    Example: trainwarden job suspend --job llama --rdzv 10.0.0.1:29402 --token-file token --why "the room is hot"
    """
    from trainwarden.actions.launchers.torchrun.client import Patient
    from trainwarden.clock import SystemClock

    if (node is not None) != (VERBS.get(word) in NODE_VERBS):
        wrong = f"'{node[:80]}' is one word too much" if node is not None else "name the node"
        raise ConfigError(f"job {word}: {wrong}")
    voice, settings = Voice(json), load(config)
    for one in rdzv.split(","):
        host_and_port(one.strip(), "--rdzv")
    client = job_client(name, NodesAsked(rdzv=rdzv, token_file=token_file), settings.launch)
    asked = Patient(client, SystemClock(), wait)
    if word == "status":
        state = asked.state()
        for line in lines(state):
            voice.say(line)
        voice.answer(msgspec.to_builtins(state))
        return 0
    report = asked.carry_out(VERBS[word], name, why, node, by=user())
    voice.say(said(word, report, wait))
    voice.answer(msgspec.to_builtins(report))
    return 0 if report.state == "done" else 1


def said(word: str, report: Report, wait_s: float) -> str:
    """What became of a person's word, in one sentence.

    Raises
    ------
    LauncherError
        If it was refused.

    Examples
    --------
    >>> said("suspend", Report(operation="o", state="done"), 60.0)
    'suspend: done'
    """
    if report.state == "refused":
        raise LauncherError(f"{word}: {report.text}")
    if report.state == "done":
        return f"{word}: done"
    return f"{word}: accepted, and not seen done within {wait_s:g} s"


def lines(state: LauncherState) -> list[str]:
    """`state` for people.

    Examples
    --------
    >>> lines(LauncherState(job="j", phase="paused", generation=3, attempt=1))
    ['job j: paused, attempt 2']
    """
    under_way = "".join(f"; under way: {one}" for one in state.under_way)
    rows = [f"job {state.job}: {state.phase}, attempt {state.attempt + 1}{under_way}"]
    for node in state.nodes:
        ranks = f", ranks {node.ranks[0]} to {node.ranks[-1]}" if node.ranks else ""
        rows.append(f"  {node.node}: {node.state}{ranks}{': ' if node.why else ''}{node.why}")
    return rows
