"""What this node knows of the job's parallel layout, said again and again under the same ids.

The command line of a training process, and the files that it names, as that process sees them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from trainwarden import hook, rundir
from trainwarden.clock import Clock
from trainwarden.collectors.ranks import ProcessFinder, hook_files
from trainwarden.parallelism.arguments import claim_of_command
from trainwarden.parallelism.claim import Claim, Size, event_fields
from trainwarden.parallelism.groups import by_kind
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import EventRecord, Record
from trainwarden.settings import Config, PositiveSeconds

_MOST_BYTES: Final = 1 << 20  # of a command line, or a file of settings


def command_of(proc: str, pid: int) -> list[str]:
    """The words of process `pid`; empty if they are not ours to read."""
    text = contents_of(f"{proc}/{pid}/cmdline")
    return [word.decode(errors="replace") for word in (text or b"").split(b"\0")[:-1]]


def file_of(proc: str, pid: int, path: str) -> bytes | None:
    """What process `pid` finds under `path`, by its own root and working folder; None if it cannot be read from here.

    Whoever may write a link within that root can lead out of it only to what the agent may read, and of what is read
    only sizes go on.
    """
    try:
        place = os.path.join(os.readlink(f"{proc}/{pid}/cwd"), path)  # noqa: PTH115, PTH118 - kernel's names
    except OSError:
        return None
    return contents_of(f"{proc}/{pid}/root{place}")


def contents_of(path: str) -> bytes | None:
    """The first of what lies at `path`; None if it cannot be read."""
    try:
        # Whatever lies there, a pipe too: opening it must not wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return None
    try:
        with open(descriptor, "rb") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return None


_SUFFIX: Final = ".groups"
_MOST_CHARS: Final = 300


class ParallelLayoutCollector:
    """Tells the sizes of a job's parallel groups: as set, as its command asks for, as its processes have made them.

    One rank of the node speaks for settings and command line, every rank for its process groups. Silent for jobs of
    one rank, and where nothing says that there is more than data parallelism.

    Parameters
    ----------
    config : ParallelLayoutCollector.Config
    scope : Scope
    clock : Clock
    """

    class Config(Config, frozen=True, kw_only=True):
        """`tp`, `cp`, `pp`, `ep`: the job's own sizes, believed before all else; as soon as one is named, the others
        but `ep` are 1 and data parallelism is what is left. `interval_s`: time between looks; `again_s`: all is said
        again so long after, for whoever has come since; `proc`: the kernel's process folder.
        """

        tp: Size | None = None
        cp: Size | None = None
        pp: Size | None = None
        ep: Size | None = None
        interval_s: Annotated[float, msgspec.Meta(ge=0.05, le=60.0)] = 2.0
        again_s: PositiveSeconds = 1800.0
        proc: str = "/proc"

    def __init__(self, config: Config, scope: Scope, clock: Clock) -> None:
        self._config = config
        self._scope = scope
        self._clock = clock
        self._run_dir = Path(scope.run_dir)
        self._lookout = ProcessFinder(config.proc)
        self._said_s: dict[str, float] = {}  # id -> when it was said last, monotonic
        self._read: dict[str, tuple[Claim, ...]] = {}  # who -> what is known of it: read once

    @property
    def interval_s(self) -> float:
        return self._config.interval_s

    def supported(self) -> str | None:
        folder = self._run_dir / rundir.HOOK
        return None if folder.is_dir() else f"no rank can be known here: there is no folder {folder}"

    def collect(self, now_s: float) -> Iterable[Record]:
        trainers = self._trainers()
        grouped = {entry.name.removesuffix(_SUFFIX): entry.path for entry in hook_files(self._run_dir, _SUFFIX)}
        known, self._read = self._read, {}
        speaker = min(trainers.values(), key=lambda one: one[0].rank, default=None)
        for name, (header, pid) in trainers.items():
            claims: tuple[Claim, ...] = ()
            if header is (speaker and speaker[0]):
                claims = self._once(known, f"command/{name}/{pid}", partial(self._of_command, header, pid))
            if name in grouped:
                claims += self._once(known, f"groups/{name}", partial(_of_groups, header, grouped[name]))
            for claim in claims:
                yield from self._say(header, claim, now_s)

    def wake_fds(self) -> Sequence[int]:
        return ()

    def position(self) -> JsonObject:
        return {}

    def restore(self, position: JsonObject) -> None:
        """Nothing: whatever is said twice has the same id."""

    def close(self) -> None:
        """Nothing is held."""

    def _trainers(self) -> dict[str, tuple[hook.Header, int]]:
        """Processes of this node that make steps and live, by the name of their files, with their pids here."""
        found: dict[str, tuple[hook.Header, int]] = {}
        for entry in hook_files(self._run_dir):
            header = hook.read_header(entry.path)
            if header is None or header.recorded == 0 or header.world_size < 2:
                continue
            sight = self._lookout.look(header)
            if not sight.gone:
                found[entry.name.removesuffix(".hook")] = (header, sight.pid or 0)
        return found

    def _once(self, known: dict[str, tuple[Claim, ...]], who: str, read: Any) -> tuple[Claim, ...]:
        found: tuple[Claim, ...] = known[who] if who in known else read()
        self._read[who] = found
        return found

    def _of_command(self, header: hook.Header, pid: int) -> tuple[Claim, ...]:
        """What the settings say, and the command line of a process that can be seen from here."""
        config, claims = self._config, []
        sizes = {kind: getattr(config, kind) for kind in ("tp", "cp", "pp", "ep")}
        if any(size is not None for size in sizes.values()):
            sizes = {kind: 1 if size is None and kind != "ep" else size for kind, size in sizes.items()}
            claim = Claim(source="settings", world_size=header.world_size, started_s=header.start_s)
            claims.append(msgspec.structs.replace(claim, **sizes))
        if pid:
            words, read = command_of(config.proc, pid), partial(file_of, config.proc, pid)
            asked = claim_of_command(words, header.world_size, header.start_s, read)
            claims += [asked] if asked is not None and asked.says else []
        return tuple(claims)

    def _say(self, header: hook.Header, claim: Claim, now_s: float) -> Iterable[EventRecord]:
        name = f"parallel_layout/{self._scope.node}/{header.incarnation}/{claim.source}"
        monotonic_s = self._clock.monotonic_s()
        if monotonic_s - self._said_s.get(name, float("-inf")) < self._config.again_s:
            return
        self._said_s[name] = monotonic_s
        yield EventRecord(
            id=name,
            job=self._scope.job,
            node=self._scope.node,
            time_s=now_s,
            kind="parallel_layout",
            rank=header.rank,
            message=f"rank {header.rank} on its parallel groups, by {claim.said_by}",
            fields=event_fields(claim),
        )


def _of_groups(header: hook.Header, path: str) -> tuple[Claim, ...]:
    """What the hook has written down of the rank's process groups."""
    try:
        said = json.loads(contents_of(path) or b"{}")
    except (ValueError, RecursionError):
        said = {}
    said = said if isinstance(said, dict) else {}
    named = said.get("groups")
    text = by_kind((str(one), str(ranks)) for one, ranks in named.items()) if isinstance(named, dict) else ""
    claim = Claim(source="groups", world_size=header.world_size, started_s=header.start_s, groups=text)
    claim = msgspec.structs.replace(claim, uneven=str(said.get("uneven", ""))[:_MOST_CHARS])
    return (claim,) if claim.says else ()
