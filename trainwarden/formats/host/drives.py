"""Format: what smartctl, `nvme smart-log` and `/proc/mdstat` say of drives: those that fail, and arrays without one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from trainwarden.errors import DataError
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.verdicts import Verdict, found_of_verdicts

_SMARTCTL: Final = re.compile(r"(?m)^smartctl [0-9]\.[0-9]{1,3} ")
_NVME: Final = re.compile(r"(?m)^Smart Log for NVME device:\s{0,4}(\S{1,40})")
_MDSTAT: Final = re.compile(r"(?m)^Personalities :")
_JSON: Final = re.compile(r'\A\s{0,80}\{[\s\S]{0,4000}?"(?:smartctl|critical_warning)"')
_FIELD: Final = re.compile(r"^([A-Za-z][A-Za-z _/()-]{1,60}?)\s{0,40}:\s{1,40}(\S[^\n]{0,200})$")
_ARRAY: Final = re.compile(r"^(md[0-9A-Za-z_/-]{1,20}) : (active|inactive)\b([^\n]{0,2000})")
_MEMBERS: Final = re.compile(r"\[([0-9]{1,4})/([0-9]{1,4})\] \[[U_]{1,400}\]")
_ATTRIBUTE: Final = re.compile(r"^\s{0,4}[0-9]{1,3}\s{1,4}(\S{1,40})\s[^\n]{0,200}\sFAILING_NOW\b")
# Bits of Critical Warning (NVM Express base specification 1.4, figure 196).
_BITS: Final = (
    "spare blocks run out", "it is too hot or too cold", "its reliability is degraded by media errors",
    "it is read only", "its backup of volatile memory has failed",
)  # fmt: skip
_HEAT: Final = 1  # the bit that passes by itself


class Drives:
    """Reports of one drive or several, one after the other."""

    name = "drive report"

    def sniff(self, name: str, head: str) -> float:
        """By the first line of each program's answer."""
        del name
        start = head[:4_000]
        if any(pattern.search(start) for pattern in (_SMARTCTL, _NVME, _MDSTAT)):
            return SURE
        return SURE if _JSON.match(start) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        text = source.text()
        if _JSON.match(text[:4_000]):
            return found_of_verdicts(source, "drive report", _of_json(text, source.stem))
        return found_of_verdicts(source, "drive report", [*_of_text(text, source.stem), *_of_arrays(text)])


def _of_json(text: str, name: str) -> Iterator[Verdict]:
    """Of `smartctl --json` and `nvme smart-log -o json`."""
    try:
        said: Any = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise DataError(f"{name}: the JSON cannot be read ({error})") from error
    log = said.get("nvme_smart_health_information_log", said)
    device = said.get("device", {}).get("name") or said.get("serial_number") or name
    passed = said.get("smart_status", {}).get("passed", True)
    warning = log.get("critical_warning", 0)
    warning = warning.get("value", 0) if isinstance(warning, dict) else int(warning)
    yield _verdict(str(device), warning, [] if passed else ["it says itself that it fails"])


def _of_text(text: str, name: str) -> Iterator[Verdict]:
    """Of each drive of a text."""
    device: str | None = None
    warning, failed = 0, list[str]()
    for line in text.split("\n"):
        if (nvme := _NVME.match(line)) is not None or _SMARTCTL.match(line) is not None:
            if device is not None:
                yield _verdict(device, warning, failed)
            device, warning, failed = (f"/dev/{nvme[1].removeprefix('/dev/')}" if nvme is not None else name), 0, []
        elif device is not None and (field := _FIELD.match(line)) is not None:
            key, value = field[1].strip().lower().replace(" ", "_"), field[2]
            if key in ("serial_number", "serial_no") and device == name:
                device = f"drive_{value.strip()}"
            elif key == "critical_warning":
                warning = int(value.split()[0], 0)
            elif "health" in key and value.startswith("FAILED"):
                failed.append("it says itself that it fails")
        elif device is not None and (attribute := _ATTRIBUTE.match(line)) is not None:
            failed.append(f"{attribute[1]} is below its threshold")
    if device is not None:
        yield _verdict(device, warning, failed)


def _of_arrays(text: str) -> Iterator[Verdict]:
    """Of each array of the kernel's software RAID."""
    name, members = "", ""
    for line in text.split("\n"):
        if (array := _ARRAY.match(line)) is not None:
            name, members = array[1], array[3]
            if array[2] == "inactive":
                yield Verdict(f"/dev/{name}", "storage", "the array is not active")
        elif name and (number := _MEMBERS.search(line)) is not None:
            lost = int(number[1]) - int(number[2])
            failed = re.findall(r"(\S{1,40})\[[0-9]{1,4}\]\(F\)", members)
            words = f"{lost} of {number[1]} drives are missing" + (f": {', '.join(failed)} failed" if failed else "")
            yield Verdict(f"/dev/{name}", "storage", words if lost > 0 else None)
            name = ""


def _verdict(device: str, warning: int, failed: list[str]) -> Verdict:
    """The verdict on a drive, by its own health and the bits of its warning; heat alone is another thing."""
    words = [*failed, *(said for bit, said in enumerate(_BITS) if warning >> bit & 1 and bit != _HEAT)]
    return Verdict(device, "storage", ", ".join(dict.fromkeys(words)) or None)
