"""One training process as its hook tells of it: steps, pauses, last words, and what the kernel says of it."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

import msgspec

from trainwarden import hook
from trainwarden.collectors.ranks import ProcessFinder
from trainwarden.protocols import JsonObject
from trainwarden.torchrun.files import read_part

log = logging.getLogger("trainwarden.agent")

MAX_NOTE_BYTES = 65_536
_READ_BYTES = 1_000_000  # of notes per look
_FAULT_BYTES = 65_536
_DEVICE_LATE_S = 30.0  # a device that has said nothing of a step for so long stands still, if that is enough for
_DEVICE_LATE_STEPS = hook.LATE_STEPS + 2  # so many steps: it may be behind, and is asked only as a step ends
_TIMED = ("optimizer", "marks")  # sources whose ends of steps are seen as they come, and so by the device too
_UNTIMED = {
    "failed": "events of the device failed: steps of this rank are not timed there",
    "open_capture": "a capture of a CUDA graph goes on and on: steps of this rank are not timed on its device",
}
_TICKS = os.sysconf("SC_CLK_TCK")

# What faulthandler writes first; texts of CPython's Modules/faulthandler.c.
_FATAL = {
    b"Fatal Python error: Segmentation fault": "SIGSEGV",
    b"Fatal Python error: Aborted": "SIGABRT",
    b"Fatal Python error: Bus error": "SIGBUS",
    b"Fatal Python error: Floating point exception": "SIGFPE",
    b"Fatal Python error: Floating-point exception": "SIGFPE",
    b"Fatal Python error: Illegal instruction": "SIGILL",
}


class Note(msgspec.Struct, frozen=True):
    """A rare fact that a hook told, by datagram or in its notes file; `(file, number)` is its identity."""

    type: str
    file: str
    number: int
    pid: int
    rank: int
    incarnation: str
    time_s: float
    exception: str = ""
    message: str = ""
    frame: str = ""
    types: str = ""
    causes: str = ""
    step: int | None = None
    path: str = ""
    mount: str = ""
    file_system: str = ""
    free_bytes: int | None = None
    size_bytes: int | None = None
    plan: int = 0
    micro_batches: str = ""


_DECODER = msgspec.json.Decoder(Note)


def decode_note(line: bytes) -> Note | None:
    """`line` as a note; None if it is none of ours."""
    if len(line) > MAX_NOTE_BYTES:
        return None
    try:
        note = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return note if 0 <= note.rank < 1_000_000 and note.type in ("exception", "plan") else None


class Kernel(msgspec.Struct, frozen=True):
    """State letter (X: gone, empty: not to be seen), seconds on or waiting for a CPU, pid here (None: not known)."""

    state: str
    cpu_s: float | None = None
    pid: int | None = None


def boot_id(proc: Path) -> str:
    """Name of the present boot; empty if `proc` does not say."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:64]
    except (OSError, UnicodeDecodeError):
        return ""


class HookSource:
    """The files of one hook, read bit by bit.

    Parameters
    ----------
    path : Path
        The ``.hook`` file; ``.last`` and ``.fault`` lie beside it.
    since_s : float
        When the file was first seen.
    """

    def __init__(self, path: Path, since_s: float) -> None:
        self.name = path.stem
        self.since_s = since_s
        self.header: hook.Header | None = None
        self.kernel = Kernel("X")
        self.gone_since_s: float | None = None
        self.started = False  # process_start has been told
        self.beside_told = False  # as of one that runs beside the rank's trainer
        self.trains = False  # it is the rank's trainer now
        self.trained = False  # it is or was, and has made steps
        self.steps_read = 0
        self.pauses_read = 0
        self.notes_at = 0  # bytes of the notes file that were read
        self.notes_told: set[int] = set()
        self.fault_told = False
        self.failed_looks = 0
        self._settled = 0  # newest step that is whole: what the device says of later ones may still come
        self._looked_s = float("-inf")
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)

    def close(self) -> None:
        """Let go of the file. Safe twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def look(self, lookout: ProcessFinder, now_s: float) -> bool:
        """Read header and kernel's word anew; False if the file is no whole hook file (now)."""
        # Looked at before the header: of a process that is gone by then, the header read next is the last one.
        if self.header is not None:
            self.kernel = _kernel(lookout, self.header)
        header = hook.read_header(self._descriptor)
        if header is None:
            self.failed_looks += 1
            return False
        if self.header is None:
            self.kernel = _kernel(lookout, header)
        if header.timing in _UNTIMED and header.timing != (self.header and self.header.timing):
            log.warning(_UNTIMED[header.timing], extra={"fields": {"rank": header.rank, "pid": header.pid}})
        self.header = header
        self.failed_looks = 0
        self._settled = header.recorded
        if header.timing == "on" and header.source in _TIMED and self.kernel.state not in ("X", "Z"):
            self._settled = max(header.timed, header.recorded - hook.POOL_STEPS)
        self._looked_s = now_s
        if self.kernel.state not in ("X", "Z"):
            self.gone_since_s = None
        elif self.gone_since_s is None:
            self.gone_since_s = now_s
        return True

    def new_steps(self) -> list[hook.Step]:
        """Steps not read before; asking moves on. What the device says of a step is waited for."""
        if self.header is None or self.header.recorded <= self.steps_read:
            return []
        steps = hook.read_steps(self._descriptor, self.steps_read, self.header) or []
        whole = list(takewhile(self._whole, steps))
        self.steps_read = whole[-1].serial if whole else self.steps_read
        return whole

    def _whole(self, step: hook.Step) -> bool:
        patience_s = max(_DEVICE_LATE_S, _DEVICE_LATE_STEPS * (step.duration_s - step.pause_s))
        return step.serial <= self._settled or step.end_s + patience_s < self._looked_s

    def new_pauses(self) -> list[hook.Pause]:
        """Long pauses not read before; asking moves on."""
        if self.header is None or self.header.pauses <= self.pauses_read:
            return []
        pauses = hook.read_pauses(self._descriptor, self.pauses_read) or []
        self.pauses_read = pauses[-1].serial if pauses else self.header.pauses
        return pauses

    def new_notes(self) -> Iterator[Note | None]:
        """Whole new lines of the notes file; None for each that is no note."""
        path = f"{self._path.parent}/{self.name}.last"
        try:
            if os.stat(path).st_size <= self.notes_at:  # noqa: PTH116 - five times a second for every rank
                return
            data = read_part(path, self.notes_at, _READ_BYTES)
        except OSError:
            return
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) == _READ_BYTES:
            whole = len(data)  # one endless line is no note
        for line in data[:whole].splitlines():
            yield decode_note(line)
        self.notes_at += whole

    def fatal_signal(self) -> tuple[str, str] | None:
        """(signal, innermost Python frame) if faulthandler has written its last words; told once."""
        path = f"{self._path.parent}/{self.name}.fault"
        try:
            if self.fault_told or not os.stat(path).st_size:  # noqa: PTH116 - as above
                return None
            text = read_part(path, 0, _FAULT_BYTES)
        except OSError:
            return None
        first, _, rest = text.partition(b"\n")
        signal = _FATAL.get(first.strip())
        if signal is None:
            return None
        self.fault_told = True
        frame = rest.partition(b"most recent call first):\n")[2].partition(b"\n")[0]
        return signal, frame.decode(errors="replace").strip()[:300]

    def remove(self) -> None:
        """Delete the files of a process that is long gone; its last words stay for people to read.

        Raises
        ------
        OSError
            If they may not be deleted.
        """
        self.close()
        self._path.unlink(missing_ok=True)
        self._path.with_suffix(".groups").unlink(missing_ok=True)
        fault = self._path.with_name(f"{self.name}.fault")
        with suppress(FileNotFoundError):
            if not fault.stat().st_size:
                fault.unlink()

    def position(self) -> JsonObject:
        """How far this one has been read."""
        return {
            "steps": self.steps_read,
            "pauses": self.pauses_read,
            "notes": self.notes_at,
            "told": sorted(self.notes_told),
            "fault": self.fault_told,
            "started": self.started,
            "beside": self.beside_told,
            "trains": self.trains,
            "trained": self.trained,
        }

    def restore(self, position: JsonObject) -> None:
        """Go on from `position`."""
        self.steps_read = int(position.get("steps", 0))
        self.pauses_read = int(position.get("pauses", 0))
        self.notes_at = int(position.get("notes", 0))
        self.notes_told = {int(number) for number in position.get("told", ())}
        self.fault_told = bool(position.get("fault", False))
        self.started = bool(position.get("started", False))
        self.beside_told = bool(position.get("beside", False))
        self.trains = bool(position.get("trains", False))
        self.trained = bool(position.get("trained", False))


def _kernel(lookout: ProcessFinder, header: hook.Header) -> Kernel:
    sight = lookout.look(header)
    if not sight.fields or sight.pid is None:
        return Kernel(sight.state)
    used_s = (int(sight.fields[11]) + int(sight.fields[12])) / _TICKS
    return Kernel(sight.state, used_s + lookout.queued_s(sight.pid), sight.pid)
