"""A job's output on its way through us: passed on as it comes, kept in bounded logs, and never held up.

A job blocks on its own output as soon as nobody reads it. So whatever fails here (the log's disk, the terminal that is
closed, the reader of a pipe that has enough), the job's end of the pipe goes on being read: what cannot be passed on or
kept is let go and counted.
"""

from __future__ import annotations

import os
import re
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trainwarden.torchrun.files import opened

LOG_BYTES: Final = 256 * 1024 * 1024
_READ_BYTES: Final = 65_536
_LONGEST_LINE: Final = 65_536  # a longer one is cut
_QUEUE_BYTES: Final = 8 * 1024 * 1024  # of output that waits for the disk
_PIECE = re.compile(rb"[^\r\n]*(?:\r\n|\n|\r)")


class OutputSink:
    """A descriptor that output is passed on to. The first failure is the last: its reader is gone.

    Writing waits for a reader that is slow, as the job would without us. Whole calls do not mix.
    """

    def __init__(self, descriptor: int) -> None:
        self.gone = False
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        """All of `data`, or nothing any more."""
        with self._lock:
            rest = memoryview(data)
            while rest and not self.gone:
                try:
                    rest = rest[os.write(self._descriptor, rest) :]
                except BlockingIOError:
                    ready = select.poll()
                    ready.register(self._descriptor, select.POLLOUT)
                    ready.poll(1000)
                except OSError:
                    self.gone = True


class LogWriter:
    """Appends to log files from a thread of its own: neither a full disk nor a slow one holds up whoever writes.

    A file that has reached half its limit is renamed to ``NAME.1``, in place of the one before.

    Parameters
    ----------
    limit_bytes : int
        Most bytes of one log, its renamed half included.
    queue_bytes : int
        Most bytes that wait for the disk; what comes beyond is let go and counted.
    """

    def __init__(self, limit_bytes: int = LOG_BYTES, queue_bytes: int = _QUEUE_BYTES) -> None:
        self._lost_bytes = 0
        self._limit_bytes = limit_bytes
        self._queue_bytes = queue_bytes
        self._queue: deque[tuple[Path, bytes]] = deque()
        self._queued_bytes = 0
        self._closed = False
        self._changed = threading.Condition()
        self._said: set[str] = set()
        self._news: list[str] = []
        self._thread = threading.Thread(target=self._run, name="job-logs", daemon=True)
        self._thread.start()

    def keep(self, path: Path, data: bytes) -> None:
        """Append `data` to `path` soon."""
        with self._changed:
            if self._queued_bytes + len(data) > self._queue_bytes or self._closed:
                self._lost(data, "its disk does not keep up")
                return
            self._queue.append((path, data))
            self._queued_bytes += len(data)
            self._changed.notify_all()

    def news(self) -> list[str]:
        """Sentences about what is not kept, each once."""
        with self._changed:
            news, self._news = self._news, []
            return news

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is on its way to the disk, at most so long; whether it is. Then `news` has the loss."""
        with self._changed:
            is_written = self._changed.wait_for(lambda: not self._queued_bytes, timeout_s)
            if self._lost_bytes:
                self._news.append(f"{self._lost_bytes:,} bytes of the job's output are missing in its log")
                self._lost_bytes = 0
            return is_written

    def close(self, timeout_s: float = 2.0) -> None:
        """Settle and stop. Safe twice."""
        self.flush(timeout_s)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    return
                path, data = self._queue.popleft()
            try:
                self._append(path, data)
            except OSError as error:
                with self._changed:
                    self._lost(data, (error.strerror or "it cannot be written").lower())
            with self._changed:
                self._queued_bytes -= len(data)
                self._changed.notify_all()

    def _append(self, path: Path, data: bytes) -> None:
        with open(opened(path, os.O_APPEND, 0o666), "ab", buffering=0) as file:
            if file.tell() and file.tell() + len(data) > self._limit_bytes // 2:
                path.replace(path.with_name(f"{path.name}.1"))
                with self._changed:
                    limit = f"{self._limit_bytes / 2**20:.3g} MiB"
                    self._say(f"the log {path} has reached its limit of {limit}: its oldest half goes")
                return self._append(path, data)
            written = file.write(data)
            if written != len(data):
                file.write(data[written:])  # a disk that is full says so now
        return None

    def _lost(self, data: bytes, why: str) -> None:
        self._lost_bytes += len(data)
        self._say(f"the job's output is not kept any more, or not all of it ({why}); the job itself goes on")

    def _say(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._news.append(sentence)


class PipeReader:
    """Reads `source` to its end from a thread of its own, which nothing but that end can stop.

    Parameters
    ----------
    source : int
        The reading end of the job's pipe; closed at its end.
    outlet : Outlet, optional
        Gets the bytes as they come; with `prefix`, lines (and rewritten lines, as of progress bars) that begin with it.
    keep : callable
        Gets whole lines, so that the logs of several sources may be one.
    """

    def __init__(
        self, source: int, outlet: OutputSink | None, keep: Callable[[bytes], None], *, prefix: bytes = b""
    ) -> None:
        self._source = source
        self._outlet = outlet
        self._keep = keep
        self._prefix = prefix
        self._line = b""
        self._thread = threading.Thread(target=self._run, name=f"drain-{source}", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> bool:
        """Wait for the end, at most so long; whether it has come. A child of the job may hold the pipe for ever."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while data := self._read():
            if self._outlet is not None and not self._prefix:
                self._outlet.write(data)
            self._line += data
            end = max(self._line.rfind(b"\n"), self._line.rfind(b"\r")) + 1
            if not end and len(self._line) >= _LONGEST_LINE:
                end = len(self._line)
            if end:
                self._whole(self._line[:end])
                self._line = self._line[end:]
        if self._line:
            self._whole(self._line + b"\n" if self._prefix else self._line)
        os.close(self._source)

    def _read(self) -> bytes:
        try:
            return os.read(self._source, _READ_BYTES)
        except OSError:
            return b""

    def _whole(self, lines: bytes) -> None:
        if self._outlet is not None and self._prefix:
            pieces = _PIECE.findall(lines) or [lines + b"\n"]
            self._outlet.write(b"".join(self._prefix + piece for piece in pieces))
        self._keep(lines)


def join_all(drains: list[PipeReader], timeout_s: float) -> bool:
    """Wait for the end of all, at most so long altogether; whether it has come."""
    deadline_s = time.monotonic() + timeout_s
    return all([drain.join(max(0.0, deadline_s - time.monotonic())) for drain in drains])
