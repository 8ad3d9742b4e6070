"""`trainwarden agent`: what collects on one node."""

from __future__ import annotations

from trainwarden.cli.serve.process import service
from trainwarden.cli.shared.options import ConfigFile, RunDir, WithParent


def agent(*, run_dir: RunDir = None, config: ConfigFile = None, with_parent: WithParent = None) -> int:
    """The node agent: collects and streams until stopped.

    Example: trainwarden agent --config trainwarden.toml
    """
    with service("agent", run_dir=run_dir, config=config, with_parent=with_parent) as own:
        from trainwarden.collectors.agent.agent import serve

        serve(own.settings, own.run_dir, own.state_dir, own.stop)
    return 0
