"""One rank's file of calls, read bit by bit: what is new, and what stands still."""

from __future__ import annotations

import logging
import os
import struct
from collections.abc import Mapping
from pathlib import Path

import msgspec

from trainwarden import hook
from trainwarden.collectors.nccl_profiler import read
from trainwarden.collectors.nccl_profiler.layout import AT_SAMPLE_UNTIL, CALLS
from trainwarden.protocols import JsonObject

log = logging.getLogger("trainwarden.agent")

Who = tuple[int, int | None, int | None]  # pid, start and namespace: the same in the hook's file and in the plug-in's
_STAMPS_S = 5.0  # a call that the device has not ended by then is told without its time


class Taken(msgspec.Struct, frozen=True):
    """What one look brought: calls of sampled steps, how many more were overwritten, and whether to tell the counts."""

    comms: tuple[read.Comm, ...]
    calls: tuple[read.Call, ...] = ()
    lost: int = 0
    counts: bool = False


class CallsFile:
    """The file of one process.

    Parameters
    ----------
    path : str
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.header: read.Header | None = None
        self.over = False  # its process is gone, and all of it is told
        self.alone_since_s: float | None = None  # without a hook's file
        self._read = 0  # records of the ring
        self._newest = 0  # communicators are told once as they come; their numbers grow
        self._blocked_s: float | None = None  # since when the next record has been no whole one
        self._seen: tuple[object, ...] = ()
        self._still_since_s = 0.0
        self._told_s: float | None = None  # when its standing still was told last
        self._doubted: set[str] = set()
        self._resume: JsonObject = {}
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        self.inode = os.fstat(self._descriptor).st_ino

    def close(self) -> None:
        """Let go of the file. Safe twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @property
    def sampled(self) -> bool:
        """Whether a process lives here whose calls the device stamps at some steps."""
        return self.header is not None and self.header.kernels == "sampled" and not self.over

    def sample(self, from_step: int, until_step: int) -> bool:
        """Ask the plug-in to have the calls of all these steps stamped; False if this may not be written.

        Both words are one write: a plug-in that reads between them samples a step too many at worst.
        """
        try:
            # By the descriptor, not by the path: what lies there now might be another file.
            descriptor = os.open(f"/proc/self/fd/{self._descriptor}", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:  # another user's
            return False
        try:
            words = struct.pack("@2Q", until_step, from_step)
            return os.pwrite(descriptor, words, 8 * AT_SAMPLE_UNTIL) == len(words)
        except OSError:
            return False
        finally:
            os.close(descriptor)

    def look(self) -> bool:
        """Read the header anew; False if the file is none of ours (yet)."""
        header = read.read_header(self._descriptor)
        if header is not None and self.header is None and self._resume.get("born") == header.born_ns:
            self._read = int(self._resume.get("calls", 0))
            self._newest = int(self._resume.get("comms", 0))
            self.over = bool(self._resume.get("over", False))
        self.header = header or self.header
        return self.header is not None

    @property
    def who(self) -> Who | None:
        """Whose file it is."""
        header = self.header
        return None if header is None else (header.pid, header.start_ticks, header.pid_namespace)

    def poll(self, now_s: float, still_s: float, again_s: float, *, gone: bool) -> Taken | None:
        """What is new at monotonic time `now_s`; None if nothing is. Asking moves on."""
        if self.header is None or self.over:
            return None
        comms = read.read_comms(self._descriptor)
        self._doubt(comms)
        calls, lost = self._new_calls(comms, now_s, gone=gone)
        alive = tuple(comm for comm in comms if not comm.closed)
        newest = max((comm.generation for comm in comms), default=0)
        fresh, self._newest = newest > self._newest, max(newest, self._newest)
        counts = self._stands(alive, now_s, still_s, again_s) or fresh or (gone and bool(alive))
        self.over = gone
        if not (calls or lost or counts):
            return None
        return Taken(tuple(comms) if calls else alive, calls, lost, counts and bool(alive))

    def _doubt(self, comms: list[read.Comm]) -> None:
        """Say once of each process why not all of its calls, or not their times, are told."""
        assert self.header is not None
        counts = self.header.counts
        found = {
            "NCCL's stamps are out of step: times of a communicator are not told": any(
                not comm.trusted and not comm.captured for comm in comms
            ),
            "a CUDA graph holds calls of NCCL's: their times are not told": counts.captured > 0,
            "there are more communicators or peers than are kept: some calls are not told": counts.dropped > 0,
        }
        for what in [what for what, true in found.items() if true and what not in self._doubted]:
            self._doubted.add(what)
            fields = {"file": Path(self.path).name, **counts._asdict()}
            log.warning(what, extra={"fields": fields})

    def _stands(self, alive: tuple[read.Comm, ...], now_s: float, still_s: float, again_s: float) -> bool:
        """Whether neither calls nor steps have moved for long enough to say so, again and again."""
        assert self.header is not None
        seen = (self.header.step, *((comm.generation, comm.enqueued, comm.started, comm.finished) for comm in alive))
        if seen != self._seen:
            self._seen, self._still_since_s, self._told_s = seen, now_s, None
        if not any(comm.enqueued for comm in alive) or now_s - self._still_since_s < still_s:
            return False
        if self._told_s is not None and now_s - self._told_s < again_s:
            return False
        self._told_s = now_s
        return True

    def _new_calls(self, comms: list[read.Comm], now_s: float, *, gone: bool) -> tuple[tuple[read.Call, ...], int]:
        """Calls of known steps, in their order, up to the first one that may still get its time from the device."""
        assert self.header is not None
        if self.header.calls <= self._read:
            return (), 0
        found = read.read_calls(self._descriptor, self._read, self.header)
        newest = read.read_header(self._descriptor) or self.header
        first = max(self._read, newest.calls - CALLS)
        lost, self._read = first - self._read, first
        of = {(comm.place, comm.generation & 0xFFFFFF): comm for comm in comms}
        ended = _ended(found)
        told = []
        while self._read < self.header.calls:
            call = found.get(self._read + 1)
            if not gone and not self._settled(call, of, ended, now_s):
                break
            self._read += 1
            if call is not None:
                self._blocked_s = None
                if call.step is not None:
                    told.append(call)
        return tuple(told), lost

    def _settled(
        self, call: read.Call | None, of: Mapping[tuple[int, int], read.Comm], ended: Mapping[tuple[int, int], int],
        now_s: float,
    ) -> bool:  # fmt: skip
        """Whether nothing more will become of `call`, the next one; None: its record is not whole."""
        if call is None:
            self._blocked_s = now_s if self._blocked_s is None else self._blocked_s
            return now_s - self._blocked_s >= _STAMPS_S
        place = (call.place, call.generation)
        comm = of.get(place)
        if call.done or comm is None or comm.closed or not comm.trusted:
            return True
        # The device goes in order: what it passed over unbegun was not to be stamped.
        passed = not call.begun and ended.get(place, 0) > call.serial
        return passed or abs(now_s - call.enqueued_ns / 1e9) >= _STAMPS_S  # junk may say a time to come

    def position(self) -> JsonObject:
        """How far this one has been read."""
        if self.header is None:
            return self._resume
        return {"born": self.header.born_ns, "calls": self._read, "comms": self._newest, "over": self.over}

    def restore(self, position: JsonObject) -> None:
        """Go on from `position`, if it is of this very file."""
        self._resume = position


def _ended(found: Mapping[int, read.Call]) -> dict[tuple[int, int], int]:
    """The newest call of each communicator that the device has ended."""
    return {(call.place, call.generation): serial for serial, call in sorted(found.items()) if call.done}


def who_of(header: hook.Header) -> Who:
    """The same of a hook's file."""
    return header.pid, header.start_ticks, header.pid_namespace
