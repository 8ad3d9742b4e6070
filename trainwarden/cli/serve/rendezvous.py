"""`trainwarden rendezvous`: the service at which torchrun's agents meet."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainwarden.cli.serve.process import StopFlag
from trainwarden.cli.shared.options import WithParent
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError


def rendezvous(
    *,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where agents ask.")] = "127.0.0.1:29402",
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Holds the agents' token; needed beyond this machine.")
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Lines of NAME ROLE TOKEN: people and engines.")
    ] = None,
    tls_ca: Annotated[Path | None, typer.Option(metavar="FILE", help="Who signs the agents' certificates.")] = None,
    tls_certificate: Annotated[Path | None, typer.Option(metavar="FILE", help="This service's, by --tls-ca.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Of --tls-certificate.")] = None,
    lost_after: Annotated[
        float, typer.Option(min=0.5, max=600.0, metavar="SECONDS", help="A silent node is lost after so long.")
    ] = 2.0,
    bus: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Watch all nodes by agents that send to this bus.")
    ] = None,
    with_parent: WithParent = None,
) -> int:
    """The rendezvous of torchrun jobs: rounds, spares, restarts; until stopped.

    It keeps nothing on disk and may be restarted at any time: torchrun's agents carry what it has to know.

    Example: trainwarden rendezvous --listen 10.0.0.1:29402 --token-file /etc/trainwarden/token
    """
    from trainwarden.actions.launchers.torchrun.service import RendezvousService
    from trainwarden.clock import BootClock
    from trainwarden.metrics_http.access import Tokens, read_token
    from trainwarden.metrics_http.tls import peer_tls
    from trainwarden.self_metrics import log_to_stderr

    log_to_stderr()
    stop = StopFlag(with_parent=with_parent)
    token = None if token_file is None else read_token(token_file)
    if token is None and tokens is not None:
        raise ConfigError("--tokens: without --token-file this machine may do all anyway")
    people = None if tokens is None else Tokens.of_files([tokens])
    tls = peer_tls(tls_ca, tls_certificate, tls_key)
    service = RendezvousService(
        listen, BootClock(), token=token, people=people, tls=tls, lost_after_s=lost_after, bus=bus
    )
    service.run(stop, lambda address: Voice().say(f"rendezvous at {address}"))
    return 0
