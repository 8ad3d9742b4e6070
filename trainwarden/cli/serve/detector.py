"""`trainwarden detector`: what votes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from trainwarden.cli.serve.process import service
from trainwarden.cli.shared.options import ConfigFile, RunDir, WithParent
from trainwarden.settings import Settings

if TYPE_CHECKING:
    from trainwarden.detectors.metrics.source import ModelSource


def detector(*, run_dir: RunDir = None, config: ConfigFile = None, with_parent: WithParent = None) -> int:
    """The detection service: votes on every window of every job until stopped.

    Example: TRAINWARDEN_BUS=kafka://broker:9092 trainwarden detector
    """
    with service("detector", run_dir=run_dir, config=config, with_parent=with_parent) as own:
        from trainwarden.detectors.service import serve

        serve(own.settings, own.stop, _model_source(own.settings, own.state_dir))
    return 0


def _model_source(settings: Settings, state: Path) -> ModelSource | None:
    """A registry to follow, where the settings name one; a folder of models is read by the service itself."""
    from trainwarden.trainer_offline.registry.address import is_registry

    models = settings.detection.models
    if models is None or not is_registry(models):
        return None
    from trainwarden.trainer_offline.registry.registry import Registry
    from trainwarden.trainer_offline.registry.serving import RegistrySource
    from trainwarden.trainer_offline.registry.version import CHALLENGER

    shadow = CHALLENGER if settings.detection.shadow else None
    return RegistrySource(Registry.at(models), state / "models", shadow=shadow)
