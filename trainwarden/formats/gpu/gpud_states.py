"""Format: what gpud says of a machine's parts (`/v1/states`, `gpud states`): JSON, a list of components.

Each state becomes a line: an Xid as the driver writes it, the rest as in `trainwarden.formats.gpu.health_reports`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from trainwarden.errors import DataError
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import time_s_of
from trainwarden.formats.verdicts import Verdict, line_of
from trainwarden.recorded.job import LogTable

_XID: Final = re.compile(r"(?i)\bXID ([0-9]{1,4})\b.{0,200}?\bPCI:([0-9A-Fa-f:.]{4,32})")
_PORT: Final = re.compile(r"\b(mlx5_[0-9a-z_]{1,12}) port [0-9]{1,3} (?:down|drop|flap)")
_BAD: Final = "unhealthy"  # what is degraded goes on
# Parts by the names of components (github.com/leptonai/gpud, components/accelerator/nvidia); the first that fits.
_PARTS: Final = (
    ("ecc", "memory"), ("remapped-rows", "memory"), ("nvlink", "nvlink"), ("fabric-manager", "nvlink"),
    ("infiniband", "port"), ("hw-slowdown", "clocks"), ("temperature", "clocks"), ("accelerator-nvidia", "gpu"),
)  # fmt: skip


class GpudStates:
    """States of the components that judge accelerators and their ports; others are left out, by name."""

    name = "gpud states"

    def sniff(self, name: str, head: str) -> float:
        """By the keys of a component and of its states."""
        del name
        start = head.lstrip()[:400]
        told = start[:1] in {"[", "{"} and '"component"' in start and '"states"' in start
        return SURE if told and '"health' in head else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        try:
            whole = msgspec.json.decode(source.text())
        except (msgspec.DecodeError, RecursionError) as error:
            raise DataError(f"{source.name} is not the JSON that it looks like: {error}") from error
        components = [one for one in (whole if isinstance(whole, list) else [whole]) if isinstance(one, dict)]
        said = [pair for one in components for pair in _said(one, source.path.stat().st_mtime)]
        if not said:
            raise DataError(f"{source.name}: no component of accelerators or their ports has a state: give all of them")
        said.sort(key=lambda pair: pair[0])
        nobody = (None,) * len(said)
        times = np.array([time_s for time_s, _ in said])
        found = Found(rows=len(said), logs=[LogTable("gpud states", times, nobody, nobody, [line for _, line in said])])
        others = [name for one in components if not _part(name := str(one.get("component", "?")))]
        if others:
            found.notes.append(f"components that say nothing of accelerators left out: {', '.join(others[:8])}")
        return found


def _part(component: str) -> str:
    return next((part for word, part in _PARTS if word in component), "")


def _said(component: Mapping[str, Any], now_s: float) -> Iterator[tuple[float, str]]:
    """Time and line of each state of a component."""
    part = _part(str(component.get("component", "")))
    states = component.get("states")
    for state in states if part and isinstance(states, list) else ():
        if not isinstance(state, dict):
            continue
        time_s = time_s_of(str(state.get("time") or ""))
        reason = " ".join(str(state.get("reason") or state.get("name") or "").split())[:400]
        bad = str(state.get("health", "")).lower() == _BAD
        yield (time_s if np.isfinite(time_s) else now_s), _line(part, reason if bad else None)


def _line(part: str, reason: str | None) -> str:
    if reason is None:
        return line_of(Verdict("node", part, None))
    if (xid := _XID.search(reason)) is not None:
        return f"NVRM: Xid (PCI:{xid[2]}): {xid[1]}, {reason}"
    port = _PORT.search(reason) if part == "port" else None
    return line_of(Verdict(port[1] if port else "node", part, reason))
