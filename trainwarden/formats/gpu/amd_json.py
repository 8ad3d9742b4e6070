"""Format: JSON of `amd-smi metric`, `amd-smi monitor` and `rocm-smi`, one answer or one a line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import pandas as pd

from trainwarden.errors import DataError
from trainwarden.formats import names
from trainwarden.formats.building import metric_table
from trainwarden.formats.cells import UNITS, NotNumber, number_of
from trainwarden.formats.exporters.exposition import named_s
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.roles import device_name
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import time_s_of
from trainwarden.formats.trackers.records import answers_of

EVERY_S: Final = 1.0
_ROCM: Final = re.compile(r'"card[0-9]{1,3}"\s{0,4}:')
_AMD: Final = ('"gfx_activity"', '"socket_power"', '"hotspot"', '"umc_activity"', '"gpu_data"', '"power_usage"')
# Ends of the paths of keys, and the spelling of `trainwarden.formats.vocabulary` for each.
_PATHS: Final[dict[str, str]] = {
    "gfx_0.clk": "gfx_0_clk", "clock.gfx.clk": "gfx_0_clk", "mem_0.clk": "mem_0_clk", "temperature.mem": "memory_temp",
    "ecc.total_correctable_count": "total_correctable_count", "pcie.width": "pcie.link.width.current",
    "ecc.total_uncorrectable_count": "total_uncorrectable_count", "mem_usage.used_vram": "used_vram",
    "mem_usage.total_vram": "total_vram", "mem_usage.free_vram": "free_vram", "pcie.replay_count": "replay_count",
    "gfx_0.max_clk": "clocks.max.sm", "gfx": "gfx", "gfx_clk": "gfx_clk", "mem_clk": "mem_clk",
}  # fmt: skip


class AmdJson:
    """An object for each GPU, its metrics nested."""

    name = "amd-smi json"

    def sniff(self, name: str, head: str) -> float:
        """By keys of either program."""
        del name
        start = head.lstrip()
        if start[:1] not in ("{", "["):
            return NEVER
        return SURE if _ROCM.search(start) or sum(key in start for key in _AMD) >= 2 else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        return found_of_answers(source, list(answers_of(source)))


def found_of_answers(source: Source, answers: list[Any]) -> Found:
    """What answers hold that the program's JSON or another form of it gave.

    Raises
    ------
    DataError
        If no GPU is in them.
    """
    rows = [row for place, answer in enumerate(answers) for row in _rows(answer, place)]
    if not rows:
        raise DataError(f"{source.name} holds no GPU")
    found = Found(rows=len(rows))
    start_s = named_s(source.path.name)
    if any("time_s" not in row for row in rows):
        if start_s is None:
            start_s = source.path.stat().st_mtime - EVERY_S * (len(answers) - 1)
        found.notes.append(f"no times written: samples taken for {EVERY_S:.0f} s apart")
        rows = [{"time_s": start_s + EVERY_S * float(row["place"]), **row} for row in rows]
    if (table := metric_table(pd.DataFrame(rows).drop(columns="place"))) is not None:
        found.metrics.append(table)
    return found


def _rows(answer: Any, place: int) -> Iterator[dict[str, Any]]:
    """A row for each GPU of one answer."""
    stamp = _time_s(answer) if isinstance(answer, dict) else None
    if isinstance(answer, list):
        entries = [(one.get("gpu", number), one) for number, one in enumerate(answer) if isinstance(one, dict)]
        if entries and all("gpu_data" in one for _, one in entries):
            for number, (_, one) in enumerate(entries):
                yield from _rows(one, place + number)
            return
    elif isinstance(answer, dict) and isinstance(answer.get("gpu_data"), list):
        entries = [(one.get("gpu", number), one) for number, one in enumerate(answer["gpu_data"])]
    elif isinstance(answer, dict):
        cards = {key: one for key, one in answer.items() if isinstance(one, dict) and key.startswith("card")}
        entries = list(cards.items()) if cards else [(answer.get("gpu", 0), answer)]
    else:
        return
    for who, one in entries:
        row: dict[str, Any] = {"device": device_name(who, True), "place": place}
        own = _time_s(one) if isinstance(one, dict) else None
        if own is not None or stamp is not None:
            row["time_s"] = own if own is not None else stamp
        _flatten(one, "", row)
        for name, count in _of_blocks(one).items():
            row.setdefault(name, count)
        yield row


def _of_blocks(one: Any) -> dict[str, float]:
    """Memory errors of a GPU's blocks, added up: `amd-smi metric --ecc-blocks` without `--ecc`."""
    blocks = one.get("ecc_blocks") if isinstance(one, dict) else None
    found: dict[str, float] = {}
    for block in blocks.values() if isinstance(blocks, dict) else ():
        for kind in ("correctable", "uncorrectable") if isinstance(block, dict) else ():
            told = str(block.get(f"{kind}_count", ""))
            if told.isdecimal():
                name = f"gpu_ecc_{kind}_volatile_count"
                found[name] = found.get(name, 0.0) + float(told)
    return found


def _time_s(one: Mapping[str, Any]) -> float | None:
    found = time_s_of(str(one.get("timestamp", one.get("time", ""))))
    return found if found > 1e8 else None


def _flatten(one: Any, path: str, row: dict[str, Any]) -> None:
    if isinstance(one, dict) and set(one) >= {"value", "unit"}:
        _put(row, path, f"{one['value']} {one['unit']}")
    elif isinstance(one, dict):
        for key, value in one.items():
            _flatten(value, f"{path}.{key}" if path else str(key), row)
    elif isinstance(one, str | int | float) and not isinstance(one, bool):
        _put(row, path, str(one))


def _put(row: dict[str, Any], path: str, text: str) -> None:
    """Put a value under its catalogue name, if it has one."""
    spelt = next((name for end, name in _PATHS.items() if path == end or path.endswith(f".{end}")), None)
    heading = names.metric_of(spelt or path) or names.metric_of(path.rsplit(".", 1)[-1])
    if heading is None or heading.name in row:
        return
    try:
        value, unit = number_of(text.strip("()").replace("Mhz", "MHz"))
    except NotNumber:
        return
    said = UNITS.get(unit.lower())
    row[heading.name] = value * (said[1] if said is not None and said[0] == heading.unit else heading.factor)
