"""Format: tables and records of Slurm; ends of jobs and states of nodes as the lines that Slurm logs of them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec
import numpy as np

from trainwarden.errors import DataError
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import time_s_of
from trainwarden.recorded.job import LogTable

_DOWN: Final = ("down", "fail", "not_responding", "unk", "no_respond")
_GAP: Final = re.compile(r"\s{1,200}")
# `sinfo -h` in its usual form: partition, availability, time limit, count, state, nodes.
_BARE: Final = re.compile(
    r"\S{1,64}\s{1,40}(?:up|down|drain|inact)\s{1,40}\S{1,16}\s{1,40}[0-9]{1,6}\s{1,40}(\S{1,24})\s{1,40}(\S{1,400})\s*$"
)
_KEY: Final = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z:/]{1,30})=")
_RECORD: Final = re.compile(r"(?m)^(?=(?:NodeName|JobId)=)")
_BRACKETS: Final = re.compile(r"\[([^\[\]]*)\]")
_RANGE: Final = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_DRAINED: Final = ("drain", "drng")
_MOST_BRACKETS: Final = 8  # of one name
_NAMED: Final = 6
_HEADER_LINES: Final = 6
# What Slurm itself writes as the reason when it takes a node out (slurmctld and slurmd, 19.05 to 24.11).
_BY_SLURM: Final = ("kill task failed", "prolog", "epilog", "batch job complete failure", "low ", "gres/",
                    "node unexpectedly rebooted", "duplicate jobid", "invalid")  # fmt: skip
_SHORT: Final = {"NF": "NODE_FAIL", "F": "FAILED", "OOM": "OUT_OF_MEMORY", "TO": "TIMEOUT", "CA": "CANCELLED",
                 "CD": "COMPLETED", "BF": "BOOT_FAIL", "PR": "PREEMPTED", "DL": "DEADLINE"}  # fmt: skip
# Names of `scontrol` and of `--json` for what the tables call otherwise.
_SAME: Final = {"jobstate": "state", "job_state": "state", "nodename": "nodelist", "name": "nodelist",
                "endtime": "end", "nodes": "nodelist", "job_id": "jobid", "st": "state", "reason_set_at": "timestamp",
                "nodelist(reason)": "nodelist", "derived_exit_code": ""}  # fmt: skip
MAX_NODES: Final = 16_384  # lines of nodes of a file


_Said = tuple[float, str | None, str]


class SlurmTable:
    """Parted by bars (`--parsable`, `-P`), commas, blanks or widths; records of `scontrol show`; `--json`."""

    name = "slurm table"

    def sniff(self, name: str, head: str) -> float:
        """By the names of columns or of a record's first keys."""
        del name
        if head.lstrip()[:1] == "{":
            own = '"meta"' in head and ("slurm" in head[:4_000].lower() or "openapi/" in head[:4_000])
            return SURE if own and ('"jobs"' in head or '"nodes"' in head or '"job_id"' in head) else NEVER
        if re.match(r"\s*(?:NodeName=\S+ (?:Arch|CoresPerSocket)=|JobId=[0-9]+ )", head):
            return SURE
        lines = [line for line in head.split("\n") if line.strip()]
        if _header(lines) is not None:
            return SURE
        return SURE if lines and all(_BARE.match(line) for line in lines[:40]) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        rows = list(_rows(source.text(), source.name))
        now_s = source.path.stat().st_mtime
        stepped = {row["jobid"].partition(".")[0] for row in rows if "." in row.get("jobid", "")}
        said: list[_Said] = []
        bad, nodes_left = 0, MAX_NODES
        for row in rows:
            own = list(itertools.islice(_said(row, now_s, stepped), nodes_left + 1))
            bad += any("error: " in line for *_, line in own)
            said += own
            nodes_left -= 0 if "jobid" in row else len(own)
            if nodes_left < 0:
                raise DataError(f"{source.name} names more than {MAX_NODES:,} nodes: cut it to one answer")
        found = Found(rows=len(rows))
        if said:
            said.sort(key=lambda one: one[0])
            times = np.array([time_s for time_s, *_ in said])
            nobody = (None,) * len(said)
            nodes = tuple(node for _, node, _ in said)
            found.logs.append(LogTable("slurm", times, nodes, nobody, [line for *_, line in said]))
            found.notes.append(f"{bad} of {len(rows)} rows end in a failure or are of nodes that are out of use")
        else:
            jobs = any("jobid" in row for row in rows)
            found.notes.append("no job of it has ended" if jobs else "it names no node")
        found.notes += _drained(said)
        return found


def _drained(said: Iterable[_Said]) -> list[str]:
    """A note of nodes that an operator took out, with the reasons: no fault, and no work for them either."""
    drained = dict[str, str]()
    for _, node, line in said:
        state, _, reason = line.removeprefix(f"slurmctld: node {node} ").partition(" ")
        if node is not None and line.startswith("slurmctld: node ") and any(word in state for word in _DRAINED):
            drained[node] = reason
    if not drained:
        return []
    named = [f"{node} ({why[:80] or 'no reason given'})" for node, why in itertools.islice(drained.items(), _NAMED)]
    more = f" and {len(drained) - _NAMED} more" if len(drained) > _NAMED else ""
    return [f"{len(drained)} nodes are drained: {', '.join(named)}{more}"]


def _rows(text: str, name: str) -> Iterator[dict[str, str]]:
    """Rows by the names of the tables' columns, in lower case."""
    if text.lstrip()[:1] == "{":
        yield from _of_json(text, name)
        return
    if _RECORD.match(text.lstrip()):
        for block in _RECORD.split(text.lstrip()):
            yield _named(_pairs(block))
        return
    lines = [line for line in text.split("\n") if line.strip()]
    place = _header(lines)
    if place is None:
        for line in lines:
            if (match := _BARE.match(line)) is not None:
                yield {"state": match[1], "nodelist": match[2]}
        return
    header = [cell.lower() for cell in _cells(lines[place])]
    widths = _widths(lines[place + 1]) if place + 1 < len(lines) else []
    for line in lines[place + 1 :]:
        if not set(line.strip()) <= set("- ") and line != lines[place]:
            yield _named(dict(zip(header, _split(line, header, widths, _delimiter(lines[place])), strict=False)))


def _header(lines: list[str]) -> int | None:
    """Place of the line that names the columns; None if there is none."""
    for place, line in enumerate(lines[:_HEADER_LINES]):
        cells = {cell.lower() for cell in _cells(line)}
        jobs = "jobid" in cells and bool(cells & {"state", "st"})
        nodes = "nodelist" in cells and "state" in cells and bool(cells & {"partition", "nodes", "reason", "avail"})
        if jobs or nodes or {"reason", "nodelist", "user"} <= cells:
            return place
    return None


def _split(line: str, header: list[str], widths: list[tuple[int, int]], delimiter: str) -> list[str]:
    """Cells of a line; of columns parted by blanks the one that holds sentences gets what is left."""
    if delimiter:
        return _cells(line, delimiter)
    if len(widths) == len(header):
        return [line[start:end].strip() for start, end in widths]
    if header[0] == "reason":
        return [cell.strip() for cell in line.strip().rsplit(maxsplit=len(header) - 1)]
    return _GAP.split(line.strip(), maxsplit=len(header) - 1)


def _widths(line: str) -> list[tuple[int, int]]:
    """Where the columns stand, by the dashes below their names."""
    if not set(line.strip()) <= set("- "):
        return []
    return [match.span() for match in re.finditer(r"-+", line)]


def _delimiter(line: str) -> str:
    return "|" if "|" in line else "," if line.count(",") > 1 else ""


def _cells(line: str, delimiter: str | None = None) -> list[str]:
    delimiter = _delimiter(line) if delimiter is None else delimiter
    cells = line.split(delimiter) if delimiter else _GAP.split(line.strip())
    return [cell.strip() for cell in cells]


def _pairs(block: str) -> dict[str, str]:
    """``Key=value`` of a record; a value goes up to the next key or the end of its line."""
    found: dict[str, str] = {}
    for line in block.split("\n"):
        keys = list(_KEY.finditer(line))
        for match, after in zip(keys, [*keys[1:], None], strict=False):
            found.setdefault(match[1].lower(), line[match.end() : after.start() if after else None].strip())
    return found


def _named(row: Mapping[str, str]) -> dict[str, str]:
    """`row` by the tables' names of columns; `NodeList` of `sinfo -l` goes before `NODES`, a count."""
    found: dict[str, str] = {}
    for key, value in row.items():
        count = key == "nodes" and value.isdecimal()
        name = "" if count or (key == "name" and ("jobid" in row or "job_id" in row)) else _SAME.get(key, key)
        if name and (name not in found or not found[name]):
            found[name] = value
    return found


def _of_json(text: str, name: str) -> Iterator[dict[str, str]]:
    try:
        whole = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(f"{name} is not the JSON that it looks like: {error}") from error
    for key in ("jobs", "nodes", "sinfo"):
        for one in whole.get(key) or [] if isinstance(whole, dict) else []:
            if isinstance(one, dict):
                yield _named({word: _word(value) for word, value in {**one, **_times(one)}.items()})


def _word(value: Any) -> str:
    """A value of Slurm's JSON as its tables write it."""
    if isinstance(value, dict):
        if "return_code" in value:
            code, signal = value["return_code"], value.get("signal")
            plain = code.get("number", 0) if isinstance(code, dict) else code
            number = signal.get("signal_id", 0) if isinstance(signal, dict) else 0
            return f"{plain}:{number.get('number', 0) if isinstance(number, dict) else number}"
        return _word(value.get("current", value.get("number", "")))
    if isinstance(value, list):
        return "+".join(map(str, value))
    return "" if value is None else str(value)


def _times(one: Mapping[str, Any]) -> dict[str, Any]:
    time = one.get("time")
    end = time.get("end") if isinstance(time, dict) else one.get("end_time")
    return {"end": end, "exitcode": one.get("exit_code")}


def _said(row: Mapping[str, str], now_s: float, stepped: Iterable[str]) -> Iterator[_Said]:
    """Time, node and line of what a row tells."""
    end_s = time_s_of(row.get("end") or row.get("timestamp", ""))
    time_s = end_s if np.isfinite(end_s) and end_s > 0 else now_s
    if "jobid" in row:
        yield from _of_job(row, time_s, stepped)
        return
    state, reason = row.get("state", "").lower(), row.get("reason", "").strip()
    reason = "" if reason.lower() in ("none", "(null)") else reason
    for node in _nodes(row.get("nodelist", "")):
        if (state.rstrip("*~#!%$@^-").startswith(_DOWN) or state.partition("+")[0].endswith("*")
                or reason.lower().startswith("not responding")):  # fmt: skip
            yield time_s, node, f"slurmctld: error: Nodes {node} not responding, setting DOWN"
        elif reason.lower().startswith(_BY_SLURM):
            yield time_s, node, f"slurmctld: error: Node {node} taken out by Slurm: {reason}"
        else:
            yield time_s, node, f"slurmctld: node {node} {state or 'drained'} {reason}".rstrip()


def _of_job(row: Mapping[str, str], time_s: float, stepped: Iterable[str]) -> Iterator[_Said]:
    state = row.get("state", "").upper()
    state = _SHORT.get(state, state)
    listed = row.get("nodelist", "")
    # Slurm writes a single node without brackets.
    single = listed.lower() not in ("", "none assigned", "(null)") and not set(listed) & set(",[")
    node, job = listed if single else None, row["jobid"]
    code, _, signal = row.get("exitcode", "0:0").partition(":")
    if state.startswith("NODE_FAIL"):
        yield time_s, node, f"slurmstepd: error: *** JOB {job} ON {listed} CANCELLED DUE TO NODE FAILURE ***"
    elif state.startswith("OUT_OF_ME"):
        yield time_s, node, f"slurmstepd: error: Detected 1 oom_kill event in StepId={job}."
    elif state.startswith("TIMEOUT"):
        yield time_s, node, f"slurmstepd: error: *** JOB {job} ON {listed} CANCELLED DUE TO TIME LIMIT ***"
    elif state.startswith(("CANCELLED", "PREEMPTED")):
        yield time_s, node, f"slurmstepd: error: *** JOB {job} ON {listed} CANCELLED AT {row.get('end', '')} ***"
    elif state.startswith(("FAILED", "BOOT_FAIL")) and ("." in job or job not in stepped):
        # Slurm does not say which task it was.
        if signal and signal != "0":
            yield time_s, node, f"slurmctld: error: step {job} exited on signal {signal}"
        elif code != "0":
            yield time_s, node, f"slurmctld: error: step {job} exited with code {code}"
    elif state.startswith("COMPLETED"):
        yield time_s, node, f"slurmctld: job {job} completed"


def _nodes(text: str) -> Iterator[str]:
    """Names of a host list; a word that is not understood is one name.

    Examples
    --------
    >>> list(_nodes("gpu-[01-03,07],a1")), list(_nodes("r[1-2]n[1,3]")), list(_nodes("a[1-2-3]"))
    (['gpu-01', 'gpu-02', 'gpu-03', 'gpu-07', 'a1'], ['r1n1', 'r1n3', 'r2n1', 'r2n3'], ['a[1-2-3]'])
    """
    depth, start = 0, 0
    for place, char in enumerate(f"{text},"):
        depth += (char == "[") - (char == "]")
        if char == "," and (depth <= 0 or place == len(text)):
            if word := text[start:place].strip():
                yield from _expanded(word)
            start = place + 1


def _expanded(word: str) -> Iterator[str]:
    """Names for the ranges in the brackets of `word`, one after the other and never all at once."""
    pieces = _BRACKETS.split(word)
    plain, ranges = pieces[::2], [_numbers(piece) for piece in pieces[1 : 2 * _MOST_BRACKETS + 2 : 2]]
    unknown = any("[" in piece or "]" in piece for piece in plain) or any(one is None for one in ranges)
    if unknown or len(ranges) > _MOST_BRACKETS:
        yield word
        return
    places = [0] * len(ranges)
    listed = [one for one in ranges if one is not None]
    for _ in range(math.prod(map(len, listed))):
        numbers = [one[place] for one, place in zip(listed, places, strict=True)]
        yield "".join(itertools.chain.from_iterable(itertools.zip_longest(plain, numbers, fillvalue="")))
        for number in reversed(range(len(places))):  # the last counts fastest
            places[number] = (places[number] + 1) % len(listed[number])
            if places[number]:
                break


def _numbers(text: str) -> list[str] | None:
    """Numbers of ``01-03,07``; None if it is no list of ranges, or one of more than `MAX_NODES`."""
    found: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            return None
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < MAX_NODES - len(found):
            return None
        found += [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]
    return found
