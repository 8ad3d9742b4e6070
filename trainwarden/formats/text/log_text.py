"""Format: a log under any name, packed or not; several logs of one job are read together."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from trainwarden.formats.protocol import GENERIC, LIKELY, NEVER, Found
from trainwarden.formats.source import Source
from trainwarden.formats.text.event_ages import dated_events
from trainwarden.formats.text.trainers import step_line
from trainwarden.log_text import writer_of
from trainwarden.recorded.job import LogTable, RecordedJob
from trainwarden.recorded.joining.read_log import ReadLog, of_one_node, settled
from trainwarden.recorded.log_stamps import Stamps
from trainwarden.recorded.logs import is_epoch, read_logs

NAME: Final = "log text"
LOOKED_AT: Final = 400  # lines
_NAMED: Final = re.compile(
    r"\.(log|out|err|console|stdout|stderr)(\.[0-9]{1,4})?$|\blogs?[0-9_-]{0,20}\.txt$|slurm-[0-9]|console|stdout|stderr|syslog|messages|dmesg|journal|kern"
)
_TEXT: Final = re.compile(r"\.(txt|text|log|out|err)(\.[0-9]{1,4})?$")
# What no other kind of text says: steps, exceptions, launchers. Each branch is short and bounded: linear time.
_SAYS: Final = re.compile(
    r"Traceback \(most recent call last\)|\b[A-Z][A-Za-z]{2,40}Error: |(?i:loss|norm)['\"]?[ =:]{1,3}['\"]?-?[0-9n]|\bNCCL (?:INFO|WARN)|"  # noqa: E501
    r"Unable to determine the device handle for GPU|Failed to initialize NVML|No devices were found|"
    r"\bCUDA(?:_EXCEPTION_[0-9]{1,2}\b| Exception: )|"
    r"\bNVRM: |\b(?:ERROR|WARNING|INFO)\b|(?:s/it|it/s)[\],]|srun: |\[rank[0-9]{1,6}\]:|"
    r"\bNodeNotReady\b|\bLAST SEEN {1,8}TYPE\b|\bOOMKilled\b|\bExit Code: {1,8}[0-9]|"
    r"^\[ {0,8}\+?[0-9]{1,7}\.[0-9]{3,6}\] |^ {0,8}Type {1,8}Reason {1,40}Age |"
    r"\bnhc: {1,4}Health check (?:passed|failed)"
)
# Hosts as clouds and clusters call them, which a file is named by: also EC2's private names and private IPv4 networks.
_CALLED: Final = re.compile(
    r"(?<![A-Za-z0-9.])((?:node|host|dgx|compute|trn)[-_]?[0-9]{1,5}|ip(?:-[0-9]{1,3}){4}"
    r"|(?:10\.[0-9]{1,3}|172\.(?:1[6-9]|2[0-9]|3[01])|192\.168)(?:\.[0-9]{1,3}){2})(?![A-Za-z0-9]|\.[0-9])"
)
# Of these lines a program's log has several, a terminal's answer none.
_TRAINS: Final = re.compile(
    r"Traceback \(most recent call last\)|^[A-Za-z_.]{0,80}[A-Z][A-Za-z]{2,40}Error: |\bNCCL (?:INFO|WARN)|"
    r"torch/distributed/|srun: |ChildFailedError|exits with return code"
)
_FEWEST_OF_TRAINING: Final = 3
_ENDLESS: Final = 16_384  # characters of a line that tells nothing: no program logs so
_FEWEST: Final = 0.05  # of the lines


class LogText:
    """Lines of any program, with stamps and prefixes where it writes them."""

    name = NAME

    def sniff(self, name: str, head: str) -> float:
        """Likely where the name is a log's; more than generic where lines have stamps, prefixes or a trainer's words."""  # noqa: E501
        if name.endswith(
            (".csv", ".tsv", ".json", ".jsonl", ".toml", ".yaml", ".yml", ".md", ".parquet", ".py", ".rst")
        ):
            return NEVER
        named = _NAMED.search(name) is not None
        objects = head.lstrip()[:1] == "{" and not head.lstrip().startswith(("{'", '{"log":'))
        if "\0" in head or (objects and not named):
            return NEVER
        lines = [line for line in head.replace("\r", "\n").split("\n") if line.strip()][:LOOKED_AT]
        telling = sum(_tells(line) for line in lines)
        if not telling:
            return GENERIC if named and is_plain(head) else NEVER
        if named:
            return LIKELY
        often = telling >= _FEWEST * len(lines)
        return GENERIC + 0.05 if often and (_TEXT.search(name) or "." not in name) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        (log,) = _joined(read_logs(source.path.parent, [source.path.name], None), None, ())
        return Found(rows=len(log.lines), logs=[replace(log, file=source.name)])


def is_plain(head: str) -> bool:
    """Whether a text that begins with `head` consists of lines that people can read.

    Examples
    --------
    >>> is_plain("one line\\nand another\\n"), is_plain("x" * 20_000), is_plain("")
    (True, False, False)
    """
    printable = sum(map(str.isprintable, head[:LOOKED_AT])) > 0.9 * len(head[:LOOKED_AT])
    return bool(head) and printable and max(map(len, head.split("\n"))) < _ENDLESS


def goes_on_as_log(head: str) -> bool:
    """Whether a text that begins as another tool's answer goes on as the log of a training.

    Examples
    --------
    >>> goes_on_as_log("GPU 0: NVIDIA H100 (UUID: GPU-1)\\n" + "[rank0]: step 1 loss 2.0\\n" * 3)
    True
    >>> goes_on_as_log("GPU 0: NVIDIA H100 (UUID: GPU-1)\\n" * 8)
    False
    """
    lines = [line[:400] for line in head.replace("\r", "\n").split("\n") if line.strip()]
    return sum(_of_training(line) for line in lines[: 4 * LOOKED_AT]) >= _FEWEST_OF_TRAINING


def _of_training(line: str) -> bool:
    return bool(_TRAINS.search(line)) or writer_of(line).named or step_line(line) is not None


def _tells(line: str) -> bool:
    line = line[:400]
    writer = writer_of(line)
    return (
        writer.named or bool(_SAYS.search(line)) or step_line(line) is not None or bool(Stamps().read(writer.rest).end)
    )


def with_logs(job: RecordedJob, folder: Path, documented: Sequence[str], others: Sequence[str]) -> RecordedJob:
    """`job` with all its logs on one clock: those of the documented names and `others`, by their names in `folder`.

    Logs that name no node are those of the folders in which they lie, where there are several.
    """
    if not others:
        return job
    reference_s = _reference_s(job)
    read = read_logs(folder, [*documented, *others], reference_s)
    places = {name.rpartition("/")[0] for name in others}
    if len(places) > 1:
        read = [_of_folder(log) for log in read]
    read = _of_names(read)
    tables = (*(job.metrics.nodes if job.metrics else ()), *(job.iterations.nodes if job.iterations else ()))
    return replace(job, logs=_joined(read, reference_s, tables))


def _of_folder(log: ReadLog) -> ReadLog:
    node = log.table.file.rpartition("/")[0].rpartition("/")[2]
    if not node or any(log.table.nodes):
        return log
    return replace(log, table=replace(log.table, nodes=(node,) * len(log.table.nodes)))


def _of_names(read: Sequence[ReadLog]) -> list[ReadLog]:
    """Logs that name no node are of the one that others name and that stands in their own name: dmesg-node7.txt.

    Where files of several nodes are called after them, the names need not stand elsewhere: node0.log, node1.log.
    """
    named = {node for node in _nodes(read) if node and node[-1].isdigit()}
    called = {found[1] for log in read if (found := _CALLED.search(log.table.file.rpartition("/")[2])) is not None}
    known = sorted(named | (called if len(called) > 1 else set()), key=len, reverse=True)
    return [log if any(log.table.nodes) else _of_name(log, known) for log in read]


def _of_name(log: ReadLog, known: Sequence[str]) -> ReadLog:
    """`log` as one of the longest node of `known` that stands apart in its name."""
    name = log.table.file.rpartition("/")[2]
    for node in known:
        before, found, behind = name.partition(node)
        if found and not before[-1:].isalnum() and not behind[:1].isalnum():
            return replace(log, table=replace(log.table, nodes=(node,) * len(log.table.nodes)))
    return log


def _joined(read: Sequence[ReadLog], reference_s: float | None, nodes: Sequence[str | None]) -> tuple[LogTable, ...]:
    if reference_s is None:
        times = [log.table.times_s[np.isfinite(log.table.times_s)] for log in read]
        reference_s = max((float(one.max()) for one in times if one.size), default=0.0)
    known = {node for node in (*nodes, *_nodes(read)) if node}
    return dated_events(settled(read, epoch=is_epoch(reference_s), single_node=of_one_node(read, known)))


def _nodes(read: Sequence[ReadLog]) -> Iterator[str | None]:
    for log in read:
        yield from set(log.table.nodes)


def _reference_s(job: RecordedJob) -> float | None:
    if job.metrics is not None and job.metrics.times_s.size:
        return float(job.metrics.times_s[0])
    if job.iterations is not None and job.iterations.timed and job.iterations.end_s.size:
        return float(job.iterations.end_s[0])
    return None
