"""Imports modules once, then becomes a rank's program at each request; run as a file by the ranks' own Python.

``python [FLAGS] fork_server.py CHANNEL LAUNCHER MODULES -- WORDS...``: `CHANNEL` is the descriptor of a
``SOCK_SEQPACKET`` socket, `LAUNCHER` the process that ranks shall be children of, `MODULES` what to import, parted by
commas, and `WORDS` what stands behind the flags on a rank's command line: a script or ``-m MODULE``, and arguments.

The first message says whether ranks may start from here: ``{"ready": true}`` or ``{"refused": sentence}``. Each request
is ``{"set": {...}, "unset": [...], "hook": path}`` with the descriptor that the rank writes to; the rank itself answers
``{"pid": number}``. It is forked twice, so that it is given to the nearest subreaper: the launcher, which waits for it
as for any child, and outlives this process. Standard library only, Python 3.9 and newer.
"""

# What ranks are forked from should have imported little that they did not ask for.
# ruff: noqa: PTH100, PTH109, PTH115, PTH120
from __future__ import annotations

import array
import atexit
import builtins
import contextlib
import ctypes
import importlib
import importlib.machinery
import importlib.util
import io
import json
import os
import runpy
import signal
import socket
import sys
import time
import types
from typing import Any

PR_SET_PDEATHSIG = 1  # linux/prctl.h
MAX_BYTES = 1 << 20  # of a request: what a socket takes at once is less
GIVEN_S = 5.0  # until the launcher is the parent; the kernel does it when the process between has ended

interrupts: list[BaseException] = []


def sentence_of(error: BaseException) -> str:
    """`error` in a line."""
    return f"{type(error).__name__}: {error}"[:500]


def open_files() -> dict[str, str]:
    """What is open, by number."""
    found = {}
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            found[number] = os.readlink("/proc/self/fd/" + number)
    return found


def refusal(before: dict[str, str]) -> str | None:
    """Why no rank may be forked from this process, which had `before` open; None if nothing speaks against it.

    What all ranks share by a fork outlives each of them: a device or a connection that is all of theirs at once, a lock
    in shared memory (a `multiprocessing.Lock`) that a killed rank keeps for ever.
    """
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"they have started {threads - 1} threads, which a fork would leave behind"
    for number, name in open_files().items():
        if before.get(number) != name:
            return f"they hold {name} open, which all ranks would share"
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as lines:
        for words in map(str.split, lines):
            if "w" in words[1] and "s" in words[1]:
                return f"they have memory ({' '.join(words[5:])[:200]}) that all ranks would share"
    return None


def prepare_path(words: list[str]) -> None:
    """Put in front of the path what Python puts there for `words`, in place of this file's own folder."""
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return
    if words[0] in ("-m", "-c"):
        sys.path[0] = os.getcwd() if words[0] == "-m" else ""
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(words[0]))


class RankSlot:
    """Where ``RANK`` stands in what others read as this process's environment (``/proc/PID/environ``).

    That is the memory that the program was started with, whatever it sets later: so it is written over.
    """

    def __init__(self) -> None:
        getenv = ctypes.CDLL(None).getenv
        getenv.restype = ctypes.c_void_p
        self._at = getenv(b"RANK")
        self._digits = len(os.environ.pop("RANK", ""))

    def write(self, rank: str) -> None:
        """Say that this process is `rank`."""
        if self._at and len(rank) <= self._digits:
            ctypes.memmove(self._at, rank.rjust(self._digits, "0").encode(), self._digits)


def receive(channel: socket.socket) -> tuple[dict[str, Any], int]:
    """The next request and the descriptor that came with it; ends this process when nobody can ask any more."""
    size = array.array("i").itemsize
    text, extras, _, _ = channel.recvmsg(MAX_BYTES, socket.CMSG_SPACE(size))
    if not text:
        os._exit(0)
    number = array.array("i")
    for level, kind, data in extras:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            number.frombytes(data[:size])
    return json.loads(text), number[0]


def serve(channel: socket.socket, launcher: int, slot: RankSlot) -> None:
    """Fork a rank at each request; returns in ranks alone."""
    while True:
        request, output = receive(channel)
        try:
            between = os.fork()
        except OSError as error:
            channel.send(json.dumps({"failed": sentence_of(error)}).encode())
            os.close(output)
            continue
        if between == 0:
            with contextlib.suppress(OSError):
                if os.fork() == 0:
                    become_rank(channel, launcher, slot, request, output)
                    return
                os._exit(0)
            os._exit(1)
        os.close(output)
        if os.waitpid(between, 0)[1] != 0:
            channel.send(json.dumps({"failed": "no process could be made"}).encode())


def become_rank(channel: socket.socket, launcher: int, slot: RankSlot, request: dict[str, Any], output: int) -> None:
    """Be what the launcher's own child would be after its start; ends this process where that cannot be."""
    try:
        os.setsid()
        until_s = time.monotonic() + GIVEN_S
        while os.getppid() != launcher and time.monotonic() < until_s:
            time.sleep(0.0005)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != launcher:
            os._exit(128 + signal.SIGKILL)
        for stream in (1, 2):
            os.dup2(output, stream)
        os.close(output)
        for name in request["unset"]:
            os.environ.pop(name, None)
        os.environ.update(request["set"])
        slot.write(os.environ.get("RANK", ""))
        channel.send(json.dumps({"pid": os.getpid()}).encode())
        channel.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        renew_chance()
        bring_hook(request["hook"])
    except BaseException as error:  # noqa: BLE001 - it must not go on as a second server
        with contextlib.suppress(OSError):
            os.write(2, f"trainwarden: a rank could not start: {sentence_of(error)}\n".encode())
        os._exit(126)


def renew_chance() -> None:
    """Give this rank chance of its own where a module drew its seed when it was imported."""
    drawn = sys.modules.get("numpy.random")  # Python's own does so itself after a fork, torch draws none
    if drawn is not None:
        drawn.seed()


def bring_hook(path: str) -> None:
    """Have the hook come in as it does at a start of Python, which was too early."""
    spec = importlib.util.spec_from_file_location("_trainwarden_inject", path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.come_in()


def run(words: list[str]) -> None:
    """Run `words` as Python runs its command line."""
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined] # what Python itself calls
        return
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if words[0] == "-c":
        sys.argv, name, source = ["-c", *words[2:]], "<string>", words[1].encode()
    else:
        sys.argv, name = list(words), os.path.abspath(words[0])
        with io.open_code(name) as file:
            source = file.read()
        main.__file__ = name
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", name)
    vars(main).update(__builtins__=builtins, __annotations__={})
    exec(compile(source, name, "exec", dont_inherit=True), vars(main))  # noqa: S102 - the person's own program


def end_by(error: BaseException) -> None:
    """End as Python ends by `error`, without the lines of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__, "<frozen runpy>"):
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.excepthook(type(error), error, trace)
    if isinstance(error, KeyboardInterrupt):
        interrupts.append(error)
    sys.exit(1)


def end_interrupted() -> None:
    """Die of SIGINT, if this program does, after all that it wanted to do at its end."""
    if interrupts:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def main(channel: socket.socket, launcher: int, modules: list[str], words: list[str]) -> None:
    """Import `modules` and serve; returns in ranks alone."""
    atexit.register(end_interrupted)  # the first, so it is called last
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: the launcher says who ends
    slot = RankSlot()
    prepare_path(words)
    before = open_files()
    try:
        for module in modules:
            importlib.import_module(module)
        why = refusal(before)
    except BaseException as error:  # noqa: BLE001 - whatever a module raises, SystemExit too
        why = sentence_of(error)
    channel.send(json.dumps({"ready": True} if why is None else {"refused": why}).encode())
    if why is not None:
        os._exit(0)
    serve(channel, launcher, slot)


if __name__ == "__main__":
    _words = sys.argv[sys.argv.index("--") + 1 :]
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), sys.argv[3].split(","), _words)
    try:
        run(_words)
    except SystemExit:
        raise
    except BaseException as _error:  # noqa: BLE001 - as Python itself does
        end_by(_error)
