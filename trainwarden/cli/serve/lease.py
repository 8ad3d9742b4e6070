"""`trainwarden lease`: the service that says which launcher leads a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from actions.launchers.leases.words import DURATION_S
from trainwarden.cli.serve.process import StopFlag
from trainwarden.cli.shared.options import WithParent
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError


def lease(
    *,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where launchers ask.")] = "127.0.0.1:29401",
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Holds the launchers' token; needed beyond this machine.")
    ] = None,
    observe_token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Holds a token that may only ask who leads.")
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Lines of NAME ROLE TOKEN: people, who may ask who leads.")
    ] = None,
    tls_ca: Annotated[Path | None, typer.Option(metavar="FILE", help="Who signs the launchers' certificates.")] = None,
    tls_certificate: Annotated[Path | None, typer.Option(metavar="FILE", help="This service's, by --tls-ca.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Of --tls-certificate.")] = None,
    duration: Annotated[
        float, typer.Option(min=1.0, max=600.0, metavar="SECONDS", help="A lost leader is followed after so long.")
    ] = DURATION_S,
    with_parent: WithParent = None,
) -> int:
    """The lease service: says which launcher of a job on several nodes leads, until stopped.

    It keeps nothing on disk and may be restarted at any time: launchers carry what it has to know.

    Example: trainwarden lease --listen 10.0.0.1:29401 --token-file /etc/trainwarden/token
    """
    from actions.launchers.leases.server import LeaseServer, read_token
    from trainwarden.clock import BootClock
    from trainwarden.metrics_http.access import Person, Tokens
    from trainwarden.metrics_http.tls import peer_tls
    from trainwarden.self_metrics import log_to_stderr

    log_to_stderr()
    stop = StopFlag(with_parent=with_parent)
    token, observe_token = (None if path is None else read_token(path) for path in (token_file, observe_token_file))
    if token is None and not (observe_token is None and tokens is None):
        option = "--tokens" if observe_token is None else "--observe-token-file"
        raise ConfigError(f"{option}: without --token-file this machine may do all anyway")
    people = Tokens.of_files([] if tokens is None else [tokens])
    if observe_token is not None:
        people = people.beside(observe_token, Person("--observe-token-file", "observe"))
    tls = peer_tls(tls_ca, tls_certificate, tls_key)
    server = LeaseServer(listen, token, BootClock(), duration, people=people, tls=tls)
    Voice().say(f"leases at {server.address}")
    server.run(stop)
    return 0
