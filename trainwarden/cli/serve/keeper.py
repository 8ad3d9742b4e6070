"""`trainwarden keeper`: one a node and job, which copies checkpoints in memory to the next node and to the store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainwarden.cli.serve.process import StopFlag
from trainwarden.cli.shared.options import ConfigFile, WithParent, job_name
from trainwarden.errors import ConfigError


def keeper(
    *,
    job: Annotated[str, typer.Option(callback=job_name, help="Name of the job, as TRAINWARDEN_JOB says it.")],
    node: Annotated[str | None, typer.Option(help="This node's name in --ring; default the host's name.")] = None,
    ring: Annotated[
        str,
        typer.Option(metavar="NODE=HOST:PORT,...", help="All nodes: each copies to the next, the last to the first."),
    ] = "",
    store: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Storage that outlives the nodes; the same on all of them.")
    ] = None,
    flush_every: Annotated[
        float, typer.Option(min=0.0, metavar="SECONDS", help="Write to the store no more often than this.")
    ] = 600.0,
    keep: Annotated[int, typer.Option(min=1, help="Checkpoints that the store holds.")] = 3,
    folder: Annotated[
        bool, typer.Option("--folder", help="Keep what an unchanged script writes to a folder in memory.")
    ] = False,
    memory: Annotated[
        Path | None, typer.Option(metavar="DIR", help="On tmpfs; default TRAINWARDEN_CHECKPOINT_MEMORY or /dev/shm.")
    ] = None,
    tls_ca: Annotated[Path | None, typer.Option(metavar="FILE", help="The job's own authority.")] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="This node's, by --tls-ca, for its name in --ring.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Of --tls-certificate.")] = None,
    joins: Annotated[Path | None, typer.Option(hidden=True, help="A folder of whoever tells the ring.")] = None,
    listen: Annotated[str, typer.Option(hidden=True, help="This node's address, with --joins.")] = "",
    metrics_port: Annotated[int | None, typer.Option(min=0, max=65535, help="Answer Prometheus here.")] = None,
    config: ConfigFile = None,
    with_parent: WithParent = None,
) -> int:
    """The keeper of a node: copies checkpoints in memory to the next node and the store, until stopped.

    It may be killed and started at any time: the checkpoints lie in memory that outlives it.

    Example: trainwarden keeper --job llama --node a --ring a=10.0.0.1:29410,b=10.0.0.2:29410 --store /lustre/llama
    """
    import socket

    from trainwarden.actions.keeper.joining import Joining
    from trainwarden.actions.keeper.service import KeeperService
    from trainwarden.clock import BootClock
    from trainwarden.metrics_http.server import serve_metrics
    from trainwarden.metrics_http.tls import peer_tls
    from trainwarden.network.host_port import host_and_port
    from trainwarden.self_metrics import SelfMetrics, log_to_stderr
    from trainwarden.settings import load

    log_to_stderr()
    stop = StopFlag(with_parent=with_parent)
    places: dict[str, tuple[str, int]] = {}
    for part in filter(None, ring.split(",")):
        name, equals, address = part.strip().partition("=")
        if not equals or not name or name in places:
            raise ConfigError(f"--ring: '{part[:200]}' is not NODE=HOST:PORT, or names a node again")
        places[name] = host_and_port(address, "--ring")
    metrics, node = SelfMetrics("keeper"), node or socket.gethostname()
    joining = None if joins is None else Joining(joins, listen, node)
    service = KeeperService(
        job=job, node=node, ring=places, joining=joining, tls=peer_tls(tls_ca, tls_certificate, tls_key),
        clock=BootClock(), metrics=metrics, store=store, memory=None if memory is None else str(memory),
        flush_every_s=flush_every, keep=keep, folder=folder,
    )  # fmt: skip
    serve_metrics(metrics, metrics_port, load(config))
    service.run(stop)
    return 0
