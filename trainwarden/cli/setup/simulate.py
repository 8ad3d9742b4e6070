"""`trainwarden simulate`: what the agents of a job of any size would send, to a bus or into a recorded folder."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from trainwarden.bus.address import connect
from trainwarden.cli.shared.options import ConfigFile, JobName, Json
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError
from trainwarden.protocols import Bus, Message
from trainwarden.recorded.writing import write_recording
from trainwarden.settings import load
from trainwarden.simulation import FAULTS, Fleet
from trainwarden.topics import Topic, topic_of


def simulate(
    *,
    ranks: Annotated[int, typer.Option(help="Ranks of the job; eight make a node.")],
    to: Annotated[
        str, typer.Option(metavar="BUS|DIR", help="embedded:PATH or kafka://host:port, in real time; else a folder.")
    ],
    fault: Annotated[str, typer.Option(metavar="KIND", help=f"One of {', '.join(FAULTS)}.")] = "none",
    at: Annotated[float | None, typer.Option(metavar="S", help="Seconds to the fault; default a third of all.")] = None,
    rank: Annotated[int | None, typer.Option(help="The rank at fault; default one in the middle.")] = None,
    slowdown: Annotated[float, typer.Option(min=1.0, help="How many times as long a slow rank computes.")] = 2.0,
    seconds: Annotated[float, typer.Option(help="How long the job runs.")] = 120.0,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same numbers.")] = 0,
    job: JobName = None,
    json: Json = None,
    config: ConfigFile = None,
) -> int:
    """Play a job of any size from the recording of one agent, healthy or with a fault.

    Example: trainwarden simulate --ranks 64 --fault slow-rank --rank 9 --to slow && trainwarden detect slow
    """
    voice = Voice(json)
    on_bus = to.startswith(("embedded:", "kafka:"))
    fleet = Fleet(
        ranks=ranks, seconds=seconds, start_s=time.time() if on_bus else 0.0, seed=seed, job=job or "simulated",
        fault=fault, at_s=at, rank=rank, slowdown=slowdown,
    )  # fmt: skip
    nodes = f"{fleet.nodes} node{'' if fleet.nodes == 1 else 's'}"
    struck = f"{fault} of rank {fleet.struck} after {fleet.fault_at_s - fleet.start_s:g} s"
    voice.say(f"{ranks} ranks on {nodes}, {seconds:g} s, {'healthy' if fault == 'none' else struck}")
    if on_bus:
        settings = load(config)
        bus = connect(to, settings.kafka, limit_bytes=settings.runs.bus_bytes)
        try:
            written = _played(fleet, bus)
        finally:
            bus.close()
    else:
        written = write_recording(_Folder(fleet), fleet.job, _empty(Path(to)))  # type: ignore[arg-type]
    voice.say(f"{written} {'records sent to' if on_bus else 'rows, lines and records in'} {to}")
    struck_by = {"kind": fault, "rank": fleet.struck, "node": fleet.node_of(fleet.struck), "at_s": fleet.fault_at_s}
    voice.answer(
        {
            "job": fleet.job, "ranks": ranks, "nodes": fleet.nodes, "seconds": seconds, "seed": seed, "to": to,
            "written": written, "fault": None if fault == "none" else struck_by,
        }
    )  # fmt: skip
    return 0


def _empty(folder: Path) -> Path:
    """`folder`, in which nothing lies: no recording is replaced, and nothing else is judged with this one."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise ConfigError(f"--to: '{folder}' exists and is not an empty folder")
    return folder


def _played(fleet: Fleet, bus: Bus) -> int:
    """Send each record in its time; how many there were."""
    sent = 0
    for at_s, record in fleet.sent():
        if (wait_s := at_s - time.time()) > 0.0:
            time.sleep(wait_s)
        bus.publish(topic_of(record), fleet.job, record)
        sent += 1
    bus.flush()
    return sent


@dataclass(frozen=True)
class _Folder:
    """The records of a job in the form in which a bus gives them to whoever writes a recorded folder."""

    fleet: Fleet

    def read(self, topic: Topic[Any], *, from_time_s: float | None = None) -> Iterator[Message]:
        for place, (at_s, record) in enumerate(self.fleet.of(topic)):
            if from_time_s is None or at_s >= from_time_s:
                yield Message(topic.name, 0, place, at_s, self.fleet.job, record)
