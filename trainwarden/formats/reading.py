"""A job from whatever lies at a path: the documented layout, and files of other tools beside it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from trainwarden.errors import DataError
from trainwarden.formats.building import joined_iterations, joined_metrics
from trainwarden.formats.collected import nodes_named, of_node, parts_of, read_parts, with_names
from trainwarden.formats.dumps.kernel_sums import KernelSums
from trainwarden.formats.dumps.kernels_compared import kernels_compared
from trainwarden.formats.dumps.short_traces import short_traces
from trainwarden.formats.dumps.stacks import Stack, stacks_compared
from trainwarden.formats.exporters.mounts import full_from_the_start
from trainwarden.formats.fabric.node_pairs import PairRun, pairs_compared
from trainwarden.formats.fabric.port_peers import port_peers
from trainwarden.formats.gpu.idle_together import idle_together
from trainwarden.formats.gpu.kept_errors import kept_errors
from trainwarden.formats.host.clocks import Clock, clocks_compared
from trainwarden.formats.host.slow_disks import slow_disks, with_disk_times, without_disk_work
from trainwarden.formats.named_ranks import losses_with_ranks, with_ranks
from trainwarden.formats.protocol import NEVER, Found, Misfit
from trainwarden.formats.source import Source
from trainwarden.formats.steps import DERIVED
from trainwarden.formats.survey import files_below, looked_at, made
from trainwarden.formats.tables.ours import header_of, kind_of, parquet_kind, refuse_collapsed
from trainwarden.formats.text.data_times import data_waits
from trainwarden.formats.text.extreme_ranks import extreme_ranks
from trainwarden.formats.text.log_text import NAME as TEXT
from trainwarden.formats.text.log_text import is_plain, with_logs
from trainwarden.formats.text.rank_times import rank_times
from trainwarden.formats.text.step_times import steps_of, with_step_times
from trainwarden.formats.unjudged import PLAIN, recognised, tells_of_failures
from trainwarden.formats.verdicts import LEAST_RANKS, is_verdict
from trainwarden.recorded import folder as recorded
from trainwarden.recorded.job import (
    CollectiveTable,
    IterationTable,
    LogTable,
    MetricTable,
    ReadFile,
    RecordedJob,
    UnreadFile,
)
from trainwarden.records import EventRecord

UNKNOWN: Final = "no format is known of it"
# Texts that tell of failures without being a record of one.
_WRITINGS: Final = (".md", ".rst", ".py", ".sh", ".toml", ".cfg", ".ini", ".html", ".htm", ".ipynb", ".xml")
_STEMS: Final = ("metrics", "iterations")
_UNFORESEEN: Final = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


@dataclass(slots=True)
class _Gathered:
    """What several files hold."""

    files: list[ReadFile] = field(default_factory=list)
    unread: list[UnreadFile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    metrics: list[tuple[str, MetricTable]] = field(default_factory=list)
    iterations: list[tuple[str, IterationTable]] = field(default_factory=list)
    collectives: list[CollectiveTable] = field(default_factory=list)
    logs: list[LogTable] = field(default_factory=list)
    dumps: dict[int, Any] = field(default_factory=dict)
    broken: dict[int, str] = field(default_factory=dict)
    ras: list[Any] = field(default_factory=list)
    events: list[EventRecord] = field(default_factory=list)
    stacks: list[tuple[str, Stack]] = field(default_factory=list)
    pairs: list[tuple[str, PairRun]] = field(default_factory=list)
    clocks: list[tuple[str, Clock]] = field(default_factory=list)
    addresses: list[tuple[str, list[str]]] = field(default_factory=list)
    kernels: list[tuple[str, KernelSums]] = field(default_factory=list)
    errors: list[DataError] = field(default_factory=list)

    def add(self, name: str, kind: str, found: Found) -> None:
        """What the file called `name` holds."""
        self.files.append(ReadFile(name, kind, found.rows))
        self.notes += [f"{name}: {note}" for note in found.notes]
        self.metrics += [(name, table) for table in found.metrics]
        self.iterations += [(name, table) for table in found.iterations]
        self.collectives += found.collectives
        self.logs += [replace(log, file=name) for log in found.logs]
        self.ras += found.ras
        self.events += found.events
        self.stacks += [(name, one) for one in found.stacks]
        self.pairs += [(name, one) for one in found.pairs]
        self.clocks += [(name, one) for one in found.clocks]
        self.addresses += [(name, found.addresses)] if found.addresses else []
        self.kernels += [(name, one) for one in found.kernels]
        for rank, raw in found.dumps.items():
            if rank in self.dumps:
                self.unread.append(UnreadFile(name, f"rank {rank} has a dump already"))
            else:
                self.dumps[rank] = raw

    def refuse(self, names: set[str], why: str) -> None:
        """Name files that were read and tell nothing together, where there is a `why`."""
        if why:
            self.files = [one for one in self.files if one.path not in names]
            self.unread += [UnreadFile(name, why) for name in sorted(names)]

    def fail(self, name: str, kind: str, error: DataError) -> None:
        """Note why a file cannot be read."""
        from trainwarden.formats.dumps.flight_recorder import rank_of

        self.errors.append(error)
        self.unread.append(UnreadFile(name, str(error).removeprefix(f"{name}: ").removeprefix(f"{name} ")))
        rank = rank_of(name.rsplit("/", 1)[-1])
        if kind == "flight recorder" and rank is not None:
            self.broken[rank] = str(error)


def read_job(path: Path, name: str | None = None, said: Mapping[str, str] | None = None) -> RecordedJob:
    """Read what lies at `path`.

    Parameters
    ----------
    path : Path
        A folder or a file.
    name : str, optional
        Name of the job; else that of job.toml, else the path's.
    said : mapping, optional
        Which column is what (`--columns`).

    Raises
    ------
    DataError
        If nothing of it can be read, or a documented file holds a mistake: all mistakes of that file.
    """
    said = said or {}
    gathered = _Gathered()
    if path.is_file():
        _read_file(gathered, path, path.name, said)
        _read_plainly(gathered, {path.name: path})
        _refuse_mistakes(gathered)
        return _with(RecordedJob(name or path.name.partition(".")[0] or path.name, path), gathered)
    foreign = _foreign(path, said)
    try:
        job = recorded.read_folder(path, name, foreign)
    except DataError as strict:
        job, foreign = _again(path, name, foreign, said, strict)
    _refuse_collapsed(job, path, said)
    _name_documented(gathered, job, path, foreign)
    known = {one.path for one in gathered.files} | set(recorded.documented(path)) - foreign
    texts = [file for place, file in files_below(path) if file not in known and looked_at(place, file).format == TEXT]
    job = with_logs(job, path, [one for one, kind in recorded.documented(path).items() if kind == "log"], texts)
    gathered.files += [ReadFile(log.file, "log lines", len(log.lines)) for log in job.logs if log.file in texts]
    known |= set(texts)
    for place, file in files_below(path):
        if file not in known:
            _read_file(gathered, place, file, said)
    _read_plainly(gathered, {file: place for place, file in files_below(path)})
    _refuse_mistakes(gathered)
    if foreign:
        for error in gathered.errors:
            if any(str(error).startswith(one) for one in foreign):
                raise error
    return _with(job, gathered)


def _foreign(folder: Path, said: Mapping[str, str]) -> frozenset[str]:
    """Documented names under which tables of another layout lie."""
    found = set()
    for name, kind in recorded.documented(folder).items():
        if kind not in _STEMS:
            continue
        source = Source(folder / name, name)
        try:
            header = () if name.endswith(".parquet") else header_of(source.head)
            own = parquet_kind(source) if name.endswith(".parquet") else kind_of(header)
        except DataError:
            continue  # the strict reader says what is wrong
        if set(said.values()) & set(header) or (
            own != kind and looked_at(folder / name, name).format not in (None, "recorded table")
        ):
            found.add(name)
    return frozenset(found)


def _again(
    folder: Path, name: str | None, foreign: frozenset[str], said: Mapping[str, str], strict: DataError
) -> tuple[RecordedJob, frozenset[str]]:
    """The folder without the table that the strict reader refuses, where the lenient one reads it."""
    file = next((one for one in recorded.documented(folder) if str(strict).startswith(f"{one} ")), "")
    kind = recorded.documented(folder).get(file, "")
    if kind not in _STEMS or file.endswith(".parquet"):
        raise strict
    try:
        found = _made_of("table", Source(folder / file, file), said)
    except Misfit as problems:
        raise problems if len(problems.problems) > 1 else strict from strict
    except DataError:
        raise strict from None
    if not found.metrics and not found.iterations:
        raise strict
    return recorded.read_folder(folder, name, foreign | {file}), foreign | {file}


def _refuse_collapsed(job: RecordedJob, folder: Path, said: Mapping[str, str]) -> None:
    """Raise where rows of the strict table contradict each other because no column says whose they are."""
    for name, kind in recorded.documented(folder).items():
        if kind == "metrics" and not name.endswith(".parquet") and job.metrics is not None:
            refuse_collapsed(Source(folder / name, name), job.metrics, said)


def _read_file(gathered: _Gathered, path: Path, name: str, said: Mapping[str, str]) -> None:
    sniffed = looked_at(path, name)
    if sniffed.format == "recorded table" and set(said.values()) & set(header_of(Source(path, name).head)):
        sniffed = replace(sniffed, format="table")
    if sniffed.format is None:
        gathered.unread.append(UnreadFile(name, _why(path, name)))
        return
    kind = sniffed.format
    source = Source(path, name)
    try:
        found = _made_of(kind, source, said)
    except DataError as error:
        other = _otherwise(kind, source, said, error)
        if other is None:
            gathered.fail(name, kind, error)
            return
        kind, found = other
    if source.cut:
        found.notes.append("the packed file is cut short: what stands before the cut is read")
    gathered.add(name, kind, found)


def _read_plainly(gathered: _Gathered, places: Mapping[str, Path]) -> None:
    """Where nothing else could be read, take texts of no known form for lines: rules may know some of them."""
    if gathered.files:
        return
    for one in list(gathered.unread):
        place = places.get(one.path)
        if (
            place is None
            or not (one.why == UNKNOWN or tells_of_failures(one.why))
            or one.path.lower().endswith(_WRITINGS)
        ):
            continue
        source = Source(place, one.path)
        if not is_plain(source.head):
            continue
        gathered.unread.remove(one)
        found = _made_of(TEXT, source, {})
        found.notes.append(one.why)
        gathered.add(one.path, PLAIN, found)


def _made_of(kind: str, source: Source, said: Mapping[str, str]) -> Found:
    """What a file holds; one that no reader foresaw must not end the answer about the others with a traceback."""
    try:
        parts = parts_of(source.text()) if kind != TEXT and parts_of(source.head) else []
        return read_parts(made(kind), source, parts, said) if parts else made(kind).read(source, said)
    except _UNFORESEEN as error:
        what = " ".join(f"{type(error).__name__}: {str(error)[:120]}".split())
        raise DataError(f"{source.name}: it cannot be read as {kind} ({what})") from error


def _otherwise(kind: str, source: Source, said: Mapping[str, str], why: DataError) -> tuple[str, Found] | None:
    """What else a file may be that its own format's reader refuses, and what it holds then."""
    if isinstance(why, Misfit):
        return None
    table = _leniently(source, said) if kind == "recorded table" else None
    lines = _as_lines(source, why) if table is None else None
    return ("table", table) if table is not None else None if lines is None else (PLAIN, lines)


def _as_lines(source: Source, why: DataError) -> Found | None:
    """The lines of a file that its own format's reader refuses, where it may be a log; None where it is none."""
    last = source.name.rsplit("/", 1)[-1].lower()
    if made(TEXT).sniff(last, source.head) <= NEVER:
        return None
    try:
        found = _made_of(TEXT, source, {})
    except DataError:
        return None
    found.notes.append(f"read as lines of a log, for {str(why).removeprefix(f'{source.name}: ')}")
    return found


def _leniently(source: Source, said: Mapping[str, str]) -> Found | None:
    """What the lenient reader makes of a table that the strict one refuses; None where it refuses it too."""
    try:
        found = _made_of("table", source, said)
    except DataError:
        return None
    return found if found.metrics or found.iterations else None


def _why(path: Path, name: str) -> str:
    source = Source(path, name)
    try:
        return "it is empty" if not source.head_bytes else recognised(source.head) or UNKNOWN
    except DataError as error:
        return str(error)


def _refuse_mistakes(gathered: _Gathered) -> None:
    """Raise where no file could be read and one of them has mistakes in its cells."""
    if gathered.files:
        return
    mistake = next((error for error in gathered.errors if isinstance(error, Misfit)), None)
    if mistake is not None:
        raise mistake
    # Each unread file says what it is: not judged, with its reason.


def _name_documented(gathered: _Gathered, job: RecordedJob, folder: Path, foreign: frozenset[str]) -> None:
    """The files that the documented layout gave, with their rows."""
    logs = {log.file: len(log.lines) for log in job.logs}
    for name, kind in recorded.documented(folder).items():
        if name in foreign:
            continue
        table = getattr(job, kind, None) if kind in ("metrics", "iterations", "collectives") else None
        times = getattr(table, "times_s", getattr(table, "step", np.zeros(0)))
        rank = next((one for one, why in job.broken.items() if why.startswith(name)), None)
        if kind == "dump" and rank is not None:
            gathered.unread.append(UnreadFile(name, job.broken[rank].removeprefix(f"{name} ")))
            continue
        label = {"log": "log lines", "dump": "flight recorder", "record": "record"}.get(kind, "recorded table")
        gathered.files.append(ReadFile(name, label, logs.get(name, int(times.size))))
        gathered.notes += [note for note in getattr(table, "notes", ())]


def _with(job: RecordedJob, gathered: _Gathered) -> RecordedJob:
    """`job` with what other files hold."""
    gathered.iterations = with_ranks(gathered.iterations)
    gathered.logs = losses_with_ranks(gathered.logs, gathered.iterations)
    _name_reporters(gathered)
    metrics = _apart([("", job.metrics)] if job.metrics is not None else [], gathered)
    collectives = job.collectives
    if collectives is None and gathered.collectives:
        collectives = gathered.collectives[0]
    dumps = {**gathered.dumps, **job.flight}
    broken = {rank: why for rank, why in {**gathered.broken, **job.broken}.items() if rank not in dumps}
    table = joined_metrics(metrics)
    iterations, logs = _steps_and_logs(job, gathered, table)
    return replace(
        job,
        metrics=None if table is None else without_disk_work(table),
        iterations=joined_iterations(iterations),
        collectives=collectives,
        logs=logs,
        flight=dict(sorted(dumps.items())),
        broken=broken,
        ras=tuple(gathered.ras),
        events=tuple(sorted(gathered.events, key=lambda one: one.time_s)),
        files=tuple(gathered.files),
        unread=tuple(gathered.unread),
        notes=tuple(gathered.notes),
    )


def _steps_and_logs(
    job: RecordedJob, gathered: _Gathered, table: MetricTable | None
) -> tuple[list[IterationTable], tuple[LogTable, ...]]:
    """Steps as they are written, else as the logs tell them; logs, with lines about what else is compared."""
    iterations = _written_first([*([job.iterations] if job.iterations is not None else []),
                                 *(table for _, table in gathered.iterations)])  # fmt: skip
    traced = short_traces(one for _, one in gathered.iterations)
    logs = (
        *job.logs,
        *_of_nodes(gathered),
        *_of_pairs_and_clocks(gathered),
        *kept_errors(table),
        *slow_disks(with_disk_times(table)),
        *port_peers(table),
        *full_from_the_start(table),
        *traced,
    )
    logs = tuple(with_step_times(log) for log in logs) if not iterations else logs
    logs = (*logs, *rank_times(logs), *_of_stacks(gathered, logs), *_of_kernels(gathered, job.folder))
    told = steps_of(logs) if logs and not iterations else None
    if told is not None:
        iterations = [told]
        gathered.notes.append(f"{told.step.size} steps with their times are read from the log")
    logs = (*logs, *data_waits(logs, told), *extreme_ranks(logs, told))
    if not iterations:  # steps say by themselves how long they last
        logs = (*logs, *idle_together(table))
    return iterations, logs


def _of_kernels(gathered: _Gathered, place: Path) -> list[LogTable]:
    """Lines about ranks by their kernels; where these cannot be compared their files are not judged."""
    names = [name for name, _ in gathered.kernels]
    words = distinguishing(names) if len(names) > 1 else names
    told = [
        (one.rank if one.rank is not None else int(word) if word.isdecimal() else -1 - number, one)
        for number, (word, (_, one)) in enumerate(zip(words, gathered.kernels, strict=True))
    ]
    if len(told) >= LEAST_RANKS and any(rank < 0 for rank, _ in told):
        logs, why = list[LogTable](), "nothing says whose kernels these are: name the files rank0, rank1, ..."
    else:
        logs, why = kernels_compared(told, place.stat().st_mtime)
    if why:
        gathered.files = [one for one in gathered.files if one.path not in names]
        gathered.unread += [UnreadFile(name, why) for name in names]
    return logs


def _of_stacks(gathered: _Gathered, others: Sequence[LogTable]) -> list[LogTable]:
    """Lines about processes that stand apart from the others; where none does their files are not judged.

    Where the other logs end before the stacks' files were written, the ranks stand since then.
    """
    logs, why = stacks_compared(gathered.stacks)
    gathered.refuse({name for name, _ in gathered.stacks}, why)
    if not logs:
        return logs
    said_s = [log.times_s[np.isfinite(log.times_s)] for log in others]
    newest_s = max((float(one.max()) for one in said_s if one.size), default=math.inf)
    if newest_s >= min(float(log.times_s.min()) for log in logs):
        gathered.notes.append("the time of stacks is their file's last change")
        return logs
    gathered.notes.append("the time of stacks is that of the newest line of the logs")
    return [replace(log, times_s=np.full(log.times_s.size, newest_s)) for log in logs]


def _of_pairs_and_clocks(gathered: _Gathered) -> list[LogTable]:
    """Lines about nodes by their pairs, and by their clocks; where these cannot be compared files are not judged."""
    logs: list[LogTable] = []
    if gathered.pairs:
        logs, why = pairs_compared([one for _, one in gathered.pairs])
        gathered.refuse({name for name, _ in gathered.pairs}, why)
    if gathered.clocks:
        files = [name for name, _ in gathered.clocks]
        words = dict(zip(files, nodes_named(files), strict=False))
        told, why = clocks_compared([one._replace(node=one.node or words.get(name)) for name, one in gathered.clocks])
        gathered.refuse(set(files), why)
        logs += told
    return logs


def _written_first(tables: list[IterationTable]) -> list[IterationTable]:
    """Tables of written durations; where there is none the longest of those that follow from something else.

    A tracker keeps each metric in a file of its own, and each of them tells when the steps were.
    """
    written = [table for table in tables if DERIVED not in table.notes]
    return written or sorted(tables, key=lambda table: -table.step.size)[:1]


def _apart(first: list[tuple[str, MetricTable]], gathered: _Gathered) -> list[MetricTable]:
    """Tables of metrics; those of the same devices that name no node are of one node each, by their paths."""
    named = [*first, *gathered.metrics]
    bare = [place for place, (_, table) in enumerate(named) if not any(table.nodes)]
    words = nodes_named([named[place][0] for place in bare])
    if not words and len(bare) > 1 and _overlap([named[place][1] for place in bare]):
        words = distinguishing([named[place][0] for place in bare])
    if not words:
        return [table for _, table in named]
    found = [table for _, table in named]
    for place, word in zip(bare, words, strict=True):
        found[place] = of_node(found[place], word)
    gathered.notes.append(f"nodes named after their files: {', '.join(words[:8])}")
    return found


def _of_nodes(gathered: _Gathered) -> list[LogTable]:
    """Verdicts of reports that name no node: of several files each is of the node that its path names."""
    logs = gathered.logs
    bare = [place for place, log in enumerate(logs) if not any(log.nodes) and any(map(is_verdict, log.lines[:1]))]
    words = nodes_named([logs[place].file for place in bare])
    found = list(logs)
    for place, word in zip(bare, words, strict=False):
        found[place] = of_node(found[place], word)
    files = [name for name, _ in gathered.addresses]
    named = zip(nodes_named(files), gathered.addresses, strict=False)
    nodes = {address: word for word, (_, own) in named for address in own}
    return [with_names(log, nodes) for log in found]


def _overlap(tables: Sequence[MetricTable]) -> bool:
    """Whether two tables tell the same metric of the same device in the same time."""
    spans: dict[tuple[str | None, int | None, str], list[tuple[float, float]]] = {}
    for table in tables:
        span = (float(table.times_s[0]), float(table.times_s[-1]))
        for device, rank in zip(table.devices, table.ranks, strict=True):
            for name in table.names:
                spans.setdefault((device, rank, name), []).append(span)
    # One after the other they are files of one node.
    return any(before[1] >= after[0] for own in spans.values() for before, after in itertools.pairwise(sorted(own)))


def distinguishing(names: Sequence[str]) -> list[str]:
    """The part of each path that tells it from the others.

    Examples
    --------
    >>> distinguishing(["a1/gpu.csv", "a2/gpu.csv"]), distinguishing(["smi_n1.csv", "smi_n2.csv"])
    (['a1', 'a2'], ['n1', 'n2'])
    """
    parts = [name.split("/") for name in names]
    for place in range(max(len(part) for part in parts)):
        words = [part[place] if place < len(part) else "" for part in parts]
        if len(set(words)) == len(words):
            stems = [word.partition(".")[0] for word in words]
            pieces = [stem.replace("-", "_").split("_") for stem in stems]
            if len({len(piece) for piece in pieces}) == 1:
                for column in zip(*pieces, strict=True):
                    if len(set(column)) == len(column):
                        return list(column)
            return stems if len(set(stems)) == len(stems) else words
    return list(names)
