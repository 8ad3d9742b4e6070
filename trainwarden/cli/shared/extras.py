"""What an installation without extras lacks: one sentence that names the extra, before anything is started."""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec
from typing import Final

from trainwarden.errors import ConfigError
from trainwarden.settings import Settings

EXTRAS: Final[dict[str, str]] = {
    "bcrypt": "web", "cryptography": "signing", "distributed": "dask", "dask": "dask", "kubernetes": "kubernetes",
    "matplotlib": "train", "mlflow": "train", "ruptures": "train", "stumpy": "train", "torch": "example",
    "tslearn": "train", "yaml": "web",
}  # fmt: skip
"""By module, the extra that brings it."""


def sentence(module: str, what: str) -> str:
    """What to install so that `what` works.

    Examples
    --------
    >>> sentence("mlflow.tracking", "train")
    "train needs mlflow: pip install 'trainwarden[train]'"
    """
    name = module.partition(".")[0]
    extra = EXTRAS.get(name)
    return f"{what} needs {name}: pip install " + (f"'trainwarden[{extra}]'" if extra else name)


def need(module: str, what: str, otherwise: str = "") -> None:
    """Refuse `what` where `module` is not installed; `otherwise` is what can be done without it.

    Raises
    ------
    ConfigError
        With the extra that brings it.
    """
    if find_spec(module) is None:
        raise ConfigError(sentence(module, what) + (f"; {otherwise}" if otherwise else ""))


def check_services(settings: Settings, services: Collection[str]) -> None:
    """Refuse settings whose `services` would end at once for want of an extra.

    Raises
    ------
    ConfigError
        With the setting and the extra.
    """
    check_service_extras(settings, services)
    if services and settings.metrics_web_config:
        need("bcrypt", "metrics_web_config")
        need("yaml", "metrics_web_config")
    if settings.commands.key or settings.commands.trusted:
        need("cryptography", "commands.key and commands.trusted")


def check_service_extras(settings: Settings, services: Collection[str]) -> None:
    """Refuse `services` without the extras that the work they are set to needs, and a bus that nobody could use.

    Raises
    ------
    ConfigError
        With the setting and the extra.
    """
    from trainwarden.bus.address import check
    from trainwarden.trainer_offline.registry.address import is_registry

    check(settings.bus, settings.kafka)
    if "detector" in services and settings.detection.models and is_registry(settings.detection.models):
        need("mlflow", "detection.models (a registry)")
    if "trainer" in services:
        need("mlflow", "trainer")
        if settings.trainer.dask:
            need("distributed", "trainer.dask")
    if "engine" in services and settings.engine.launcher == "kubernetes":
        need("kubernetes", "engine.launcher = 'kubernetes'")
