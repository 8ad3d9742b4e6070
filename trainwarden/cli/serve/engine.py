"""`trainwarden engine`: what acts."""

from __future__ import annotations

from trainwarden.cli.serve.process import service
from trainwarden.cli.shared.options import ConfigFile, RunDir, WithParent


def engine(*, run_dir: RunDir = None, config: ConfigFile = None, with_parent: WithParent = None) -> int:
    """The action engine: turns incidents into the cheapest action that works, until stopped.

    Example: TRAINWARDEN_ENGINE_MODE=confirm trainwarden engine
    """
    with service("engine", run_dir=run_dir, config=config, with_parent=with_parent) as own:
        from trainwarden.actions.engine.service import serve

        serve(own.settings, own.run_dir, own.stop)
    return 0
