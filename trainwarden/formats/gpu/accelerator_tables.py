"""Format: a look at accelerators by `npu-smi info` (and its `-t health`, `-t ecc`) or by `hl-smi`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from trainwarden.errors import DataError
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.verdicts import Verdict, found_of_verdicts

_TITLE: Final = re.compile(r"(?m)^\| (?:npu-smi [0-9]|HL-SMI Version:)")
_KEYS: Final = re.compile(
    r"\s{0,40}(?:NPU ID\s{1,60}: [0-9]|Health(?: Status)?\s{1,60}: [A-Za-z]{2,10}\s{1,40}Error Code\s{1,60}: )"
)
# npu-smi: number and name, the device's own word for its health, power, temperature.
_NPU: Final = re.compile(
    r"\| ([0-9]{1,3}) {1,8}\S{1,30} {0,30}\| ([A-Za-z]{2,10}) {1,20}\| \S{1,12} {1,20}([0-9]{1,3}) "
)
# hl-smi: number and name, address, uncorrectable events; the temperature stands in the row below.
_HPU: Final = re.compile(
    r"\| {1,4}([0-9]{1,3}) {1,4}HL-\S{1,12} {1,40}\S{1,4} {1,4}\| {1,4}[0-9a-f:.]{7,16} {1,20}\S{1,4} {1,4}\|"
    r" {1,40}([0-9]{1,9}|N/A) "
)
_HEAT: Final = re.compile(r"\| {0,4}\S{1,4} {1,8}([0-9]{1,3})C ")
_KEY: Final = re.compile(r"\s{0,20}([A-Z][A-Za-z ]{1,60}?)\s{1,60}: {1,4}(\S.{0,200}?)\s{0,8}$")
_NUMBER: Final = "NPU ID"
_FAILED: Final = ("alarm", "critical")
_MEMORY: Final = re.compile(r"(?i)\becc\b|memory|hbm|ddr|multi-bit")
HOT_C: Final = 90  # as for GPUs (detectors/devices/limits.toml), where it must last
_IN_NAME: Final = re.compile(r"(?i)(?:npu|card|dev|chip)[_-]?([0-9]{1,3})(?![0-9])")


class _Look(NamedTuple):
    """What a table shows of one device; `events` counts uncorrectable errors."""

    device: str
    health: str = "ok"
    heat: int = 0
    events: int = 0
    words: str = ""


class AcceleratorTable:
    """One look a file, of all devices of a node or of one."""

    name = "accelerator table"

    def sniff(self, name: str, head: str) -> float:
        """By the title of the table, or keys that only npu-smi has."""
        del name
        start = head[:4_000].replace("\r\n", "\n")
        return SURE if _TITLE.search(start) or _KEYS.match(start) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        looks = list(_looks(source.text().replace("\r\n", "\n"), source.path.name))
        verdicts = [_verdict(one) for one in looks]
        told = [one for one in verdicts if one is not None]
        failed = any(one.failed is not None for one in told)
        odd = [one for one, verdict in zip(looks, verdicts, strict=True) if verdict is None]
        if odd and not failed:
            first = odd[0]
            raise DataError(
                f"{source.name}: {first.device} is neither well nor failed (health {first.health}, {first.heat} °C): "
                "give `npu-smi info -t health` of it, or several looks with their times"
            )
        return found_of_verdicts(source, self.name, told)


def _verdict(one: _Look) -> Verdict | None:
    """A verdict; None of a device that warns or is hot, which one look does not decide."""
    if one.events:
        return Verdict(one.device, "memory", f"{one.events} uncorrectable errors since its reset")
    if one.health in _FAILED:
        part = "memory" if _MEMORY.search(one.words) else "gpu"
        return Verdict(one.device, part, f"its own health is {one.health}{': ' if one.words else ''}{one.words}"[:400])
    return Verdict(one.device, "", None) if one.health == "ok" and one.heat < HOT_C else None


def _looks(text: str, file: str) -> Iterator[_Look]:
    if _TITLE.search(text[:4_000]) is None:
        yield from _of_keys(text, file)
        return
    hpu: _Look | None = None
    for line in text.split("\n"):
        if (npu := _NPU.match(line)) is not None:
            yield _Look(f"npu{int(npu[1])}", npu[2].lower(), int(npu[3]))
        elif (row := _HPU.match(line)) is not None:
            hpu = _Look(f"hpu{int(row[1])}", events=int(row[2]) if row[2].isdecimal() else 0)
        elif hpu is not None and (heat := _HEAT.match(line)) is not None:
            yield hpu._replace(heat=int(heat[1]))
            hpu = None


def _of_keys(text: str, file: str) -> Iterator[_Look]:
    """Keys and values of `npu-smi info -t health` or `-t ecc`, of one device or of several one after the other.

    A number that stands before the values is that of what follows; one that stands behind them, of what was before.
    """
    named = _IN_NAME.search(file)
    blank = _Look(f"npu{int(named[1])}" if named is not None else "npu", "")
    told = [(match[1], match[2]) for line in text.split("\n") if (match := _KEY.match(line)) is not None]
    leads = bool(told) and told[0][0] == _NUMBER
    look = blank
    for key, value in told:
        if key == _NUMBER and value.isdecimal():
            number = f"npu{int(value)}"
            if leads and look.health:
                yield look
            look = look._replace(device=number) if not leads else blank._replace(device=number)
        elif key in ("Health", "Health Status"):
            if look.health:
                yield look
                look = blank
            look = look._replace(health=value.lower())
        elif key == "Error Information" and value != "NA":
            look = look._replace(words=value[:200])
        elif key in ("HBM Double Bit Error Count", "DDR Double Bit Error Count") and value.isdecimal():
            look = look._replace(health=look.health or "ok", events=look.events + int(value))
    if look.health:
        yield look
