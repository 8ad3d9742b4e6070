"""The collective calls of this node's ranks, from the files of NCCL's profiler plug-in."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec

from trainwarden import hook, rundir
from trainwarden.clock import Clock
from trainwarden.collectors.nccl_profiler.build import LIBRARY
from trainwarden.collectors.nccl_profiler.dense import Requests
from trainwarden.collectors.nccl_profiler.records import CallRecords
from trainwarden.collectors.nccl_profiler.source import CallsFile, Who, who_of
from trainwarden.collectors.ranks import ProcessFinder, hook_files, rank_processes
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import Record, SamplingRecord
from trainwarden.settings import Config, PositiveSeconds

log = logging.getLogger("trainwarden.agent")

_SUFFIX: Final = ".nccl"
_GARBAGE_AFTER_LOOKS: Final = 10  # a file that is being made is whole within milliseconds
_ALONE_S: Final = 3600.0  # who calls NCCL past torch never has a hook's file, and /dev/shm is small
_VARIABLE: Final = b"NCCL_PROFILER_PLUGIN="
_INSPECTOR: Final = (b"libnccl-profiler-inspector.so", b"=inspector")  # NVIDIA's, which `nccl_inspector` reads
_MAX_ENVIRON_BYTES: Final = 1 << 20


class NcclCallsCollector:
    """Sends the stamped calls of sampled steps, and how far each communicator is where a rank's calls stand still.

    Silent where no rank uses NCCL with the plug-in. A rank is told of under the name that its hook has.

    Parameters
    ----------
    config : NcclCallsCollector.Config
    scope : Scope
    clock : Clock
    """

    class Config(Config, frozen=True, kw_only=True):
        """`interval_s`: time between looks; `still_s`: counts go out when a rank's calls and steps have stood still for
        so long; `again_s`: and again so long after, while they stand; `proc`: the kernel's process folder;
        `dense_steps`: as many steps in a row are sampled if a detector asks, 0 for none; `dense_every_s`: and that no
        more often.
        """

        interval_s: Annotated[float, msgspec.Meta(ge=0.02, le=60.0)] = 1.0
        still_s: PositiveSeconds = 2.0
        again_s: PositiveSeconds = 10.0
        proc: str = "/proc"
        dense_steps: Annotated[int, msgspec.Meta(ge=0, le=256)] = 32
        dense_every_s: PositiveSeconds = 300.0

    def __init__(self, config: Config, scope: Scope, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._run_dir = Path(scope.run_dir)
        self._lookout = ProcessFinder(config.proc)
        self._records = CallRecords(scope, _boot(Path(config.proc)))
        self._files: dict[str, CallsFile] = {}
        self._ranks: dict[str, hook.Header] = {}  # whose file it is, once its hook has told
        self._looks: dict[str, int] = {}  # of files that are none of ours, up to now
        self._garbage: dict[str, int] = {}  # file name -> size when it was given up
        self._resume: dict[str, JsonObject] = {}
        self.requests = Requests(config.dense_steps, config.dense_every_s)
        """How often samples were asked for, and what became of it."""
        self._asked: set[str] = set()  # hook files whose process has been asked for its plug-in
        self.junk = 0
        """Files that were not of our making."""

    @property
    def interval_s(self) -> float:
        return self._config.interval_s

    def supported(self) -> str | None:
        folder = self._run_dir / rundir.HOOK
        return None if folder.is_dir() else f"no rank can be known here: there is no folder {folder}"

    @property
    def listens(self) -> bool:
        """Whether a request would find a rank here whose calls the device stamps."""
        return self._config.dense_steps > 0 and any(file.sampled for file in list(self._files.values()))

    def ask(self, request: SamplingRecord) -> None:
        """A detector wants denser samples; seen to at the next look. From any thread."""
        self.requests.put(request)

    def collect(self, now_s: float) -> Iterable[Record]:
        self.requests.see_to(self._files.values(), self._clock.monotonic_s())
        hooks = self._hooks()
        self._scan()
        for name, file in list(self._files.items()):
            if not file.look():
                self._give_up_later(name)
                continue
            rank = hooks.get(file.who) or self._ranks.get(name)
            monotonic_s = self._clock.monotonic_s()
            if rank is None:  # its hook has not begun yet, and only that knows which rank it is
                file.alone_since_s = monotonic_s if file.alone_since_s is None else file.alone_since_s
                if monotonic_s - file.alone_since_s > _ALONE_S:
                    self._remove(name)
                continue
            self._ranks[name] = rank
            if file.who not in hooks:  # its hook's file is forgotten
                self._remove(name)
                continue
            gone = self._lookout.look(rank).gone
            taken = file.poll(monotonic_s, self._config.still_s, self._config.again_s, gone=gone)
            if taken is not None:
                yield from self._records.of(rank, taken, now_s, monotonic_s)

    def wake_fds(self) -> Sequence[int]:
        return ()

    def position(self) -> JsonObject:
        return {"files": {**self._resume, **{name: file.position() for name, file in self._files.items()}}}

    def restore(self, position: JsonObject) -> None:
        files = position.get("files", {})
        self._resume = dict(files) if isinstance(files, dict) else {}
        self.close()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    # -- whose files

    def _hooks(self) -> dict[Who | None, hook.Header]:
        """Every process that has a hook's file; of new ones, whose plug-in NCCL has been given."""
        found: dict[Who | None, hook.Header] = {}
        for process in rank_processes(self._run_dir):
            header = hook.read_header(process.path)
            if header is not None:
                found[who_of(header)] = header
                if process.path not in self._asked and self._ask(header):
                    self._asked.add(process.path)
        return found

    def _ask(self, header: hook.Header) -> bool:
        """Say it where a rank was started with a plug-in of somebody else's; whether that could be seen.

        A process that has just begun may not be found yet, and while it begins a program the kernel shows no
        environment. Both are asked again at the next look.
        """
        sight = self._lookout.look(header)
        if sight.gone:
            return True
        if sight.pid is None:
            return False
        try:
            with open(f"{self._config.proc}/{sight.pid}/environ", "rb") as file:
                environ = file.read(_MAX_ENVIRON_BYTES)
        except OSError:  # gone meanwhile, or another user's
            return True
        pairs = environ.split(b"\0")
        said = next((pair for pair in pairs if pair.startswith(_VARIABLE)), b"")
        named = said.removeprefix(_VARIABLE)
        if named and not said.endswith((LIBRARY.name.encode(), *_INSPECTOR)):
            fields = {"rank": header.rank, "plugin": named.decode(errors="replace")[:300]}
            log.warning("NCCL has another profiler plug-in: calls of this rank are not told", extra={"fields": fields})
        return bool(environ)

    # -- finding files

    def _scan(self) -> None:
        found: set[str] = set()
        for entry in hook_files(self._run_dir, _SUFFIX):
            found.add(entry.name)
            known = self._files.get(entry.name)
            if known is not None and known.inode == entry.inode():
                continue
            if known is not None:  # its process has run another program, with another file
                self._files.pop(entry.name).close()
            with suppress(OSError):  # it went, or is not ours to read; the next scan sees
                if self._garbage.get(entry.name) != entry.stat(follow_symlinks=False).st_size:
                    file = CallsFile(entry.path)
                    file.restore(self._resume.pop(entry.name, {}))
                    self._files[entry.name] = file
        for name in self._files.keys() - found:
            self._files.pop(name).close()
            self._ranks.pop(name, None)
        self._resume = {name: position for name, position in self._resume.items() if name in found}

    def _give_up_later(self, name: str) -> None:
        self._looks[name] = self._looks.get(name, 0) + 1
        if self._looks[name] < _GARBAGE_AFTER_LOOKS:
            return
        del self._looks[name]
        self.junk += 1
        file = self._files.pop(name)
        file.close()
        with suppress(OSError):
            self._garbage[name] = os.stat(file.path, follow_symlinks=False).st_size  # noqa: PTH116 - a plain string
        log.warning("not a file of NCCL's calls, or of another version: left alone", extra={"fields": {"file": name}})

    def _remove(self, name: str) -> None:
        """Delete what nobody will be told of; a process that still writes there does not notice."""
        file = self._files.pop(name)
        file.close()
        self._ranks.pop(name, None)
        with suppress(OSError):  # another user's
            Path(file.path).unlink(missing_ok=True)


def _boot(proc: Path) -> str:
    """Name of the present boot; empty if `proc` does not say."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:64]
    except (OSError, UnicodeDecodeError):
        return ""
