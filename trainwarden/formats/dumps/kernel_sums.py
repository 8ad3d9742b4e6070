"""Format: sums over a rank's kernels: `nsys stats` (CSV, text) and the table of PyTorch's profiler.

Ranks are compared by the kernels that all of them ran equally often, so that other work is no slowness.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from trainwarden.errors import DataError
from trainwarden.formats.dumps.flight_recorder import rank_of
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source

MAX_KERNELS: Final = 100_000
_NSYS: Final = re.compile(r'(?m)^ {0,8}"?Time ?\(%\)"?(?:,"?| {1,40})Total Time \(ns\)"?[ ,]')
_TORCH: Final = re.compile(r"-{10,400}  -{4,40}  [-\s]{10,4000}\n\s{1,400}Name\s{1,40}Self C[PU]")
_BEFORE: Final = re.compile(r"(?:[ \t]{0,80}\n|STAGE:[^\n]{0,300}\n){0,20}")  # Kineto's own words
_CALLS: Final = re.compile(r"(?:void )?(?:nccl|rccl)(?:Dev)?Kernel", re.IGNORECASE)
_SENDS: Final = re.compile(r"(?i)ncclDevKernel_?SendRecv|ncclKernel_?SendRecv")
_GAP: Final = re.compile(r"\s{2,400}")
_TIME: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(us|ms|s)$")
_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
# Rows of the profiler's table that contain other rows: ranges of a program, of torch and of its optimizers.
_RANGES: Final = ("ProfilerStep", "nccl:", "Optimizer.", "##", "FSDP", "DistributedDataParallel", "Torch-Compiled")


@dataclass(frozen=True, slots=True)
class KernelSums:
    """What one rank's kernels took.

    Attributes
    ----------
    rank : int or None
        None where the file's name tells none.
    own_s : dict of (str, int) to float
        Seconds by name and number of calls, without kernels of collectives.
    wait_s : float
        Seconds in kernels of collectives.
    sends : bool
        Whether ranks send to each other.
    """

    rank: int | None
    own_s: Mapping[tuple[str, int], float]
    wait_s: float
    sends: bool


class KernelTable:
    """One rank a file; the name of the file says which."""

    name = "kernel sums"

    def sniff(self, name: str, head: str) -> float:
        """By the header of either program."""
        del name
        start = head[:20_000].replace("\r\n", "\n")
        if _TORCH.match(start, _BEFORE.match(start).end()):  # type: ignore[union-attr]  # it matches nothing, too
            return SURE
        return SURE if _NSYS.search(start) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        text = source.text().replace("\r\n", "\n")
        rows = list(_of_nsys(text) if _NSYS.search(text[:20_000]) else _of_torch(text))
        if not rows:
            raise DataError(
                f"{source.name}: it has no time of a kernel: give `nsys stats -r cuda_gpu_kern_sum`, or "
                "`key_averages().table()` of a profile with CUDA"
            )
        if len(rows) > MAX_KERNELS:
            raise DataError(f"{source.name} has more than {MAX_KERNELS:,} rows")
        own: dict[tuple[str, int], float] = {}
        for name, calls, seconds in rows:
            if not _CALLS.match(name):
                own[name, calls] = own.get((name, calls), 0.0) + seconds
        wait_s = sum(seconds for name, _, seconds in rows if _CALLS.match(name))
        sends = any(_SENDS.search(name) for name, _, _ in rows)
        return Found(rows=len(rows), kernels=[KernelSums(rank_of(source.stem), own, wait_s, sends)])


Row = tuple[str, int, float]


def _of_nsys(text: str) -> Iterator[Row]:
    """Rows of the reports that sum kernels; those of calls, copies and ranges have other columns."""
    header: list[str] = []
    for line in text.split("\n"):
        told = line.strip()
        if _NSYS.match(line):
            header = _cells(told)
        elif not told or told.startswith("**"):
            header = []
        elif "Instances" in header and "Name" in header and not set(told) <= set("- "):
            cells = _cells(told, len(header))
            if len(cells) != len(header):
                continue
            row = dict(zip(header, cells, strict=True))
            calls, taken = (row[name].replace(",", "") for name in ("Instances", "Total Time (ns)"))
            if calls.isdecimal() and taken.isdecimal():
                yield row["Name"], int(calls), int(taken) * 1e-9


def _cells(line: str, most: int = 0) -> list[str]:
    """Cells of a line of CSV, or of a text whose columns stand two blanks apart."""
    if re.match(r'"?[0-9.]{1,8}"?,|"?Time', line) and "," in line and not _GAP.search(line.partition(",")[0]):
        parted = next(csv.reader([line]), [])
        if len(parted) > 3 and (not most or len(parted) == most):
            return [cell.strip() for cell in parted]
    return _GAP.split(line, maxsplit=max(0, most - 1))


def _of_torch(text: str) -> Iterator[Row]:
    """Kernels of the first table; operators, which contain them, where an old torch lists no kernel."""
    found = list(_rows_of_torch(text))
    kernels = [row for row, on_host in found if not on_host]
    return iter(kernels or [row for row, _ in found])


def _rows_of_torch(text: str) -> Iterator[tuple[Row, bool]]:
    """Each row that took time on the device, and whether it took some on the host as well."""
    header: list[str] = []
    for line in text.split("\n"):
        cells = _GAP.split(line.strip())
        if cells[0] == "Name" and not header:
            header = cells
        elif line.startswith("Self C") and header:
            return
        elif len(cells) >= len(header) > 1:
            parts = len(cells) - len(header) + 1  # a name may hold blanks
            row = dict(zip(header, [" ".join(cells[:parts]), *cells[parts:]], strict=True))
            device_s, host_s = (_seconds(row.get(name, "")) for name in ("Self CUDA", "Self CPU"))
            calls = row.get("# of Calls", "")
            if device_s and calls.isdecimal() and not row["Name"].startswith(_RANGES):
                yield (row["Name"], int(calls), device_s), bool(host_s)


def _seconds(cell: str) -> float:
    match = _TIME.match(cell)
    return float(match[1]) * _SECONDS[match[2]] if match is not None else 0.0
