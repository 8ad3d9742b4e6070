"""Finds the training processes of this node: which process is which rank.

A hook file names a pid as its process sees itself, in a container a number of that container's own. So no collector
takes a pid from a hook file: it asks `ProcessFinder`, which answers with the pid that the process has here, once
namespace, pid and start agree; with ``X`` for one that is gone; and with an empty state for one not visible here.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Protocol

import msgspec

from trainwarden import hook, rundir

_RANK_FILE: Final = re.compile(r"^rank-\d{1,6}-\d{1,10}(?:-\d{1,20})?(\.[a-z]{1,8})$")

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_START_SLACK_S: Final = 2.0  # the kernel's boot time, by which the hook reckons, is whole seconds
_FRESH_S: Final = 1.0  # a list of all processes may be used so long
_AGAIN_S: Final = 30.0  # between two searches for a process that cannot be seen
_ROOT: Final = 0
_OTHERS_WRITE: Final = 0o002


class Identity(Protocol):
    """What a process says of itself by which it is found again; a hook's header is one."""

    @property
    def pid(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def incarnation(self) -> str: ...
    @property
    def phase(self) -> str: ...
    @property
    def start_ticks(self) -> int | None: ...
    @property
    def pid_namespace(self) -> int | None: ...
    @property
    def start_monotonic_s(self) -> float: ...


class RankProcess(msgspec.Struct, frozen=True):
    """One training process that has, or had, a hook file; `pid` is what it calls itself."""

    rank: int
    pid: int
    path: str


class ProcessStatus(msgspec.Struct, frozen=True):
    """What the kernel says of a process now.

    `state` is its letter, X if it is gone, empty if it cannot be seen from here; `pid` its number here; `fields` are
    those of ``/proc/PID/stat`` from the state on.
    """

    state: str
    pid: int | None = None
    fields: tuple[bytes, ...] = ()

    @property
    def gone(self) -> bool:
        """It has ended, reaped or not."""
        return self.state in ("X", "Z")


GONE: Final = ProcessStatus("X")
UNSEEN: Final = ProcessStatus("")


def hook_files(run_dir: Path, suffix: str = ".hook") -> Iterator[os.DirEntry[str]]:
    """The hook files of `run_dir` that may be believed; or what else ranks keep beside them, by its `suffix`.

    Whoever the owner of the run folder lets write there is trusted. Where anybody may write, or the folder of the hook
    is another user's than the run folder, only files of that owner, of root and of the agent's own user are.
    """
    folder = run_dir / rundir.HOOK
    try:
        here, run = folder.stat(), run_dir.stat()
        with os.scandir(folder) as entries:
            trusted = {_ROOT, os.geteuid(), run.st_uid}
            open_to_all = here.st_mode & _OTHERS_WRITE or here.st_uid not in trusted
            for entry in entries:
                named = _RANK_FILE.match(entry.name)
                if named and named[1] == suffix and not (open_to_all and _owner(entry) not in trusted):
                    yield entry
    except (FileNotFoundError, NotADirectoryError):
        return


def _owner(entry: os.DirEntry[str]) -> int | None:
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except OSError:
        return None


def rank_processes(run_dir: Path) -> list[RankProcess]:
    """Every process that has a hook file in `run_dir`, dead ones too, by rank.

    Examples
    --------
    >>> import tempfile
    >>> run = Path(tempfile.mkdtemp())
    >>> (run / "hook").mkdir()
    >>> (run / "hook" / "rank-3-4711.hook").touch()
    >>> [(process.rank, process.pid) for process in rank_processes(run)]
    [(3, 4711)]
    """
    found = []
    for entry in hook_files(run_dir):
        rank, pid = entry.name.removesuffix(".hook").split("-")[1:3]
        found.append(RankProcess(int(rank), int(pid), entry.path))
    return sorted(found, key=lambda process: (process.rank, process.pid, process.path))


class ProcessFinder:
    """The processes of hook files, as `proc` shows them.

    Parameters
    ----------
    proc : str
        The kernel's process folder; one that is made up, without ``self``, has the very pids of the hook files.
    monotonic : callable
        Seconds that never step.
    """

    def __init__(self, proc: str = "/proc", monotonic: Callable[[], float] = time.monotonic) -> None:
        self._proc = proc
        self._monotonic = monotonic
        self._namespace = _namespace(proc)
        self._here: dict[str, int] = {}  # who -> pid here, of every process that has been seen
        self._again_s: dict[str, float] = {}  # who -> when to search for it again
        self._begun: dict[int, list[int]] = {}  # start in ticks -> pids here
        self._listed_s = float("-inf")

    def look(self, header: Identity) -> ProcessStatus:
        """The process that wrote `header`."""
        who = f"{header.pid_namespace}/{header.rank}/{header.incarnation}"
        pid = self._here.get(who)
        if pid is None:
            pid = self._find(who, header)
            if pid is None:
                # Its own word is all there is.
                return GONE if header.phase == "exit" else UNSEEN
        sight = self._sight(pid, header)
        if sight.state:
            self._here[who] = pid
        return sight

    def pidfd(self, header: Identity) -> int | None:
        """A descriptor of the process that wrote `header`; None if it is gone or cannot be seen."""
        before = self.look(header)
        if before.gone or before.pid is None or self._namespace == 0:
            return None
        try:
            descriptor = os.pidfd_open(before.pid)
        except OSError:
            return None
        # The same one before and after has had the pid all the time.
        if self.look(header).pid == before.pid:
            return descriptor
        os.close(descriptor)
        return None

    def queued_s(self, pid: int) -> float:
        """Seconds that the main thread of `pid` has waited for a processor; 0 where the kernel keeps no such books."""
        try:
            return int(_read(f"{self._proc}/{pid}/schedstat").split()[1]) / 1e9
        except (OSError, ValueError, IndexError):
            return 0.0

    def _find(self, who: str, header: Identity) -> int | None:
        known = header.pid_namespace is not None and header.start_ticks is not None
        if self._namespace is None or not known or header.pid_namespace == self._namespace:
            return header.pid
        now_s = self._monotonic()
        if now_s < self._again_s.get(who, now_s):
            return None
        # One that has just begun may be younger than the list.
        young = now_s - header.start_monotonic_s < _AGAIN_S
        self._again_s[who] = now_s + (_FRESH_S if young else _AGAIN_S)
        if now_s - self._listed_s >= _FRESH_S:
            self._list(now_s)
        found = [pid for pid in self._begun.get(header.start_ticks or 0, ()) if self._is(pid, header)]
        return found[0] if len(found) == 1 else None

    def _list(self, now_s: float) -> None:
        """Every process here by its start: one look at all of them serves all ranks."""
        self._begun, self._listed_s = {}, now_s
        for name in os.listdir(self._proc):
            fields = stat_fields(f"{self._proc}/{name}/stat") if name.isdigit() else ()
            if fields:
                self._begun.setdefault(int(fields[19]), []).append(int(name))

    def _is(self, pid: int, header: Identity) -> bool:
        """Whether process `pid` has the header's pid in the header's namespace."""
        try:
            with open(f"{self._proc}/{pid}/status", "rb") as file:
                numbers = next((line.split()[1:] for line in file if line.startswith(b"NSpid:")), [])
        except OSError:
            return False
        if not numbers or int(numbers[-1]) != header.pid:
            return False
        try:
            return os.stat(f"{self._proc}/{pid}/ns/pid").st_ino == header.pid_namespace  # noqa: PTH116 - a kernel's name
        except OSError:
            return len(numbers) > 1  # another user's: which namespace it is, is not for us to know

    def _sight(self, pid: int, header: Identity) -> ProcessStatus:
        try:
            fields = _read_fields(f"{self._proc}/{pid}/stat")
        except (FileNotFoundError, ProcessLookupError):
            return UNSEEN if self._hidden(pid) else GONE
        except OSError:
            return UNSEEN
        if not fields or not self._same(fields, header):
            return GONE  # the pid belongs to a younger process by now
        return ProcessStatus(fields[0].decode(errors="replace"), pid, fields)

    def _same(self, fields: tuple[bytes, ...], header: Identity) -> bool:
        if self._namespace is not None and header.start_ticks is not None:
            return int(fields[19]) == header.start_ticks
        return not _is_another(int(fields[19]), header)

    def _hidden(self, pid: int) -> bool:
        """Whether there is such a process, though `proc` (mounted with hidepid) does not show it."""
        if not self._namespace:
            return False
        try:
            os.kill(pid, 0)  # sends nothing
        except ProcessLookupError:
            return False
        except OSError:
            return True
        return not os.path.exists(f"{self._proc}/{pid}")  # noqa: PTH110 - a kernel's name


class Ranks:
    """Rank by pid here, of the processes that live and can be seen.

    Parameters
    ----------
    run_dir : Path
    proc : str
    """

    def __init__(self, run_dir: Path, proc: str = "/proc") -> None:
        self._run_dir = run_dir
        self._lookout = ProcessFinder(proc)
        self._headers: dict[str, hook.Header] = {}  # who a process is never changes

    def by_pid(self) -> dict[int, int]:
        """Look at all of them."""
        processes = rank_processes(self._run_dir)
        known, self._headers = self._headers, {}
        found = {}
        for process in processes:
            header = known.get(process.path) or hook.read_header(process.path)
            if header is None:
                continue
            self._headers[process.path] = header
            sight = self._lookout.look(header)
            if sight.pid is not None and not sight.gone:
                found[sight.pid] = process.rank
        return found


def stat_fields(path: str) -> tuple[bytes, ...]:
    """The fields of a stat file from the state on; empty if there is none, or it may not be read."""
    try:
        return _read_fields(path)
    except OSError:
        return ()


def _read(path: str) -> bytes:
    """The first of a small file of the kernel's, several times a second for every rank: a file object takes twice."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def _read_fields(path: str) -> tuple[bytes, ...]:
    text = _read(path)
    # The name in brackets may hold anything, brackets too, so count from its end: the state is field 3.
    fields = tuple(text[text.rfind(b")") + 2 :].split())
    return fields if len(fields) >= 20 else ()


def _namespace(proc: str) -> int | None:
    """The namespace of this very process, by its inode; 0 if `proc` is of another one, None if it is made up."""
    try:
        own = os.readlink(f"{proc}/self") == str(os.getpid())  # noqa: PTH115 - a kernel's name
        return os.stat(f"{proc}/self/ns/pid").st_ino if own else 0  # noqa: PTH116 - as above
    except OSError:
        return None


def _is_another(start_ticks: int, header: Identity) -> bool:
    """True if a process that began `start_ticks` after boot is not the one that made the hook file, whose pid it has.

    Told by clocks that nobody sets: a step of the wall clock ends no process. For hooks that do not tell their ticks.
    """
    now_s = time.monotonic()
    begun_s = start_ticks / _TICKS + now_s - time.clock_gettime(time.CLOCK_BOOTTIME)
    before_boot = header.start_monotonic_s > now_s + _START_SLACK_S
    return before_boot or begun_s > header.start_monotonic_s + _START_SLACK_S
