"""Plug-ins: a CATALOG table in each plug-in package, and entry points for third parties.

A CATALOG maps a plug-in's name to where its class is (``"module:Class"``), so that listing the names
imports nothing and only what a configuration names is ever loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import msgspec

from trainwarden.errors import ConfigError
from trainwarden.settings import parse


def load(catalog: Mapping[str, str], group: str, name: str) -> type[Any]:
    """The class of plug-in `name` from `catalog`, else from the entry points of `group`.

    Parameters
    ----------
    catalog : mapping
        Name to ``"module:Class"``.
    group : str
        Entry-point group of third parties, e.g. ``"trainwarden.collectors"``.
    name : str
        The plug-in's name in settings.

    Raises
    ------
    ConfigError
        If there is no such plug-in; the message lists those that there are.
    """
    if name in catalog:
        module, _, attribute = catalog[name].partition(":")
        found: type[Any] = getattr(import_module(module), attribute)
        return found
    third = {point.name: point for point in entry_points(group=group)}
    if name in third:
        loaded: type[Any] = third[name].load()
        return loaded
    known = ", ".join(sorted({*catalog, *third}))
    raise ConfigError(f"there is no {group.rpartition('.')[2]} plug-in '{name}'; there are: {known}")


def configure(plugin: type[Any], raw: Mapping[str, Any], where: str) -> msgspec.Struct:
    """The plug-in's own `Config`, checked from `raw`; unknown keys and impossible values are refused.

    Raises
    ------
    ConfigError
        With one sentence that starts with `where`.
    """
    config: msgspec.Struct = parse(plugin.Config, raw, where)
    return config
