"""`trainwarden coordinator`: what gives nodes to jobs."""

from __future__ import annotations

from trainwarden.cli.serve.process import service
from trainwarden.cli.shared.options import ConfigFile, RunDir, WithParent


def coordinator(*, run_dir: RunDir = None, config: ConfigFile = None, with_parent: WithParent = None) -> int:
    """The coordinator: shares a cluster's nodes out among its jobs, and again whenever something changes.

    Example: TRAINWARDEN_ENGINE_MODE=confirm trainwarden coordinator --config cluster.toml
    """
    with service("coordinator", run_dir=run_dir, config=config, with_parent=with_parent) as own:
        from trainwarden.actions.coordinator.service import serve

        serve(own.settings, own.run_dir, own.stop)
    return 0
