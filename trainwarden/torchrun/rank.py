"""Becomes a rank's program, tied to torchrun and to where its output goes; run as a file, never imported.

``python -I -S rank.py exec PARENT COMMAND...`` asks the kernel for SIGKILL should the process `PARENT` end (0: whoever
has started it), and becomes the command. torchrun runs ``rank.py fork SCRIPT...`` in a process that it has forked
(``--start-method=fork --run-path``): torch is imported there already, and the script runs as Python runs its command
line. Ranks write to the FIFO of their local number in the folder ``TRAINWARDEN_OUTPUT``, where one is named. In their
words ``{checkpoints}`` is the folder for checkpoints. Standard library only.
"""

# Each start of a rank pays for what is imported here.
# ruff: noqa: PTH100, PTH118, PTH120
from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with(parent: int) -> None:
    """Have the kernel end this process with `parent`, which is gone already where it is not our parent any more."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def write_to_fifo() -> None:
    """Write where our reader is; where there is none any more, as if none had been named."""
    number = os.environ.get("LOCAL_RANK")
    folder = None if number is None else os.environ.pop("TRAINWARDEN_OUTPUT", None)
    if folder is None or number is None:
        return
    try:
        fifo = os.open(os.path.join(folder, number), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    os.set_blocking(fifo, True)
    for stream in (1, 2):
        os.dup2(fifo, stream)
    os.close(fifo)


def with_folder(words: list[str]) -> list[str]:
    """The words of a rank, with the folder for its checkpoints where they ask for it."""
    folder = os.environ.get("TRAINWARDEN_CHECKPOINTS") if "LOCAL_RANK" in os.environ else None
    return list(words) if folder is None else [word.replace("{checkpoints}", folder) for word in words]


def execute(parent: int, command: list[str]) -> int:
    """Become `command`; returns only if that is impossible, with the code a shell would give."""
    end_with(parent or os.getppid())
    write_to_fifo()
    command = with_folder(command)
    try:
        os.execvp(command[0], command)  # noqa: S606 - the command the person gave, as words, through no shell
    except OSError as error:
        sys.stderr.write(f"trainwarden: {command[0]} cannot be started ({error.strerror})\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


def run(words: list[str]) -> None:
    """Run the script and arguments `words` in this process, which torchrun has forked for them.

    torchrun waits for what the script returns: an end with code 0 has to come back there as well.
    """
    import builtins
    import importlib.machinery
    import multiprocessing
    import types

    end_with(int(os.environ.get("TRAINWARDEN_ENDS_WITH", os.getppid())))
    write_to_fifo()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, write_through=True)  # type: ignore[union-attr]
    multiprocessing.current_process().name = "MainProcess"
    forget_ends()
    renew_chance()
    bring_hook()
    sys.argv, name = with_folder(words), os.path.abspath(words[0])
    sys.path.insert(0, os.path.dirname(os.path.realpath(name)))
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    main.__file__ = name
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", name)
    vars(main).update(__builtins__=builtins, __annotations__={})
    try:
        with open(name, "rb") as file:
            source = file.read()
        exec(compile(source, name, "exec", dont_inherit=True), vars(main))  # noqa: S102 - the person's own program
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    except BaseException as error:  # noqa: BLE001 - as Python itself does
        end_by(error)
    finally:
        finish()


def forget_ends() -> None:
    """Leave out what torchrun does at its own end, but for what Python's modules do at that of any program."""
    import atexit
    import logging
    import multiprocessing.util
    import weakref

    atexit._clear()
    atexit.register(multiprocessing.util._exit_function)  # type: ignore[attr-defined]
    atexit.register(logging.shutdown)
    for known in weakref.finalize._registry.values():  # type: ignore[attr-defined]
        known.atexit = False
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]


def finish() -> None:
    """Do what Python does at its end, as a forked process ends by `os._exit` (Python 3.13 does so too). Safe twice."""
    import atexit
    import threading

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


def renew_chance() -> None:
    """Give this rank chance of its own where a module drew its seed when it was imported."""
    drawn = sys.modules.get("numpy.random")  # Python's own does so itself after a fork, torch draws none
    if drawn is not None:
        drawn.seed()


def bring_hook() -> None:
    """Have the hook come in as it does at a start of Python, which was too early."""
    import importlib.util

    inject = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "inject", "sitecustomize.py")
    spec = importlib.util.spec_from_file_location("_trainwarden_inject", inject)
    if os.environ.get("TRAINWARDEN_HOOK_DIR") and spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.come_in()


def end_by(error: BaseException) -> None:
    """End as Python ends by `error`, without the lines of this file."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    error.__traceback__ = trace
    sys.excepthook(type(error), error, trace)
    if isinstance(error, KeyboardInterrupt):
        finish()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(1)


if __name__ == "__main__":
    if sys.argv[1] == "exec":
        sys.exit(execute(int(sys.argv[2]), sys.argv[3:]))
    run(sys.argv[2:])
