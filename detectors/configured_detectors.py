"""Which detectors run: the CATALOG's defaults, changed by the settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from trainwarden import plugins
from trainwarden.detectors import CATALOG, ENTRY_POINTS
from trainwarden.detectors.protocol import Detector, Role
from trainwarden.detectors.verdict.ensemble import Ensemble
from trainwarden.detectors.verdict.rule import EnsembleConfig
from trainwarden.errors import ConfigError
from trainwarden.settings import DetectionSettings, parse


@dataclass(frozen=True, slots=True)
class ConfiguredDetector:
    """A detector that is to run: its class, its checked settings, and those of them that somebody wrote down."""

    plugin: type[Any]
    config: msgspec.Struct
    said: Mapping[str, Any]

    @property
    def role(self) -> Role:
        """What its votes may do."""
        role: Role = self.plugin.role
        return role

    def made(self) -> Detector:
        """A new one, for one job."""
        detector: Detector = self.plugin(self.config)
        return detector


def chosen(settings: DetectionSettings, only: Sequence[str] | None = None) -> dict[str, ConfiguredDetector]:
    """The detectors that run, in the order of the CATALOG; `only` names exactly those to run instead.

    Raises
    ------
    ConfigError
        If one does not exist or one of its settings is wrong.

    Examples
    --------
    >>> settings = DetectionSettings(detectors={"lof": {"open_samples": 5}, "dtw": False})
    >>> found = chosen(settings)
    >>> found["lof"].config.open_samples, "dtw" in found, "pca" in found
    (5, False, True)
    >>> list(chosen(settings, ["hard_event", "dtw"]))
    ['hard_event', 'dtw']
    """
    said = plugins.chosen(CATALOG, ENTRY_POINTS, settings.detectors)
    return {name: _choice(name, said.get(name, {})) for name in (said if only is None else only)}


def asked_for(settings: DetectionSettings, only: Sequence[str] | None = None) -> frozenset[str]:
    """The detectors that somebody has named, in the settings or as `only`.

    Examples
    --------
    >>> sorted(asked_for(DetectionSettings(detectors={"lof": True, "dtw": False})))
    ['lof']
    """
    return frozenset(only or (name for name, said in settings.detectors.items() if said is not False))


def checked(settings: DetectionSettings) -> dict[str, ConfiguredDetector]:
    """As `chosen`, for a service: each is made once, so that a wrong file of its own is told now, not with a job.

    Raises
    ------
    ConfigError
        As `chosen`, and if a file that a detector's settings name is wrong.
    """
    found = chosen(settings)
    for choice in found.values():
        choice.made()
    return found


def rule(settings: DetectionSettings) -> EnsembleConfig:
    """The ensemble's settings.

    Raises
    ------
    ConfigError
        If one is wrong, or a weight is given to a detector that there is not.
    """
    config = parse(EnsembleConfig, settings.ensemble, "detection.ensemble")
    try:
        plugins.chosen(CATALOG, ENTRY_POINTS, dict.fromkeys(config.weights, True))
    except ConfigError as error:
        raise ConfigError(f"detection.ensemble.weights: {error}") from error
    return config


def ensemble(settings: DetectionSettings, only: Sequence[str] | None = None) -> Ensemble:
    """The rule of the detectors that run; parameters and errors as of `chosen` and `rule`."""
    return Ensemble(rule(settings), {name: one.role for name, one in chosen(settings, only).items()})


def _choice(name: str, raw: Mapping[str, Any]) -> ConfiguredDetector:
    plugin = plugins.load(CATALOG, ENTRY_POINTS, name)
    if not isinstance(getattr(plugin, "role", None), Role):
        raise ConfigError(
            f"detectors plug-in '{name}' does not say what its votes may do (trainwarden.detectors.protocol.Role)"
        )
    return ConfiguredDetector(plugin, plugins.configure(plugin, raw, f"detection.detectors.{name}"), raw)
