"""NCCL played to its profiler plug-in without a GPU: a compiled player, asked by lines."""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.places import DATA
from trainwarden.collectors.nccl_profiler import build

SOURCE = DATA / "nccl_profiler" / "player.c"
SEND = 16
_LOADED = 1  # type of a segment of an ELF file that is loaded


def compile_plugin(folder: Path, *flags: str) -> tuple[Path, Path]:
    """Plug-in and player, compiled with `flags` into `folder`.

    Raises
    ------
    build.NoCompilerError
        If there is no C compiler.
    """
    folder.mkdir(parents=True, exist_ok=True)
    plugin = build.build(folder / build.LIBRARY.name, flags)
    player = folder / "player"
    command = [*build.compiler(), "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", *flags, f"-I{build.HERE}", "-rdynamic"]
    command += ["-o", str(player), str(SOURCE), "-ldl", "-pthread"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise AssertionError(f"the player does not compile:\n{done.stderr}")
    return plugin, player


def held_bytes(plugin: Path) -> int:
    """Memory that the library takes once loaded, its tables and code: its loadable segments (ELF, 64 bits)."""
    image = plugin.read_bytes()
    first, each, number = struct.unpack_from("<Q", image, 32)[0], *struct.unpack_from("<2H", image, 54)
    segments = [struct.unpack_from("<2I6Q", image, first + each * place) for place in range(number)]
    return sum(int(segment[6]) for segment in segments if segment[0] == _LOADED)


def environ(folder: Path, **more: str) -> dict[str, str]:
    """The environment of a rank whose hook's folder is `folder`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TRAINWARDEN_", "NCCL_"))}
    return {**clean, "TRAINWARDEN_HOOK_DIR": str(folder), "RANK": "3", **more}


def play(built: tuple[Path, Path], folder: Path, version: int, *what: object, **more: str) -> str:
    """One whole performance; its standard output. It must not have failed, nor said anything on standard error."""
    plugin, player = built
    command = [str(player), str(plugin), str(version), *map(str, what)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=240, env=environ(folder, **more), check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stderr == ""
    return done.stdout


class Player:
    """A process in which a script plays NCCL: each method is one thing that NCCL does."""

    def __init__(self, built: tuple[Path, Path], folder: Path, version: int = 5, **more: str) -> None:
        plugin, player = built
        self.folder = folder
        self.process = subprocess.Popen(
            [str(player), str(plugin), str(version), "script"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ(folder, **more),
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, *words: Any) -> list[int]:
        """One command, and the numbers of its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer.split(), f"the player died at {words}"
        return [int(word) for word in answer.split()]

    def init(self, comm: int, identity: int = 0xABC, name: str = "dp", ranks: int = 8) -> None:
        said = self.ask("init", comm, f"{identity:x}", name, 2, ranks, 1)
        assert said[0] == 0  # always success

    def coll(self, comm: int = 0, seq: int = 0, count: int = 256, channels: int = 1, func: str = "AllReduce") -> int:
        return self.ask("coll", comm, func, seq, count, "ncclFloat32", channels)[0]

    def kernel(self, call: int, start: int, stop: int, comm: int = 0, channel: int = 0) -> None:
        (handle,) = self.ask("begin", comm, call, channel, start)
        if handle:
            self.ask("stop", handle, stop)

    def now(self) -> int:
        return self.ask("now")[0]

    @property
    def path(self) -> Path:
        (found,) = self.folder.glob(f"rank-*-{self.process.pid}*.nccl")
        return found
