"""`trainwarden trainer`: what learns while others watch."""

from __future__ import annotations

from trainwarden.cli.serve.process import service
from trainwarden.cli.shared.options import ConfigFile, RunDir, WithParent


def trainer(*, run_dir: RunDir = None, config: ConfigFile = None, with_parent: WithParent = None) -> int:
    """The trainer: retrains on schedule, on drift and on request; audits who serves, until stopped.

    Example: trainwarden trainer --config trainwarden.toml
    """
    with service("trainer", run_dir=run_dir, config=config, with_parent=with_parent) as own:
        from trainwarden.trainer_offline.service.handler import serve

        serve(own.settings, config, own.stop)
    return 0
