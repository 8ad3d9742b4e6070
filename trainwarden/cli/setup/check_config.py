"""`trainwarden check-config`: are the words of a settings file right, its plug-ins' parts included?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from trainwarden import plugins
from trainwarden.cli.shared.output import Voice
from trainwarden.settings import Settings, load


def check_config(path: Annotated[Path, typer.Argument(metavar="FILE")]) -> int:
    """One clear sentence per mistake in a settings file.

    Example: trainwarden check-config trainwarden.toml
    """
    _check_plugins(load(path))
    Voice().say(f"{path}: fine")
    return 0


def _check_plugins(settings: Settings) -> None:
    """The part of each plug-in that the settings name.

    Raises
    ------
    ConfigError
        For the first mistake.
    """
    import collectors
    from actions import launchers
    from actions.engine.policy import Rules
    from detectors.choice import chosen, rule

    launcher = {settings.engine.launcher: settings.engine.launcher_settings}
    wanted = plugins.chosen(collectors.CATALOG, collectors.ENTRY_POINTS, settings.agent.collectors)
    for package, raws, where in ((collectors, wanted, "agent.collectors"), (launchers, launcher, "engine.launcher")):
        for name, raw in raws.items():
            plugins.configure(plugins.load(package.CATALOG, package.ENTRY_POINTS, name), raw, f"{where}.{name}")
    chosen(settings.detection)
    rule(settings.detection)
    Rules.of(settings.engine)
