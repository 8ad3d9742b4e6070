"""Format: tables of `sacct` and `sinfo`; ends of jobs and nodes as the lines that Slurm logs of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from trainwarden.errors import DataError
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import time_s_of
from trainwarden.recorded.job import LogTable

_DOWN: Final = ("down", "fail", "not_responding", "unk")
_GAP: Final = re.compile(r"\s{1,200}")


class SlurmTable:
    """Parted by bars (`--parsable`, `-P`), commas or blanks."""

    name = "slurm table"

    def sniff(self, name: str, head: str) -> float:
        """By the names of columns."""
        del name
        first = {cell.lower() for cell in _cells(head.split("\n", 1)[0])}
        jobs = "jobid" in first and "state" in first
        nodes = "nodelist" in first and "state" in first and bool(first & {"partition", "nodes", "reason", "avail"})
        return SURE if jobs or nodes else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        lines = [line for line in source.text().split("\n") if line.strip()]
        if not lines:
            raise DataError(f"{source.name} is empty")
        header = [cell.lower() for cell in _cells(lines[0])]
        if "state" not in header:
            raise DataError(f"{source.name} line 1: there is no column State")
        bars = _delimiter(lines[0])
        rows = [dict(zip(header, _cells(line, bars), strict=False)) for line in lines[1:]
                if not set(line.strip()) <= set("- ")]  # fmt: skip
        now_s = source.path.stat().st_mtime
        said = [one for row in rows for one in _said(row, now_s)]
        found = Found(rows=len(rows))
        if said:
            said.sort(key=lambda one: one[0])
            times = np.array([time_s for time_s, *_ in said])
            nobody = (None,) * len(said)
            nodes = tuple(node for _, node, _ in said)
            found.logs.append(LogTable("slurm", times, nodes, nobody, [line for *_, line in said]))
        found.notes.append(f"{len(said)} of {len(rows)} rows end in a failure or are of nodes that are down")
        return found


def _delimiter(line: str) -> str:
    return "|" if "|" in line else "," if line.count(",") > 1 else ""


def _cells(line: str, delimiter: str | None = None) -> list[str]:
    delimiter = _delimiter(line) if delimiter is None else delimiter
    cells = line.split(delimiter) if delimiter else _GAP.split(line.strip())
    return [cell.strip() for cell in cells]


def _said(row: Mapping[str, str], now_s: float) -> Iterator[tuple[float, str | None, str]]:
    """Time, node and line of what is not well."""
    state = row.get("state", "").upper()
    nodes = row.get("nodelist", "")
    node = nodes if nodes and not set(nodes) & set("[],") and nodes.lower() != "none assigned" else None
    end_s = time_s_of(row.get("end", ""))
    time_s = end_s if np.isfinite(end_s) else now_s
    if "jobid" not in row:
        if state.lower().rstrip("*~#!%$@^-").startswith(_DOWN) or state.endswith("*"):
            yield time_s, node, f"slurmctld: error: Nodes {nodes} not responding, setting DOWN"
        return
    job = row["jobid"]
    code, _, signal = row.get("exitcode", "0:0").partition(":")
    if state.startswith("NODE_FAIL"):
        yield time_s, node, f"slurmstepd: error: *** JOB {job} ON {nodes} CANCELLED DUE TO NODE FAILURE ***"
    elif state.startswith("OUT_OF_ME"):
        yield time_s, node, f"slurmstepd: error: Detected 1 oom_kill event in StepId={job}."
    elif state.startswith("TIMEOUT"):
        yield time_s, node, f"slurmstepd: error: *** JOB {job} ON {nodes} CANCELLED DUE TO TIME LIMIT ***"
    elif state.startswith(("CANCELLED", "PREEMPTED")):
        yield time_s, node, f"slurmstepd: error: *** JOB {job} ON {nodes} CANCELLED AT {row.get('end', '')} ***"
    elif state.startswith(("FAILED", "BOOT_FAIL")) and "." in job:
        who = f"srun: error: {nodes or 'node'}: task 0:"
        if signal and signal != "0":
            yield time_s, node, f"{who} {'Segmentation fault' if signal == '11' else 'Killed'}"
        elif code != "0":
            yield time_s, node, f"{who} Exited with exit code {code}"
