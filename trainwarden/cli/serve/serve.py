"""`trainwarden serve`: the API, the page and the metrics of all jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from trainwarden.cli.serve.process import service
from trainwarden.cli.shared.options import BusAddress, ConfigFile, RunDir, WithParent
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError


def serve(
    *,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="Default serve.listen.")] = None,
    tokens: Annotated[Path | None, typer.Option(metavar="FILE", help="Lines of NAME ROLE TOKEN.")] = None,
    bus: BusAddress = None,
    run_dir: RunDir = None,
    config: ConfigFile = None,
    with_parent: WithParent = None,
) -> int:
    """The page, the detection API and the metrics of all jobs, over HTTP until stopped.

    Example: trainwarden serve --listen 127.0.0.1:8760 --bus kafka://broker:9092
    """
    with service("serve", run_dir=run_dir, config=config, with_parent=with_parent) as own:
        try:
            from trainwarden.dashboards.web.server import serve as run
        except ImportError as error:
            raise ConfigError(f"serve: {error.name} is not installed; pip install 'trainwarden[serve]'") from error
        said = {"listen": listen, "tokens": str(tokens) if tokens else None}
        named = msgspec.structs.replace(own.settings.serve, **{key: value for key, value in said.items() if value})
        settings = msgspec.structs.replace(own.settings, serve=named, bus=bus or own.settings.bus)
        run(settings, own.stop, Voice().say, config_file=config)
    return 0
