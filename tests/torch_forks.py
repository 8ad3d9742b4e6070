"""Torch processes forked from one that has imported torch, where starting up is not what a test is about.

``import torch``, and what its first optimizer imports after it, take six seconds of a processor: in every rank, and in
torchrun once more. Here they are taken once, and each process is a fork of its own script: by ``TorchForks.start``, or
by the command ``TorchForks.command`` in torchrun's place.

The hook comes in as always, by the call that ends torch's import, which every fork makes for itself. What torchrun
does beyond this (its own store, its table of failures) is for the tests that start it, by itself or as a fork.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.places import ROOT

CLIENT = ROOT / "tests" / "torch_client.py"
STOP_S = 30  # torchrun's own patience with ranks that do not end when asked
PATIENCE_S = 120.0
IMPORTED_S = 600.0  # for the first fork: seconds of a processor, of which a busy machine gives a hundredth


class Forked:
    """One process, in a session of its own, with what `subprocess` has for its own."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._ended = threading.Event()

    def poll(self) -> int | None:
        return self._code

    def send_signal(self, number: int) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):  # its end is not told yet
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout_s: float = PATIENCE_S) -> int:
        if not self._ended.wait(timeout_s):
            raise subprocess.TimeoutExpired(str(self.pid), timeout_s)
        assert self._code is not None
        return self._code

    def end(self, code: int) -> None:
        self._code = code
        self._ended.set()


class TorchForks:
    """The process that has imported torch, and those that were forked from it."""

    def __init__(self) -> None:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("TRAINWARDEN_")}
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.torch_forks"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
            env={**environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        self._forks: dict[int, Forked] = {}
        self._started: list[Forked] = []
        self._news, self._ordering = threading.Condition(), threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._folder = tempfile.TemporaryDirectory(prefix="torch-forks-")
        self._asked = socket.create_server(str(Path(self._folder.name) / "asked"), family=socket.AF_UNIX)
        threading.Thread(target=self._listen, daemon=True).start()

    def start(
        self,
        words: Sequence[str],
        environ: Mapping[str, str],
        *,
        folder: Path,
        log: Path,
        err: Path | None = None,
        ranks: int = 0,
    ) -> Forked:
        """Run a script with its arguments in `folder`; what it writes is added to `log`, its errors there or to `err`.

        Or ``-m``, a module and its arguments, such as torchrun itself.

        With `ranks`, the launcher's process that this module is as a command.
        """
        order = {"words": list(words), "environ": dict(environ), "folder": str(folder), "ranks": ranks}
        order |= {"log": str(log), "err": str(err or log)}
        assert self._server.stdin is not None
        with self._ordering, self._news:
            known = len(self._started)
            self._server.stdin.write(json.dumps(order).encode() + b"\n")
            self._server.stdin.flush()
            assert self._news.wait_for(lambda: len(self._started) > known, IMPORTED_S), self._server.poll()
            return self._started[-1]

    def command(self, ranks: int, *words: str) -> list[str]:
        """What runs a script as so many ranks, for whoever starts jobs by a command; it ends as they do."""
        return [sys.executable, str(CLIENT), str(self._asked.getsockname()), str(ranks), *words]

    def close(self) -> None:
        """Nothing of it is left."""
        self._asked.close()
        self._folder.cleanup()
        for one in self._started:
            if one.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(one.pid, signal.SIGKILL)
        self._server.kill()
        self._server.wait()
        self._reader.join()
        for pipe in (self._server.stdin, self._server.stdout):
            assert pipe is not None
            pipe.close()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                threading.Thread(target=self._answer, args=(self._asked.accept()[0],), daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client, client.makefile("rw") as lines, contextlib.suppress(OSError):
            order = json.loads(lines.readline())
            places = {name: Path(order[name]) for name in ("folder", "log", "err")}
            one = self.start(order["words"], order["environ"], ranks=order["ranks"], **places)
            print(json.dumps({"pid": one.pid}), file=lines, flush=True)
            while one.poll() is None:
                if select.select([client], [], [], 0.05)[0]:  # it says nothing more, so it has gone
                    os.kill(one.pid, signal.SIGTERM)
                    return
            print(json.dumps({"code": one.poll()}), file=lines, flush=True)

    def _read(self) -> None:
        assert self._server.stdout is not None
        for line in self._server.stdout:
            told = json.loads(line)
            with self._news:
                if "ended" in told:
                    self._forks[told["ended"]].end(told["code"])
                else:
                    self._forks[told["pid"]] = Forked(told["pid"])
                    self._started.append(self._forks[told["pid"]])
                self._news.notify_all()


# -- the process that forks


def _import() -> None:
    """Torch, and what optimizers and replicas import when they are first used; not the hook."""
    hidden = {name: os.environ.pop(name) for name in [*os.environ] if name.startswith("TRAINWARDEN_")}
    asked = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    import torch._dynamo
    import torch.distributed  # noqa: F401

    # A fork that ends takes every module down, and would first copy each page of them for the collector's marks.
    gc.collect()
    gc.freeze()
    del os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]
    os.environ.update(hidden if asked is None else {**hidden, "TORCH_DEVICE_BACKEND_AUTOLOAD": asked})


def _fork(words: Sequence[str], environ: Mapping[str, str]) -> int:
    """Its pid; 0 in the fork, which has a session, environment, arguments and path of its own."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        for number in (signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        signal.alarm(0)
        os.environ.clear()
        os.environ.update(environ)
        sys.argv = list(words)
        paths = [one for one in environ.get("PYTHONPATH", "").split(os.pathsep) if one]
        rest = [one for one in sys.path[1:] if one not in paths]
        place = "" if words[0] == "-m" else str(Path(words[0]).absolute().parent)
        sys.path[:] = [place, *paths, *rest]
    return pid


def _run(script: str) -> None:
    """What the interpreter does with a script, and torch at the end of its import."""
    import torch

    if torch._is_device_backend_autoload_enabled():
        torch._import_device_backends()
    if script == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    vars(main).update(__file__=script, __builtins__=__builtins__)
    sys.modules["__main__"] = main
    exec(compile(Path(script).read_bytes(), script, "exec"), vars(main))


def _serve() -> str | None:
    """Fork at each order on standard input, and tell of ends; the script in a fork, None when orders end."""
    told, unread = os.dup(1), b""
    os.dup2(2, 1)
    ready = selectors.DefaultSelector()
    ready.register(0, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.data is not None:
                ready.unregister(key.fd)
                os.close(key.fd)
                _, status = os.waitpid(key.data, 0)
                _tell(told, ended=key.data, code=os.waitstatus_to_exitcode(status))
                continue
            unread += (more := os.read(0, 65536))
            if not more:
                return None
            while b"\n" in unread:
                line, _, unread = unread.partition(b"\n")
                order = json.loads(line)
                pid = _fork(order["words"], order["environ"])
                if pid == 0:
                    ready.close()
                    os.close(told)
                    _settle(order)
                    return _launch(order["ranks"], order["words"]) if order["ranks"] else str(order["words"][0])
                _tell(told, pid=pid)
                ready.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)


def _tell(told: int, **news: int) -> None:
    os.write(told, json.dumps(news).encode() + b"\n")


def _settle(order: Mapping[str, str]) -> None:
    """Folder, input and outputs of a fork."""
    os.chdir(order["folder"])
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "log"), (2, "err")):
        os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)


def _launch(ranks: int, words: Sequence[str]) -> str:
    """Ranks as torchrun has them: whoever fails ends the others; the script in a rank."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    running: set[int] = set()
    shared = {"WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    for rank in range(ranks):
        own = {name: str(value) for name, value in {"RANK": rank, "LOCAL_RANK": rank, **shared}.items()}
        pid = _fork(words, {**os.environ, **own})
        if pid == 0:
            return words[0]
        running.add(pid)

    def end(number: int, _: object) -> None:
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if number == signal.SIGTERM else signal.SIGKILL)
        if number == signal.SIGTERM:
            signal.alarm(STOP_S)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGALRM, end)
    codes = []
    while running:
        pid, status = os.wait()
        running.discard(pid)
        codes.append(os.waitstatus_to_exitcode(status))
        if codes[-1] != 0 and not any(codes[:-1]):
            end(signal.SIGTERM, None)
    sys.exit(int(any(codes)))


if __name__ == "__main__":
    _import()
    script = _serve()
    if script is not None:
        _run(script)
