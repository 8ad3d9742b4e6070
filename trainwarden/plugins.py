"""Plug-ins: a CATALOG table in each plug-in package, and entry points for third parties.

A CATALOG maps a plug-in's name to where its class is (``"module:Class"``), so that listing the names
imports nothing and only what a configuration names is ever loaded. What is in a CATALOG runs unless it is
`OptIn` there or the settings say so; what comes from outside runs where the settings name it.

A class may bring, beside its `Config`: ``metrics_file`` (a table of its own metrics, in the form of
``catalogue.toml``), ``events`` (its own kinds of event, each with a struct of their fields) and ``page`` (a
Markdown page for whoever operates it). Files are named as they lie beside the module of the class.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final

import msgspec

from trainwarden import catalogue, former_names
from trainwarden.errors import ConfigError
from trainwarden.records import EVENT_KINDS, EVENT_NAME
from trainwarden.settings import PluginSettings, Settings, parse

GROUPS: Final = ("trainwarden.collectors", "trainwarden.detectors", "trainwarden.launchers")


class OptIn(str):
    """A place in a CATALOG of what runs only where settings name it: ``"name": Off("module:Class")``."""

    __slots__ = ()


def chosen(catalog: Mapping[str, str], group: str, said: Mapping[str, PluginSettings]) -> dict[str, dict[str, Any]]:
    """The plug-ins that run, in the order of the table, each with what the settings say of it.

    Parameters
    ----------
    catalog : mapping
        Name to ``"module:Class"``.
    group : str
        Entry-point group of third parties.
    said : mapping
        From the settings: a plug-in's own table, True for its defaults, or False where it is not to run.

    Raises
    ------
    ConfigError
        If a name is no plug-in's; the message lists those that there are.

    Examples
    --------
    >>> table = {"lof": "m:Lof", "dtw": "m:Dtw", "slow": OptIn("m:Slow")}
    >>> chosen(table, "trainwarden.detectors", {"lof": {"threshold": 0.5}})
    {'lof': {'threshold': 0.5}, 'dtw': {}}
    >>> chosen(table, "trainwarden.detectors", {"lof": False, "slow": True})
    {'dtw': {}, 'slow': {}}
    """
    for name in said:
        if name not in catalog:
            _third_party(catalog, group, name)
    wanted: dict[str, PluginSettings] = {name: not isinstance(place, OptIn) for name, place in catalog.items()}
    wanted.update(said)
    return {name: {} if raw is True else raw for name, raw in wanted.items() if raw is not False}


def names(catalog: Mapping[str, str], group: str) -> list[str]:
    """Every plug-in that there is: those of the table, then those of third parties that are installed here."""
    return [*catalog, *sorted(entry_points(group=group).names - catalog.keys())]


def load(catalog: Mapping[str, str], group: str, name: str) -> type[Any]:
    """The class of plug-in `name` from `catalog`, else from the entry points of `group`, with all that it brings.

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
        If there is no such plug-in (the message lists those that there are), it cannot be imported, or a name that
        it brings is taken.
    """
    if name in catalog:
        module, _, attribute = catalog[name].partition(":")
        found: type[Any] = getattr(import_module(module), attribute)
    else:
        found = _imported(_third_party(catalog, group, name))
    admit(found, f"{group.rpartition('.')[2]} plug-in '{name}'")
    return found


def configure(plugin: type[Any], raw: Mapping[str, Any], where: str) -> msgspec.Struct:
    """The plug-in's own `Config`, checked from `raw`; unknown keys and impossible values are refused.

    Raises
    ------
    ConfigError
        With one sentence that starts with `where`.
    """
    config: msgspec.Struct = parse(plugin.Config, raw, where)
    return config


def bring(settings: Settings) -> None:
    """Let this process know the metrics and events of every third-party plug-in that the settings name.

    A process reads what plug-ins of other processes have sent: the detector what a collector has measured. One that
    is not installed here brings nothing.

    Raises
    ------
    ConfigError
        As `load`.
    """
    launcher: dict[str, PluginSettings] = {settings.engine.launcher: settings.engine.launcher_settings}
    for group, said in zip(GROUPS, (settings.agent.collectors, settings.detection.detectors, launcher), strict=True):
        installed = {point.name for point in entry_points(group=group)} if said else set()
        for name in said:
            if name in installed and said[name] is not False:
                load({}, group, name)


def admit(plugin: type[Any], what: str) -> None:
    """Take the metrics and the kinds of event that `plugin` brings; `what` is its name in a sentence.

    Raises
    ------
    ConfigError
        If a name is taken or is none, or its table cannot be read.
    """
    for kind, fields in getattr(plugin, "events", {}).items():
        if not re.fullmatch(EVENT_NAME, kind):
            raise ConfigError(f"{what}: '{kind}' is no name for a kind of event; one is like rackside.zone_tripped")
        if kind in EVENT_KINDS or _EVENTS.get(kind, fields) is not fields:
            raise ConfigError(f"{what}: the event kind '{kind}' is taken already")
    catalogue.add(metrics_of(plugin, what), what)
    _EVENTS.update(getattr(plugin, "events", {}))


def metrics_of(plugin: type[Any], what: str) -> tuple[catalogue.Metric, ...]:
    """The metrics of the table beside `plugin`; none where it names no table.

    Raises
    ------
    ConfigError
        If its table cannot be read.
    """
    path = beside(plugin, "metrics_file")
    if path is None:
        return ()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what}: {path.name} cannot be read ({error})") from error
    return catalogue.read_table(text, f"{what}: {path.name}")


def beside(plugin: type[Any], attribute: str) -> Path | None:
    """The file that the class attribute `attribute` names, beside the module of the class; None where it is not set."""
    name: str | None = getattr(plugin, attribute, None)
    return None if name is None else Path(inspect.getfile(plugin)).with_name(name)


_EVENTS: dict[str, type[msgspec.Struct]] = {}  # of all plug-ins that this process has loaded


def _third_party(catalog: Mapping[str, str], group: str, name: str) -> EntryPoint:
    points = entry_points(group=group)
    found = [point for point in points if point.name == name]
    kind = group.rpartition(".")[2]
    if not found:
        known = ", ".join(sorted(names(catalog, group)))
        raise ConfigError(f"there is no {kind} plug-in '{name}'; there are: {known}")
    if len({point.value for point in found}) > 1:
        places = " and ".join(sorted({point.value for point in found}))
        raise ConfigError(f"{kind} plug-in '{name}' comes from {places}: uninstall one of them")
    return found[0]


def _imported(point: EntryPoint) -> type[Any]:
    former_names.accept()  # it may have been written for the version before the packages lay below `trainwarden`
    try:
        loaded: type[Any] = point.load()
    except (ImportError, AttributeError) as error:
        kind = point.group.rpartition(".")[2]
        raise ConfigError(f"{kind} plug-in '{point.name}' cannot be imported from {point.value}: {error}") from error
    return loaded
