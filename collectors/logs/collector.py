"""Log lines: the ranks' output, configured files, the kernel's ring buffer.

Floods of log lines: many like ones become one with a count.

Files that have not grown for long: let go of, so that others can be followed, and followed again where they grow.
"""

from __future__ import annotations

import glob
import logging
import os
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import re2

from trainwarden import rundir
from trainwarden.clock import Clock
from trainwarden.collectors.kernel_log import KernelLog, boot_id, since_boot_s
from trainwarden.collectors.logs.rotation import stat_of, unrotated
from trainwarden.collectors.logs.tail import Line, Tail, TailState
from trainwarden.collectors.ranks import rank_processes
from trainwarden.log_text import clean, label_of, writer_of
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import LogRecord, MetricsRecord, Record
from trainwarden.settings import Config

GONE_S: Final = 60.0  # a file that is at its path no more is still read as long as it grows, and so much longer
MOST_PER_FILE: Final = 8  # so many states are kept for each file that may be followed

Sight = tuple[int, int, int] | None
"""Inode, size and time of change of what is at a path; None if nothing is."""


class Resting:
    """How far files had been read that are followed no more, by source; the oldest are forgotten.

    Positions of a source only grow, so whoever begins with it again needs to know where they had come to.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._states: OrderedDict[str, tuple[TailState, Path, Sight]] = OrderedDict()

    def __contains__(self, source: str) -> bool:
        return source in self._states

    def lay(self, source: str, tail: Tail) -> None:
        """Let go of `tail`."""
        tail.close()
        state, found = tail.state, sight(tail.path)
        if found is None:  # what comes under its name is another file, whatever inode it is given
            state = TailState(base=state.base + state.offset)
        self._states[source] = state, tail.path, found

    def trim(self) -> None:
        """Forget the oldest of too many: of files that are gone first, as one that is there would be read once more."""
        over = len(self._states) - self._most
        if over > 0:
            gone = [source for source, (_, _, found) in self._states.items() if found is None]
            for source in (gone + [one for one in self._states if one not in set(gone)])[:over]:
                del self._states[source]

    def pop(self, source: str) -> TailState | None:
        """The state of `source`, which is followed again; None if it did not rest."""
        found = self._states.pop(source, None)
        return None if found is None else found[0]

    def grown(self) -> list[tuple[str, Path]]:
        """Sources at whose paths something else is than when they were let go of."""
        return [
            (source, path)
            for source, (_, path, before) in self._states.items()
            if (now := sight(path)) is not None and now != before
        ]

    def position(self) -> dict[str, Any]:
        """For `restore`, as plain JSON."""
        return {source: msgspec.to_builtins(state) for source, (state, _, _) in self._states.items()}

    def restore(self, position: Mapping[str, Any], run_dir: Path) -> None:
        """Go on from `position`; what has grown meanwhile is seen by the sizes."""
        for source, raw in position.items():
            state, path = msgspec.convert(raw, TailState), run_dir / source
            found = sight(path)
            same = found is not None and found[0] == state.inode and found[1] == state.offset
            self._states[source] = state, path, found if same else None


def sight(path: Path) -> Sight:
    """What is at `path`."""
    found = stat_of(path)
    return None if found is None else (found.st_ino, found.st_size, found.st_mtime_ns)


_NUMBER = re2.compile(r"[0-9]+")


def template(text: str) -> str:
    """`text` with every number masked: lines of one flood have the same template."""
    return str(_NUMBER.sub("0", text))


def collapse(ends: Sequence[int], lines: Sequence[str], spare: int) -> tuple[list[int], list[str], list[int]]:
    """One line in place of many like ones: of each template the first `spare` lines stay, the rest become one.

    Returns
    -------
    tuple of lists
        Ends, lines, counts; the collapsed line is the first of those it stands for, so ends still grow.

    Examples
    --------
    >>> collapse([3, 6, 9, 12], ["e 1", "e 2", "ok", "e 3"], 1)
    ([3, 6, 9], ['e 1', 'e 2', 'ok'], [1, 2, 1])
    """
    if len(lines) <= spare:
        return list(ends), list(lines), [1] * len(lines)
    kept: tuple[list[int], list[str], list[int]] = ([], [], [])
    seen: dict[str, int] = {}
    first_of: dict[str, int] = {}
    for end, line in zip(ends, lines, strict=True):
        key = template(line)
        number = seen[key] = seen.get(key, 0) + 1
        if number > spare + 1:
            kept[2][first_of[key]] += 1
            continue
        if number == spare + 1:
            first_of[key] = len(kept[0])
        kept[0].append(end)
        kept[1].append(line)
        kept[2].append(1)
    return kept


log = logging.getLogger("trainwarden.agent")

KERNEL_SOURCE = "kmsg"
_TOTAL_BYTES = 1024 * 1024  # read in one turn over all files
_RECORD_BYTES = 200_000  # a record is split here, well below the bus's limit even if every character is escaped
_LINE_OVERHEAD_BYTES = 64  # ends, times and counts of one line as JSON
_GLOB_INTERVAL_S = 2.0
_LABEL_LINES = 200  # of a file, in which its label shows
_BUSY_INTERVAL_S = 0.05


class _Batch(NamedTuple):
    """Lines of one writer, columnar as in `LogRecord`."""

    ends: Sequence[int]
    lines: Sequence[str]
    times_s: Sequence[float]
    counts: Sequence[int] = ()


class LogsCollector:
    """Follows every log of the run folder, what `paths` names, and /dev/kmsg.

    Parameters
    ----------
    config : LogsCollector.Config
    scope : Scope
    clock : Clock
    """

    class Config(Config, frozen=True, kw_only=True):
        """What is followed and how.

        `paths` are files or glob patterns beside the run folder's logs; those that exist at the very first start
        are begun at their end unless `from_start`. `flood_lines` lines of one template are kept per batch and
        source, further ones are counted into one.
        """

        interval_s: Annotated[float, msgspec.Meta(ge=0.05, le=60.0)] = 0.2
        paths: tuple[str, ...] = ()
        from_start: bool = False
        kmsg: bool = True
        kmsg_path: str = "/dev/kmsg"
        batch_bytes: Annotated[int, msgspec.Meta(ge=65_536, le=8 * 1024 * 1024)] = 256 * 1024
        flood_lines: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 500
        max_files: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 512
        rotate_wait_s: Annotated[float, msgspec.Meta(ge=0.0, le=60.0)] = 0.5
        partial_wait_s: Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)] = 5.0

    def __init__(self, config: Config, scope: Scope, clock: Clock) -> None:
        self._config = config
        self._scope = scope
        self._clock = clock
        self._run_dir = Path(scope.run_dir)
        self._logs = str(self._run_dir / rundir.LOGS)
        self._resting = Resting(MOST_PER_FILE * config.max_files)
        self._rest_due_s = float("-inf")
        self._names: list[str] = []  # in the folder of logs, at the last look
        self._tails: dict[str, Tail] = {}
        self._kernel: KernelLog | None = KernelLog(config.kmsg_path, boot_id()) if config.kmsg else None
        self._kernel_opened = False
        self._restored = False
        self._glob_due_s = float("-inf")
        self._labels: dict[str, tuple[re.Pattern[str] | None, int]] = {}  # and how many lines were looked at
        self._turn = 0
        self._skipped_bytes = 0

    @property
    def interval_s(self) -> float:
        busy = any(tail.more for tail in self._tails.values())
        return min(_BUSY_INTERVAL_S, self._config.interval_s) if busy else self._config.interval_s

    def supported(self) -> str | None:
        return None

    def collect(self, now_s: float) -> Iterable[Record]:
        self._discover(now_s)
        yield from self._kernel_lines(now_s)
        left = _TOTAL_BYTES
        sources = list(self._tails)
        self._turn = (self._turn + 1) % max(1, len(sources))
        # Begin with another file each time, so that one that never ends does not starve the others.
        for source in sources[self._turn :] + sources[: self._turn]:
            tail = self._tails[source]
            lines = self._read(tail, now_s, min(self._config.batch_bytes, left))
            left = max(left - sum(len(line) for _, line in lines), 65_536)
            if lines:
                yield from self._records(source, tail.path, lines, now_s)
        skipped = sum(tail.skipped_bytes for tail in self._tails.values())
        if skipped != self._skipped_bytes:
            self._skipped_bytes = skipped
            yield self._skipped_record(now_s)

    def wake_fds(self) -> Sequence[int]:
        return [self._kernel.fd] if self._kernel is not None and self._kernel.fd is not None else []

    def position(self) -> JsonObject:
        files = {source: msgspec.to_builtins(tail.state) for source, tail in self._tails.items()}
        kernel = msgspec.to_builtins(self._kernel.state) if self._kernel is not None else None
        return {"files": files, "kernel": kernel, "resting": self._resting.position()}

    def restore(self, position: JsonObject) -> None:
        self._restored = True
        for source, state in dict(position.get("files", {})).items():
            self._tail(source, self._path_of(source)).restore(state)
        self._resting.restore(dict(position.get("resting", {})), self._run_dir)
        if self._kernel is not None and position.get("kernel"):
            self._kernel.restore(position["kernel"])

    def close(self) -> None:
        for tail in self._tails.values():
            tail.close()
        if self._kernel is not None:
            self._kernel.close()

    def _path_of(self, source: str) -> Path:
        """Sources inside the run folder are named relative to it, others by their full path."""
        return self._run_dir / source

    def _tail(self, source: str, path: Path) -> Tail:
        if source not in self._tails:
            self._tails[source] = Tail(
                path,
                rotate_wait_s=self._config.rotate_wait_s,
                partial_wait_s=self._config.partial_wait_s,
                rotated_too=not Path(source).is_absolute(),  # the run folder's logs are this run's from their start
            )
            if (state := self._resting.pop(source)) is not None:
                self._tails[source].state = state
        return self._tails[source]

    def _discover(self, now_s: float) -> None:
        """Follow files that have appeared or grow again, and let go of those that are gone."""
        if now_s >= self._rest_due_s:
            self._rest_due_s = now_s + _GLOB_INTERVAL_S
            self._let_go(now_s)
            for source, path in self._resting.grown():
                if self._room(now_s):
                    self._tail(source, path)
        self._discover_in_run(now_s)
        if self._config.paths and now_s >= self._glob_due_s:
            self._discover_paths(now_s)

    def _discover_in_run(self, now_s: float) -> None:
        try:
            names = os.listdir(self._logs)
        except (FileNotFoundError, NotADirectoryError):
            names = []
        if names != self._names:
            self._names = names
            for name in sorted({unrotated(name) for name in names}):
                source = f"{rundir.LOGS}/{name}"
                if name.endswith(".log") and self._is_new(source) and self._room(now_s):
                    self._tail(source, self._path_of(source))

    def _discover_paths(self, now_s: float) -> None:
        first = self._glob_due_s == float("-inf") and not self._restored
        self._glob_due_s = now_s + _GLOB_INTERVAL_S
        for pattern in self._config.paths:
            for name in sorted(glob.glob(pattern, recursive=True)):  # noqa: PTH207 - absolute patterns too
                source = str(Path(name).absolute())
                if self._is_new(source) and self._room(now_s):
                    tail = self._tail(source, Path(source))
                    if first and not self._config.from_start:
                        tail.skip_to_end()

    def _is_new(self, source: str) -> bool:
        return source not in self._tails and source not in self._resting

    def _let_go(self, now_s: float) -> None:
        """Close files that are at their paths no more and do not grow."""
        for source, tail in list(self._tails.items()):
            if tail.quiet_s(now_s) >= GONE_S and stat_of(tail.path) is None:
                self._resting.lay(source, self._tails.pop(source))
                self._labels.pop(source, None)
        self._resting.trim()

    def _room(self, now_s: float) -> bool:
        """Whether one more file may be followed; the one that has been quiet longest makes room, if that is long."""
        if len(self._tails) < self._config.max_files:
            return True
        quietest = max(self._tails, key=lambda source: self._tails[source].quiet_s(now_s))
        if self._tails[quietest].quiet_s(now_s) < GONE_S:
            self._names = []  # it is looked at again
            return False
        self._resting.lay(quietest, self._tails.pop(quietest))
        return True

    def _read(self, tail: Tail, now_s: float, limit_bytes: int) -> list[Line]:
        try:
            return tail.read(now_s, limit_bytes)
        except OSError as error:
            fields = {"path": str(tail.path), "error": str(error)}
            log.debug("log file cannot be read", extra={"fields": fields})
            return []

    def _records(self, source: str, path: Path, found: Sequence[Line], now_s: float) -> Iterator[Record]:
        """Records of a batch, one writer each: a common file is taken apart by the rank prefixes of its lines."""
        rank = rundir.rank_of_log(path)
        by_writer: dict[int | None, tuple[list[int], list[str]]] = {}
        cleaned = [(end, text) for end, raw in found if (text := clean(raw))]
        label = self._label(source, [text for _, text in cleaned]) if rank is None else None
        for end, text in cleaned:
            ends, texts = by_writer.setdefault(rank if rank is not None else self._writer(text, label), ([], []))
            ends.append(end)
            texts.append(text)
        for writer, (ends, texts) in by_writer.items():
            name = source if writer == rank else f"{source}#rank{writer}"
            kept, lines, counts = collapse(ends, texts, self._config.flood_lines)
            yield from self._split(name, writer, _Batch(kept, lines, [now_s] * len(kept), counts))

    def _label(self, source: str, texts: Sequence[str]) -> re.Pattern[str] | None:
        """The label that most lines of the file begin with (srun --label), looked for in its first lines."""
        label, seen = self._labels.get(source, (None, 0))
        if label is None and seen < _LABEL_LINES:
            label = label_of(texts)
            self._labels[source] = (label, seen + len(texts))
        return label

    def _writer(self, text: str, label: re.Pattern[str] | None) -> int | None:
        """The rank that any launcher's prefix names."""
        writer = writer_of(text, label)
        if writer.local is not None and writer.rank is None:
            here = sorted({process.rank for process in rank_processes(self._run_dir)})
            return here[writer.local] if writer.local < len(here) else writer.local
        return writer.rank

    def _split(self, source: str, rank: int | None, batch: _Batch) -> Iterator[LogRecord]:
        """Records of bounded size."""
        start = size = 0
        lines = batch.lines
        for place in range(len(lines) + 1):
            if place == len(lines) or size >= _RECORD_BYTES:
                part = slice(start, place)
                if place > start:
                    yield LogRecord(
                        job=self._scope.job,
                        node=self._scope.node,
                        source=source,
                        ends=tuple(batch.ends[part]),
                        lines=tuple(lines[part]),
                        times_s=tuple(batch.times_s[part]),
                        counts=tuple(batch.counts[part]) if any(count > 1 for count in batch.counts[part]) else (),
                        rank=rank,
                    )
                start, size = place, 0
            if place < len(lines):
                size += len(lines[place]) + _LINE_OVERHEAD_BYTES

    def _kernel_lines(self, now_s: float) -> Iterator[Record]:
        kernel = self._kernel
        if kernel is None:
            return
        if not self._kernel_opened:
            self._kernel_opened = True
            try:
                kernel.open()
            except OSError as error:
                fields = {"path": self._config.kmsg_path, "reason": error.strerror}
                log.info(
                    "kernel log is not readable, so Xid and link messages of the kernel are not seen",
                    extra={"fields": fields},
                )
                self._kernel = None
                return
        messages = [(message, text) for message in kernel.read() if (text := clean(message.text))]
        if messages:
            booted_s = now_s - since_boot_s()
            times_s = [min(now_s, booted_s + message.boot_time_s) for message, _ in messages]
            ends = [message.end for message, _ in messages]
            yield from self._split(KERNEL_SOURCE, None, _Batch(ends, [text for _, text in messages], times_s))

    def _skipped_record(self, now_s: float) -> MetricsRecord:
        return MetricsRecord(
            job=self._scope.job,
            node=self._scope.node,
            time_s=now_s,
            devices=("agent",),
            names=("agent_log_skipped_bytes",),
            values=((float(self._skipped_bytes),),),
        )
