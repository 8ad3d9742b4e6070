"""What ranks and links took when all was well: the measure for those that have too few peers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import msgspec

from trainwarden.errors import DataError
from trainwarden.state import save_json

log = logging.getLogger("trainwarden.validation")


class _Kept(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    busy_s: dict[str, float] = {}
    link_s: dict[str, float] = {}


class Baseline:
    """Seconds by name of a rank's place, and of a direction between two; kept in a file, if one is named.

    An entry is written once, after a validation that accused nobody, and never again: a machine that gets slower would
    else take its baseline with it. Who changes hardware deletes the file.

    Raises
    ------
    DataError
        If the file is there and is no baseline.

    Examples
    --------
    >>> baseline = Baseline(None)
    >>> baseline.learn({"n/0": 0.5}, {})
    >>> baseline.learn({"n/0": 0.7}, {})
    >>> dict(baseline.busy_s)
    {'n/0': 0.5}
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._kept = _Kept()
        if path is None:
            return
        try:
            self._kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError) as error:
            raise DataError(f"baseline {path} cannot be read: {error}") from error

    @property
    def busy_s(self) -> Mapping[str, float]:
        """What a burn-in took on each place."""
        return self._kept.busy_s

    @property
    def link_s(self) -> Mapping[str, float]:
        """What a message took in each direction of each link."""
        return self._kept.link_s

    def learn(self, busy_s: Mapping[str, float], link_s: Mapping[str, float]) -> None:
        """Apply what is not known yet."""
        new = _Kept(busy_s={**busy_s, **self._kept.busy_s}, link_s={**link_s, **self._kept.link_s})
        if new == self._kept:
            return
        self._kept = new
        if self._path is None:
            return
        try:
            save_json(self._path, new, durable=False)
        except OSError as error:
            log.warning("baseline is not kept", extra={"fields": {"file": str(self._path), "error": str(error)}})
