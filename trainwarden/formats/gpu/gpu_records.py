"""Format: one record a moment with all GPUs of a node in it: `gpustat --json`, `nvidia-smi -q -x`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from xml.etree import ElementTree

import msgspec
import pandas as pd

from trainwarden.errors import DataError
from trainwarden.formats.interpret import interpreted
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.table import Table

_PAGE_END: Final = "</nvidia_smi_log>"
# Paths in the XML of nvidia-smi, by their ends: the name its csv has for the same.
_PATHS: Final[dict[str, str]] = {
    "minor_number": "index", "uuid": "uuid", "clocks/sm_clock": "clocks.sm", "clocks/mem_clock": "clocks.mem",
    "max_clocks/sm_clock": "clocks.max.sm", "temperature/gpu_temp": "temperature.gpu",
    "temperature/memory_temp": "temperature.memory", "utilization/gpu_util": "utilization.gpu",
    "gpu_power_readings/power_draw": "power.draw", "gpu_power_readings/instant_power_draw": "power.draw",
    "power_readings/power_draw": "power.draw", "gpu_power_readings/current_power_limit": "power.limit",
    "fb_memory_usage/used": "memory.used", "fb_memory_usage/total": "memory.total", "performance_state": "pstate",
    "pcie_gen/current_link_gen": "pcie.link.gen.current", "pcie_gen/max_link_gen": "pcie.link.gen.max",
    "link_widths/current_link_width": "pcie.link.width.current", "link_widths/max_link_width": "pcie.link.width.max",
    "pci/replay_counter": "gpu_pcie_replay_count",
    "volatile/dram_uncorrectable": "ecc.errors.uncorrected.volatile.total",
    "volatile/dram_correctable": "ecc.errors.corrected.volatile.total",
    "aggregate/dram_uncorrectable": "ecc.errors.uncorrected.aggregate.total",
    "remapped_rows/remapped_row_pending": "remapped_rows.pending",
    "remapped_rows/remapped_row_failure": "remapped_rows.failure",
}  # fmt: skip
# Ends of the names of reasons and their bits (nvmlClocksEventReason).
_REASONS: Final[dict[str, int]] = {
    "gpu_idle": 0x1, "applications_clocks_setting": 0x2, "sw_power_cap": 0x4, "hw_slowdown": 0x8, "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20, "hw_thermal_slowdown": 0x40, "hw_power_brake_slowdown": 0x80,
}  # fmt: skip
_REASON: Final = re.compile(r"clocks_(?:event|throttle)_reason_(\w{1,60})$")
# gpustat: a line for the host and the moment, then one for each GPU, of which options leave parts out.
_HOST: Final = re.compile(r"(\S{1,200}) {1,40}([A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}[0-9]{1,2} [0-9:]{8} [0-9]{4})\b")
_GPU: Final = re.compile(
    r"\[([0-9]{1,3})\] ([^|\n]{1,80}?) {0,20}\| {0,4}([0-9]{1,3})°C,(?: {0,4}[0-9]{1,3} %,)?? {0,4}([0-9]{1,3}) %"
    r"(?:, {0,4}([0-9]{1,5}) / {1,4}([0-9]{1,5}) W)? {0,4}\| {0,8}([0-9]{1,8}) / {0,8}([0-9]{1,8}) MB"
)
_CELLS: Final = ("index", "name", "temperature.gpu", "utilization.gpu", "power.draw", "power.limit", "memory.used",
                 "memory.total")  # fmt: skip


class GpuRecords:
    """JSON lines or pages of XML, a list of GPUs in each."""

    name = "gpu records"

    def sniff(self, name: str, head: str) -> float:
        """By the keys of either program."""
        del name
        start = head[:8_000]
        if start.lstrip().startswith("{"):
            return SURE if '"query_time"' in start and '"gpus"' in start else NEVER
        printed = any(_GPU.match(line) for line in start.split("\n", 12)[:12])
        return SURE if printed or "<nvidia_smi_log>" in start else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        text = source.text()
        if text.lstrip().startswith("{"):
            rows = list(_of_json(text))
        else:
            rows = list(_of_xml(text, source.name) if "<nvidia_smi_log>" in text else _of_gpustat(text))
        if not rows:
            raise DataError(f"{source.name} holds no GPU")
        frame = pd.DataFrame(rows).astype(object)
        frame = frame.where(frame.notna(), None)
        return interpreted(Table(source.name, frame, columns, range(1, len(frame) + 1)))


def _of_json(text: str) -> Iterator[dict[str, Any]]:
    decoder = msgspec.json.Decoder(dict[str, Any])
    # Answers may be a line each, or printed over many lines of which only the first begins with a brace.
    for piece in re.split(r"\n(?=\{)", text):
        try:
            answer = decoder.decode(piece)
        except (msgspec.DecodeError, RecursionError):
            continue  # cut short
        for gpu in answer.get("gpus") or []:
            if isinstance(gpu, dict):
                plain = {key: value for key, value in gpu.items() if not isinstance(value, list | dict)}
                yield {"timestamp": answer.get("query_time"), "hostname": answer.get("hostname"), **plain}


def _of_gpustat(text: str) -> Iterator[dict[str, Any]]:
    host: dict[str, str] = {}
    for line in text.split("\n"):
        if (match := _HOST.match(line)) is not None:
            host = {"hostname": match[1], "timestamp": match[2]}
        elif (match := _GPU.match(line)) is not None:
            yield {**host, **dict(zip(_CELLS, match.groups(), strict=True))}


def _of_xml(text: str, file: str) -> Iterator[dict[str, Any]]:
    if "<!ENTITY" in text:
        raise DataError(f"{file} defines entities, which nvidia-smi does not write: it is not read")
    for page in text.split(_PAGE_END)[:-1]:
        start = page.find("<nvidia_smi_log>")
        try:
            root = ElementTree.fromstring(page[start:] + _PAGE_END)  # noqa: S314 - no entity is defined in it
        except ElementTree.ParseError as error:
            raise DataError(f"{file} is no sound XML ({error})") from error
        for gpu in root.iter("gpu"):
            yield {"timestamp": root.findtext("timestamp"), "pci.bus_id": gpu.get("id"), **_gpu(gpu)}


def _gpu(gpu: ElementTree.Element) -> dict[str, Any]:
    found: dict[str, Any] = {}
    reasons: int | None = None
    for path, text in _leaves(gpu, ""):
        name = next((spelling for end, spelling in _PATHS.items() if path == end or path.endswith(f"/{end}")), None)
        if name is not None:
            found.setdefault(name, text)
        elif (match := _REASON.search(path)) and match[1] in _REASONS:
            reasons = (reasons or 0) | (_REASONS[match[1]] if text == "Active" else 0)
    return found if reasons is None else {**found, "clocks_event_reasons.active": hex(reasons)}


def _leaves(of: ElementTree.Element, before: str) -> Iterator[tuple[str, str]]:
    for one in of:
        path = f"{before}/{one.tag}" if before else one.tag
        if len(one):
            yield from _leaves(one, path)
        elif one.text:
            yield path, one.text.strip()
