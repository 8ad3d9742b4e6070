"""Brings the hook in by PYTHONPATH where torch does not call our entry point.

That is torch before 2.5, or a Python that has not installed trainwarden. Once ``import torch`` is done the
hook is loaded from beside this folder, where its package lies or, in an image, the one file made from it
(``trainwarden_hook.py``), so nothing of ours need be importable. The next ``sitecustomize`` on the path,
which this file hides, is run as if this one were not there. Runs on Python 3.9 and newer.

A process that fails before it trains has no hook file. So each program that begins leaves ``rank-<rank>-<pid>.begun``,
one JSON object a line: who it is, then the exception or the exit code that ended it. One that ends well, and alone,
removes it. The agent judges (`trainwarden.collectors.processes.begun`). One-liners (``-c``), among them
multiprocessing's workers, and interactive sessions leave nothing.
"""

# Every start of Python pays for this file, and pathlib would be most of its cost.
# ruff: noqa: PTH100, PTH108, PTH110, PTH116, PTH118, PTH119, PTH120
from __future__ import annotations

import atexit
import importlib.machinery
import importlib.util
import os
import sys
import types

_HERE = os.path.dirname(os.path.abspath(__file__))
_INJECTED = "_trainwarden_injected_hook"
_RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")  # as `who_am_i` of the hook
_GENERATIONS = 16  # that are looked at for a program of ours which has started this one
_MAX_RANK = 1_000_000
_MOST_FILES = 4_096  # in the hook's folder: where no agent removes them no more are left


def _load_hook() -> None:
    """Load the hook beside this folder, unless torch has done it, and let it look at the torch just imported."""
    try:
        if "_trainwarden_hook" not in vars(sys):
            _hook().autoload()
    except Exception:  # noqa: BLE001, S110 - the hook must never break somebody's import of torch
        pass


def _hook() -> types.ModuleType:
    """The hook beside this folder. Whatever its import raises."""
    known = sys.modules.get(_INJECTED)
    if known is not None:
        return known
    beside = os.path.dirname(_HERE)
    path = os.path.join(beside, "hook", "__init__.py")
    if not os.path.exists(path):
        path = os.path.join(beside, "trainwarden_hook.py")
    folder = [os.path.dirname(path)] if path.endswith("__init__.py") else None  # None: no package
    spec = importlib.util.spec_from_file_location(_INJECTED, path, submodule_search_locations=folder)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its NamedTuples, and a package's own imports, look it up
    spec.loader.exec_module(module)
    return module


class _TorchWatcher:
    """A finder that finds nothing itself; it has the real loader of torch tell when it is done."""

    def __init__(self) -> None:
        self.busy = False

    def find_spec(
        self, name: str, path: object = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch" or self.busy:
            return None
        self.busy = True
        try:
            return self._telling(importlib.util.find_spec(name))
        except Exception:  # noqa: BLE001 - then it is imported as if we were not there
            return None
        finally:
            self.busy = False

    def _telling(self, spec: importlib.machinery.ModuleSpec | None) -> importlib.machinery.ModuleSpec | None:
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                run(module)
                _load_hook()

            vars(spec.loader)["exec_module"] = exec_module
        return spec


def _run_next() -> None:
    """Run the sitecustomize that comes after this one on the path, under its own name."""
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def come_in() -> None:
    """Have the hook come with torch, or now where torch has come before (`trainwarden.torchrun.rank`)."""
    if "torch" in sys.modules:
        _load_hook()
    else:
        sys.meta_path.insert(0, _TorchWatcher())


def _end_with_torchrun() -> None:
    """Have the kernel end this rank with its torchrun, which else would leave it behind (`trainwarden.torchrun`)."""
    try:
        if os.environ.get("TRAINWARDEN_ENDS_WITH") == str(os.getppid()):
            import ctypes

            ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG (linux/prctl.h), SIGKILL
    except Exception:  # noqa: BLE001, S110 - then it is left behind
        pass


class _Begun:
    """This program's file in the hook's folder, and what it says of its end there.

    Parameters
    ----------
    folder : str
        The hook's.
    program : str
        What Python runs, by its command line.
    """

    def __init__(self, folder: str, program: str) -> None:
        self.pid = os.getpid()
        number = next((os.environ[name] for name in _RANKS if os.environ.get(name, "").isdigit()), "0")
        rank = min(int(number), _MAX_RANK - 1)
        named = any(os.environ.get(name, "").isdigit() for name in _RANKS[:3])  # Slurm names a batch script's too
        parent, of_rank = _above(folder)
        self.path = os.path.join(folder, f"rank-{rank}-{self.pid}.begun")
        self.told = False
        self.code = None  # type: int | None
        ticks, namespace = int(_stat(self.pid)[19]), os.stat("/proc/self/ns/pid").st_ino
        is_rank = named and not of_rank
        launched = is_rank and parent == os.getppid()
        who = (("is_rank", is_rank), ("launched", launched))
        script = "".join(sign if sign.isalnum() or sign in " ._-" else "?" for sign in os.path.basename(program))
        line = (
            f'{{"pid": {self.pid}, "ticks": {ticks}, "namespace": {namespace}, "rank": {rank}, '
            f'"parent": {parent}, "ppid": {os.getppid()}, '
            + "".join(f'"{name}": {str(value).lower()}, ' for name, value in who)
            + f'"script": "{script[:200]}"}}\n'
        )
        if os.path.lexists(self.path):
            os.unlink(self.path)  # of this very process, before it ran another program by exec
        self._write(line.encode("ascii", "replace"), os.O_CREAT | os.O_EXCL)

    def _write(self, data: bytes, more: int = 0) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC | more
        shared = os.stat(os.path.dirname(self.path)).st_mode & 0o040
        descriptor = os.open(self.path, flags, 0o600 | shared)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def listen(self) -> None:
        """Be asked at an uncaught exception, and as the interpreter ends."""
        previous, leave = sys.excepthook, sys.exit

        def on_exception(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
            self.failed(kind, error, trace)
            previous(kind, error, trace)

        def on_exit(status: object = None, /) -> None:
            self.code = 0 if status is None else status if isinstance(status, int) else 1
            leave(status)  # type: ignore[arg-type]

        on_exit.__doc__, on_exit.__name__ = leave.__doc__, leave.__name__
        sys.excepthook, sys.exit = on_exception, on_exit  # type: ignore[assignment]
        atexit.register(self.over)

    def failed(self, kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        """An exception ends the program, unless it trains: then its hook tells."""
        try:
            trains = getattr(vars(sys).get("_trainwarden_hook"), "live", False)
            if os.getpid() != self.pid or trains:
                return
            import json
            import time

            fact = _hook().exception_fact(kind, error, trace)
            self._write(json.dumps({**fact, "time_s": time.time()}).encode() + b"\n")
            self.told = True
        except BaseException:  # noqa: BLE001, S110 - of an exception's own making, which may want to exit
            pass

    def over(self) -> None:
        """The interpreter ends by itself."""
        try:
            if os.getpid() != self.pid or self.told:
                return
            folder, own = os.path.split(self.path)
            follows = any(name.endswith(".begun") and name != own for name in os.listdir(folder))
            if self.code or follows:  # a program that failed is excused by one that came after it
                self._write(b'{"code": %d}\n' % (self.code or 0))
            else:
                os.unlink(self.path)
        except OSError:
            pass


def _stat(pid: int) -> list[bytes]:
    """The fields of a process's stat file from its state on."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        text = file.read()
    return text[text.rfind(b")") + 2 :].split()


def _above(folder: str) -> tuple[int, bool]:
    """The pid of the nearest program of ours that has started this one, and whether it is a rank; 0 without one."""
    names = os.listdir(folder)
    if len(names) > _MOST_FILES:
        raise OSError("too many files")
    ours = (name.split("-") for name in names if name.startswith("rank-") and name.endswith((".begun", ".hook")))
    begun = {parts[2].split(".")[0]: "-".join(parts) for parts in ours if len(parts) > 2}
    pid = os.getppid()
    for _ in range(_GENERATIONS):
        name = begun.get(str(pid))
        if name is not None:
            return pid, name.endswith(".hook") or _is_rank(os.path.join(folder, name))
        if pid <= 1:
            break
        pid = int(_stat(pid)[1])
    return 0, False


def _is_rank(path: str) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return b'"is_rank": true' in os.read(descriptor, 1000)
    finally:
        os.close(descriptor)


def _program(words: list[str]) -> str:
    """What Python runs by the command line `words`: a path, or ``-m`` and a module; empty: a one-liner or a person."""
    rest = iter(words[1:])
    for word in rest:
        if not word.startswith("-"):
            return word
        if word == "-":
            return ""
        if word == "--check-hash-based-pycs":
            next(rest, None)
        for place, letter in enumerate(word[1:], 2):
            if letter == "c":
                return ""
            if letter == "m":
                return f"-m {word[place:] or next(rest, '')}"
            if letter in "WX" and not word[place:]:
                next(rest, None)
            if letter in "WX-":
                break
    return ""


def _note_begin(folder: str) -> None:
    """Leave a file that this program has begun, unless it is none that could be a rank."""
    try:
        words = getattr(sys, "orig_argv", None)
        if words is None:  # before Python 3.10
            with open("/proc/self/cmdline", "rb") as file:
                words = [os.fsdecode(word) for word in file.read().split(b"\0")[:-1]]
        program = "" if sys.flags.interactive else _program(words)
        if program:
            _Begun(folder, program).listen()
    except Exception:  # noqa: BLE001, S110 - then its end is not known, as without us
        pass


if __name__ == "sitecustomize":
    _end_with_torchrun()
    if os.environ.get("TRAINWARDEN_HOOK_DIR"):
        come_in()
    _run_next()
    if os.environ.get("TRAINWARDEN_HOOK_DIR"):
        _note_begin(os.environ["TRAINWARDEN_HOOK_DIR"])
