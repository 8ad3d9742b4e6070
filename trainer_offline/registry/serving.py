"""From aliases to models that serve: fetched, verified, put together, and the last good ones kept on disk.

On disk lies one folder for each set of versions (`ModelBundle.save`) and ``served.json``, which names the newest good
set of each alias and is replaced in one step. Whatever happens to the registry or to an artifact in it, the set named
there serves on; if that is damaged too, none does, and detectors that need no models still vote.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import msgspec

from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.source import ModelSet
from trainwarden.errors import ConfigError, DataError, DetectorError
from trainwarden.state import load_json, save_json
from trainwarden.trainer_offline.registry.address import cache_folder
from trainwarden.trainer_offline.registry.parts import ENSEMBLE, join
from trainwarden.trainer_offline.registry.registry import Registry
from trainwarden.trainer_offline.registry.version import CHAMPION, PROVISIONAL

SERVED: Final = "served.json"
KEPT_SETS: Final = 4  # older ones are removed
SELDOM: Final = 360  # polls between two tries for a challenger that cannot be had: an hour, asked every ten seconds


@dataclass(frozen=True, slots=True)
class Wanted:
    """Version of each detector that should serve, and the alias that says so.

    A challenger's missing members are those that serve. Where a detector has no champion, its provisional version does.
    """

    versions: dict[str, str] = field(default_factory=dict)
    by: dict[str, str] = field(default_factory=dict)

    @classmethod
    def under(cls, registry: Registry, alias: str) -> Self:
        """What `alias` points to now; nothing where nobody has it."""
        found, models = cls(), registry.models()
        for one in (PROVISIONAL, CHAMPION, alias):
            for name, model in models.items():
                if one in model.aliases:
                    found.versions[name], found.by[name] = str(model.aliases[one]), one
        return found if alias in (CHAMPION, *found.by.values()) else cls()


def assemble(registry: Registry, alias: str = CHAMPION) -> tuple[dict[str, str], ModelBundle]:
    """The versions under `alias`, and their models as one bundle.

    Raises
    ------
    DetectorError
        If a version is refused (the message says why), or the set cannot serve.
    RegistryAway
        If the registry cannot be reached.
    """
    wanted = Wanted.under(registry, alias)
    versions = wanted.versions
    if ENSEMBLE not in versions or len(versions) < 2:
        have = ", ".join(sorted(versions)) or "none"
        raise DetectorError(
            f"alias {alias} needs a version of the ensemble and of one detector at least, it has {have}"
        )
    parts: dict[str, ModelBundle] = {}
    provisional = set()
    for name, number in versions.items():
        by = wanted.by[name]
        try:
            one = registry.version(name, number)
        except ConfigError as error:
            raise DetectorError(f"alias {by} of {name} points to version {number}, which does not exist") from error
        if one.provisional and by == CHAMPION:
            raise DetectorError(f"version {number} of {name} is refused: it is provisional, which is no champion")
        parts[name] = registry.fetch(one)
        if one.provisional:
            provisional.add(name)
    members = {name: part for name, part in parts.items() if name != ENSEMBLE}
    return versions, join(parts[ENSEMBLE], members, versions, provisional)


def local_bundle(registry: str | None, alias: str = CHAMPION) -> Path:
    """Folder of a `ModelBundle` with what serves under `alias`, brought up to date if the registry allows.

    Where the registry is away, or an artifact is refused, it is the last good set.

    Raises
    ------
    DetectorError
        If there is neither.
    """
    source = RegistrySource(Registry.at(registry), alias=alias)
    try:
        source.poll()
    except (DataError, DetectorError) as error:
        folder = source.kept(alias)
        if folder is None:
            raise DetectorError(str(error)) from error
    kept = source.kept(alias)
    assert kept is not None
    return kept


@dataclass(slots=True)
class RegistrySource:
    """A `trainwarden.detectors.metrics.source.ModelSource` that follows a registry's aliases.

    Parameters
    ----------
    folder : Path, optional
        Where the last good sets are kept; by default beside a local registry, else in the user's cache.
    alias : str
        Who serves.
    """

    registry: Registry
    folder: Path | None = None
    alias: str = CHAMPION
    shadow: str | None = None
    _told: tuple[Any, Any] | None = field(default=None, init=False)
    _missed: int = field(default=0, init=False)  # polls since the challenger could not be had; 0: nothing is missed
    _retry: int = field(default=1, init=False)  # ... after which it is asked for again: 1, 2, 4 and so on

    def poll(self) -> ModelSet | None:
        """The set to serve if it is another than last time, else None.

        Raises
        ------
        DetectorError
            If the champions are refused or their registry is away; what was served so far stays valid.
        """
        try:
            wanted = Wanted.under(self.registry, self.alias)
            # A challenger equal to the champion has nothing to show.
            shadow = Wanted.under(self.registry, self.shadow) if self.shadow else Wanted()
            shadow = Wanted() if shadow.versions == wanted.versions else shadow
            again = self._told == (wanted, shadow)
            if again and not self._due():
                return None
            bundle = self._current(self.alias, wanted)
        except DataError as error:
            raise DetectorError(str(error)) from error
        self._told = (wanted, shadow)
        challenger, why = self._challenger(shadow, again)
        return None if again and challenger is None else ModelSet(bundle, challenger, why)

    def _due(self) -> bool:
        """Whether a challenger that could not be had is asked for again at this poll."""
        if self._missed:
            self._missed += 1
        return self._missed > self._retry

    def _challenger(self, wanted: Wanted, again: bool) -> tuple[ModelBundle | None, str]:
        """The models `wanted`, or why there are none: the champion serves, whatever is wrong with them."""
        missed, self._missed = self._missed, 0
        if not wanted.versions or not self.shadow:
            return None, ""
        try:
            return self._current(self.shadow, wanted), ""
        except (DetectorError, DataError) as error:
            self._missed = 1
            self._retry = min(2 * self._retry, SELDOM) if again and missed else 1
            return None, str(error)

    def last_good(self) -> ModelSet | None:
        """What is kept on disk, for a start without a registry."""
        folder = self.kept(self.alias)
        if folder is None:
            return None
        shadow = self.kept(self.shadow) if self.shadow else None
        return ModelSet(ModelBundle.load(folder), None if shadow is None else ModelBundle.load(shadow))

    def kept(self, alias: str) -> Path | None:
        """Folder of the last good set of `alias`; None if there is none or it is damaged."""
        named = (load_json(self._place() / SERVED) or {}).get(alias)
        if not isinstance(named, str):
            return None
        try:
            ModelBundle.load(self._place() / named)
        except DetectorError:
            return None
        return self._place() / named

    def _current(self, alias: str, wanted: Wanted) -> ModelBundle:
        """The set `wanted`, from disk where it is kept already."""
        stand_in = [name for name, by in wanted.by.items() if by == PROVISIONAL]
        folder = self._place() / _set_name(self.registry.uri, wanted.versions, stand_in)
        if wanted.versions and self.kept(alias) == folder:
            return ModelBundle.load(folder)
        found, bundle = assemble(self.registry, alias)
        name = _set_name(self.registry.uri, found, bundle.provisional)
        bundle.save(self._place() / name)
        self._keep(alias, name)
        return bundle

    def _keep(self, alias: str, name: str) -> None:
        place = self._place()
        named = load_json(place / SERVED) or {}
        named[alias] = name
        save_json(place / SERVED, named)
        sets = sorted((one for one in place.glob("set-*") if one.is_dir()), key=lambda one: one.stat().st_mtime)
        for old in sets[:-KEPT_SETS]:
            if old.name not in named.values():
                shutil.rmtree(old, ignore_errors=True)

    def _place(self) -> Path:
        return self.folder or cache_folder(self.registry.uri)


def _set_name(uri: str, versions: dict[str, str], provisional: Collection[str]) -> str:
    text = msgspec.json.encode([uri, sorted(versions.items()), *sorted(provisional)])
    return f"set-{hashlib.sha256(text).hexdigest()[:16]}"
