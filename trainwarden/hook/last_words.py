"""What a process says beyond its steps: how it ended, rare facts, and its record of collective calls when asked.

Everything goes to files beside the shared one: ``.last`` for facts (each also a datagram to the agent), ``.fault`` for
the interpreter's own words at a fatal signal, ``.calls`` for torch's record of the newest collective calls.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import json
import os
import stat
import sys
import threading
import time
import types
from _thread import start_new_thread
from collections.abc import Callable
from typing import Any

from .ends import ByHand
from .layout import ASK_PAUSE, AT_CODE, AT_PHASE, AT_PID, AT_RANK, AT_START_NS, AT_STEP, AT_WORLD, EXIT, NO_CODE
from .memory import Memory, checked, let_through, off_streams
from .pauses import lack_of_space
from .thread import TrainingThread, clock

_MAX_CAUSES = 8
_BETWEEN_S = 0.05  # between two looks at a request to stand still that is not over
_MAX_TYPES = 16
_MAX_CAUSE_CHARS = 1000
_MAX_CALLS_BYTES = 64_000_000  # 2,000 calls, torch's default, have about 1 MB


class LastWords:
    """How the process ended: an exception, an exit code, a fatal signal."""

    __slots__ = ("by_hand", "disable_faults", "exit_code", "fault_file", "memory", "notes", "thread")

    def __init__(self, thread: TrainingThread, by_hand: ByHand) -> None:
        self.memory: Memory = thread.memory
        self.thread = thread
        self.by_hand = by_hand
        self.fault_file: Any = None  # while it is ours that the interpreter writes to
        self.disable_faults: Any = None
        self.exit_code: int | None = None
        self.notes = 0

    def arm(self) -> None:
        """Be asked when the interpreter ends, in front of whoever else is."""
        import socket  # noqa: F401 - imported at an exception it makes Python forget that a Ctrl-C ends the process

        previous = sys.excepthook

        def on_exception(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
            self.exception(kind, error, trace)
            previous(kind, error, trace)

        sys.excepthook = on_exception
        leave = sys.exit

        @functools.wraps(leave)
        def on_sys_exit(status: Any = None, /) -> Any:
            if self.memory.live and threading.current_thread() is threading.main_thread():
                self.exit_code = 0 if status is None else (status if isinstance(status, int) else 1)
            leave(status)

        sys.exit = on_sys_exit
        atexit.register(self.at_exit)
        if not faulthandler.is_enabled():
            self._arm_faults()

    def _arm_faults(self) -> None:
        """Have the interpreter's words at a fatal signal, until the program wants them or none.

        To the program it is as if nobody had asked for them: it is told that they are not enabled.
        """
        try:
            words = self._fault_words()
        except OSError:  # all else is told as ever
            self.memory.failed()
            return
        disable: Any = faulthandler.disable  # it does return whether they were enabled
        enable, is_enabled = faulthandler.enable, faulthandler.is_enabled
        self.disable_faults = disable
        self.fault_file = words
        enable(self.fault_file, all_threads=False)

        @functools.wraps(enable)
        def enabled(*args: Any, **kwargs: Any) -> Any:
            enable(*args, **kwargs)
            self.fault_file = None

        @functools.wraps(disable)
        def disabled() -> Any:
            ours, self.fault_file = self.fault_file is not None, None
            return disable() and not ours

        @functools.wraps(is_enabled)
        def asked() -> bool:
            return is_enabled() and self.fault_file is None

        faulthandler.enable, faulthandler.disable, faulthandler.is_enabled = enabled, disabled, asked

    def _fault_words(self) -> Any:
        """The file for the interpreter's words, open for the life of the process."""
        with off_streams():
            return open(self.memory.fresh(self.memory.path + ".fault"), "w", encoding="utf-8")

    def disarm_faults(self) -> None:
        """No more words at a fatal signal, where they are ours."""
        if self.fault_file is not None:
            self.disable_faults()

    def at_exit(self) -> None:
        """The interpreter ends by itself."""
        memory = self.memory
        try:
            if not memory.live:
                return
            words = memory.words
            self.disarm_faults()  # reading thread states that are being freed would turn an abort into a crash
            if words[AT_CODE] == NO_CODE:
                self.by_hand.finish()
            if words[AT_CODE] == NO_CODE:
                words[AT_CODE] = self.exit_code or 0
            words[AT_PHASE] = clock() << 3 | EXIT
            self.thread.phase = EXIT
        except Exception:
            memory.failed()

    def exception(self, kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        """Tell of an uncaught exception: by datagram at once, and by a file in case nobody listens."""
        memory = self.memory
        try:
            if not memory.live:
                return
            memory.words[AT_CODE] = 130 if issubclass(kind, KeyboardInterrupt) else 1
            fact = exception_fact(kind, error, trace, memory.saving)
            self.note({"type": "exception", **fact, "step": memory.words[AT_STEP]})
        except BaseException:  # of an exception's own making, which may want to exit
            memory.failed()

    def note(self, fact: dict[str, Any]) -> None:
        """Keep one rare fact in the notes file and send it to the agent; never waits for the agent."""
        memory = self.memory
        words = memory.words
        self.notes += 1
        fact = {
            **fact,
            "file": os.path.basename(memory.path),
            "number": self.notes,
            "pid": words[AT_PID],
            "rank": words[AT_RANK],
            "incarnation": f"{words[AT_PID]}-{words[AT_START_NS] // 1_000_000}",
            "time_s": time.time(),
        }
        line = json.dumps(fact).encode()
        descriptor = memory.more(memory.path + ".last")
        try:
            os.write(descriptor, line + b"\n")
        finally:
            os.close(descriptor)
        with contextlib.suppress(OSError):
            send_datagram(memory.folder, line)


class Requests:
    """The agent's requests for the recorded collective calls, heard while the training thread is stuck in one.

    And the launcher's, by `ASK_PAUSE`, to look whether all are to stand still.

    Parameters
    ----------
    look : callable
        Looks; whether to look again soon.
    """

    __slots__ = ("identity", "look", "memory", "pipe")

    def __init__(self, memory: Memory, look: Callable[[], bool]) -> None:
        self.memory = memory
        self.look = look
        self.pipe = -1  # on which the agent asks
        self.identity: os.stat_result | None = None  # of the pipe

    def listen(self) -> None:
        """Make the pipe and start the thread that sleeps on it; where nobody can be waited for there is neither."""
        memory = self.memory
        if self.pipe >= 0 or memory.words[AT_WORLD] < 2:
            return
        if not isinstance(start_new_thread, types.BuiltinFunctionType):
            return  # gevent and its like have put something in its place that sleeps on the training thread
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(memory.path + ".ask")
            os.mkfifo(memory.path + ".ask", 0o600)
            # Both ends, so that opening does not wait for the agent and its leaving is no end of file.
            flags = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            with off_streams():
                self.pipe = checked(os.open(memory.path + ".ask", flags), stat.S_IFIFO, (memory.owner,))
            self.identity = os.fstat(self.pipe)
            os.set_blocking(self.pipe, True)
            os.fchmod(self.pipe, 0o600 | memory.shared & 0o020)  # whoever the folder lets write may ask
            start_new_thread(self._answer, ())  # threading's own start waits for the thread to run
        except (OSError, RuntimeError):
            memory.failed()

    def _answer(self) -> None:
        """Body of the thread."""
        again = False
        while True:
            try:
                # A program that closes whatever is open, as daemons do, may have something of its own there by now.
                if self.identity is None or not os.path.samestat(self.identity, os.fstat(self.pipe)):
                    return
                asked = self._next(again)
            except OSError:
                return
            try:
                if not asked or self.memory.off:
                    return
                if ASK_PAUSE in asked:
                    again = False
                    again = self.look()
                if asked.strip(ASK_PAUSE):
                    self.leave_calls()
            except Exception:
                self.memory.failed()

    def _next(self, again: bool) -> bytes:
        """What was asked, however long that takes; many requests that wait are one. With `again` it is to look soon."""
        if not again:
            os.set_blocking(self.pipe, True)
            return os.read(self.pipe, 4096)
        os.set_blocking(self.pipe, False)
        time.sleep(_BETWEEN_S)
        try:
            return ASK_PAUSE + os.read(self.pipe, 4096)
        except BlockingIOError:
            return ASK_PAUSE

    def leave_calls(self) -> None:
        """Write torch's record of the newest collective calls (JSON) to ``.calls``, whole or not at all.

        Only the recorder that host-side backends (gloo) write into: asking NCCL's own takes locks of CUDA while the
        interpreter waits, and its watchdog writes it down by itself.
        """
        c10d = sys.modules.get("torch._C._distributed_c10d")
        dump = getattr(c10d, "_dump_fr_trace_json", None)
        if dump is None:  # torch before 2.10
            return
        text = dump()
        text = text.encode() if isinstance(text, str) else bytes(text)
        if b'"entries"' not in text or len(text) > _MAX_CALLS_BYTES:
            return
        self.memory.leave(".calls", text)


def send_datagram(folder: str, line: bytes) -> None:
    """Send `line` to the agent's socket in `folder` without ever waiting; OSError if that cannot be."""
    import socket

    # A socket's address holds 107 bytes at most; through the open folder any path is short.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(line, f"/proc/self/fd/{descriptor}/agent.sock")
    finally:
        os.close(descriptor)


def exception_fact(
    kind: type[BaseException], error: BaseException, trace: types.TracebackType | None, saving: str = ""
) -> dict[str, Any]:
    """What an uncaught exception says; `saving` is the checkpoint whose writing failed last."""
    return {
        "exception": kind.__name__,
        "types": " ".join(type_names(kind)),
        "causes": "\n".join(causes_of(error)),
        "message": f"{kind.__name__}: {words_of(error)}"[:2000],
        "frame": user_frame(trace),
        **lack_of_space(error, saving),
    }


def user_frame(trace: types.TracebackType | None) -> str:
    """The innermost frame of the person's own code, as ``file.py:123 in function``."""
    library = os.path.dirname(os.__file__)
    frame = last = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        name = code.co_filename
        last = f"{os.path.basename(name)}:{trace.tb_lineno} in {code.co_name}"
        foreign = "site-packages" in name or "dist-packages" in name or name.startswith(("<", library))
        if not foreign and "/torch/" not in name:
            frame = last
        trace = trace.tb_next
    return frame or last


def words_of(error: BaseException) -> str:
    """What `error` says, whatever its own ``__str__`` does."""
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()  # a path may hold bytes that are no text
    except BaseException:
        let_through()
        return ""


def type_names(kind: type[BaseException]) -> list[str]:
    """`kind` and what it derives from, with their modules, without what every exception is."""
    return [_name(one) for one in kind.__mro__[:_MAX_TYPES] if one not in (Exception, BaseException, object)]


def causes_of(error: BaseException) -> list[str]:
    """What `error` was raised from, nearest first, one line each; vertical tabs stand for ends of lines.

    ``during `` is in front of what was only being handled when the next one was raised.
    """
    found: list[str] = []
    seen = {id(error)}
    while len(found) < _MAX_CAUSES:
        during = error.__cause__ is None
        cause = error.__context__ if during and not error.__suppress_context__ else error.__cause__
        if cause is None or id(cause) in seen:
            break
        seen.add(id(cause))
        text = f"{_name(type(cause))}: {words_of(cause)}"[:_MAX_CAUSE_CHARS]
        found.append(("during " if during else "") + "\v".join(text.splitlines()))
        error = cause
    return found


def _name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
