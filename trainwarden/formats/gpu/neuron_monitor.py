"""Format: what AWS' neuron-monitor writes, an object for each period: memory errors of the devices.

Each device becomes a line as those of `trainwarden.formats.gpu.health_reports`, of the first report that has an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from trainwarden.errors import DataError
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.trackers.records import answers_of
from trainwarden.formats.verdicts import Verdict, verdict_tables

_COUNTERS: Final = "neuron_hw_counters"
_PERIOD_S: Final = 5.0  # the program's default
_COUNTS: Final = ("mem_ecc_uncorrected", "sram_ecc_uncorrected")


class NeuronMonitor:
    """The counters of the hardware; what it tells of models that are served is left out."""

    name = "neuron-monitor"

    def sniff(self, name: str, head: str) -> float:
        """By the keys of its report."""
        del name
        told = head.lstrip()[:1] in {"{", "["} and '"neuron_runtime_data"' in head
        return SURE if told and f'"{_COUNTERS}"' in head else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        reports = [one for one in answers_of(source) if isinstance(one, dict)]
        end_s = source.path.stat().st_mtime
        said: dict[str, tuple[float, float, str | None]] = {}
        for place, one in enumerate(reports):
            for device, time_s, count, node in _counted(one, end_s, len(reports) - 1 - place):
                if device not in said or not said[device][1]:
                    said[device] = (time_s, count, node)
        if not said:
            raise DataError(
                f"{source.name}: no device has counters: switch on {_COUNTERS} in the monitor's configuration"
            )
        verdicts = (
            Verdict(device, "memory", f"{count:.0f} uncorrected errors" if count else None, node, time_s)
            for device, (time_s, count, node) in said.items()
        )
        found = Found(rows=len(reports), logs=verdict_tables(self.name, verdicts, end_s))
        found.notes.append("no times written: the last report is of the file's last change, each a period before it")
        return found


def _counted(report: Mapping[str, Any], end_s: float, back: int) -> Iterator[tuple[str, float, float, str | None]]:
    """Device, time, count and node of each device that the report counts errors of."""
    counters = _inner(_inner(report, "system_data"), _COUNTERS)
    period_s = counters.get("period")
    time_s = end_s - back * (float(period_s) if isinstance(period_s, int | float) and period_s > 0 else _PERIOD_S)
    told = _inner(report, "instance_info")
    node = str(told.get("instance_name") or told.get("instance_id") or "") or None
    devices = counters.get("neuron_devices")
    for one in devices if isinstance(devices, list) else ():
        counts = [one[key] for key in _COUNTS if isinstance(one.get(key), int | float)] if isinstance(one, dict) else []
        if counts:
            yield f"neuron{one.get('neuron_device_index', 0)}", time_s, float(sum(counts)), node


def _inner(one: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = one.get(key)
    return found if isinstance(found, dict) else {}
