"""The ranks of this node: started, watched by their pidfds, asked to stop, killed when they do not follow, reaped."""

from __future__ import annotations

import logging
import selectors
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from trainwarden import rundir
from trainwarden.actions.launchers.local import ranks as rank_processes
from trainwarden.actions.launchers.local.orphans import Orphans
from trainwarden.actions.launchers.local.port import free_port, size_of, stolen
from trainwarden.actions.launchers.local.ranks import LocalJob, RankProcess, RanksOutput
from trainwarden.actions.launchers.local.run_events import EventFile
from trainwarden.clock import Clock

log = logging.getLogger("trainwarden.supervisor")

SWEEP_S = 10.0  # between two looks at what ranks that live have let go of
CANNOT_START_CODE = 126  # what a shell shows for a command that cannot be run


class Failure(msgspec.Struct, frozen=True):
    """The first rank that failed since the last start: its exit code as a shell shows it, and when (monotonic)."""

    code: int
    at_s: float


class _Ended(msgspec.Struct, frozen=True):
    """A process that is gone, and until when (monotonic) its end is not told for the sake of its last words."""

    process: RankProcess
    code: int
    at_s: float  # wall
    since_s: float
    until_s: float


class _Start(msgspec.Struct, frozen=True):
    """A start of all ranks, where each one's log began with it, and how often another port may still be tried."""

    ranks: tuple[int, ...]
    attempt: int
    resume_from: Path | None
    log_bytes: tuple[int, ...]
    tries: int


class NodeRunner:
    """Knows processes, not operations: what is to be done and why is the coordinator's.

    Parameters
    ----------
    environ : mapping
        Environment to build the ranks' on.
    selector : selectors.BaseSelector
        Each rank's pidfd is registered with what to call when it ends as `data`.
    stop_grace_s : float
        Seconds between SIGTERM and SIGKILL.
    port_tries : int
        How often a start is tried with another port, where somebody else has taken the one that was chosen.
    adopt : bool
        Whether this process has no other children than ranks, so that what they leave can be told by that.

    Attributes
    ----------
    beside : int or None
        A child of this process that is no rank, and left alone.
    """

    def __init__(
        self,
        place: LocalJob,
        environ: Mapping[str, str],
        selector: selectors.BaseSelector,
        clock: Clock,
        *,
        stop_grace_s: float,
        port_tries: int = 0,
        adopt: bool = False,
    ) -> None:
        self._place, self._environ, self._selector, self._clock = place, environ, selector, clock
        self._stop_grace_s, self._port_tries = stop_grace_s, port_tries
        self._events = EventFile(place)
        self._output = RanksOutput(place)
        self._running: dict[int, RankProcess] = {}
        self._port = 0
        self._start: _Start | None = None
        self._again: _Start | None = None  # comes once all ranks are gone: their port was taken
        self._first_steps: dict[int, int | None] = {}
        self._kill_at_s: float | None = None
        self._ended: deque[_Ended] = deque()  # in the order of their ends
        self._orphans = Orphans(adopt=adopt)
        self.beside: int | None = None
        self._swept_s = 0.0
        self._failures: dict[int, Failure] = {}  # by rank, the first one first

    @property
    def running(self) -> Collection[int]:
        """Ranks whose process lives, whose end has not been told yet, or that start again with another port."""
        return self._running.keys() | (self._again.ranks if self._again is not None else ())

    def start(self, ranks: Sequence[int], attempt: int, resume_from: Path | None = None) -> None:
        """Start `ranks` anew, told to go on from `resume_from`; failures of theirs are forgotten once they all run.

        Raises
        ------
        OSError
            If there is no memory or process slot for one; that counts as its failure.
        """
        self._start = None
        if len(ranks) == self._place.ranks:
            self._start = _Start(tuple(ranks), attempt, resume_from, self._log_bytes(), self._port_tries)
        self._launch(ranks, attempt, resume_from)

    def _log_bytes(self) -> tuple[int, ...]:
        return tuple(size_of(rundir.rank_log(self._place.run_dir, rank)) for rank in range(self._place.ranks))

    def _launch(self, ranks: Sequence[int], attempt: int, resume_from: Path | None) -> None:
        for rank in ranks:
            self._failures.pop(rank, None)
            self._failures[rank] = Failure(CANNOT_START_CODE, self._clock.monotonic_s())
        if len(ranks) == self._place.ranks or not self._port:
            self._port = free_port()
        for rank in ranks:
            environ = rank_processes.environment(
                self._place, rank, attempt, self._port, self._environ, resume_from=resume_from
            )
            self._first_steps.pop(rank, None)
            process = RankProcess(self._place, rank, environ, self._output)
            self._running[rank] = process
            self._selector.register(process.pidfd, selectors.EVENT_READ, lambda process=process: self._reap(process))
        for rank in ranks:
            del self._failures[rank]
        log.info("ranks started", extra={"fields": {"ranks": len(ranks), "attempt": attempt}})

    def ask_to_stop(self, ranks: Sequence[int]) -> None:
        """SIGTERM to `ranks`; those that still run after the grace are killed by `advance`."""
        if self._again is not None:  # somebody else decides now what becomes of them
            for rank in set(self._again.ranks) - set(ranks):
                self._failures.setdefault(rank, Failure(CANNOT_START_CODE, self._clock.monotonic_s()))
            self._again = None
        self._ask_to_stop(ranks)

    def _ask_to_stop(self, ranks: Collection[int]) -> None:
        for rank in ranks:
            if rank in self._running:
                self._running[rank].ask_to_stop()
        self._kill_at_s = self._clock.monotonic_s() + self._stop_grace_s

    def pass_on(self, numbers: Sequence[int]) -> None:
        """Give the signals `numbers` to all ranks that run: whoever sent them to us meant those that train."""
        for number in numbers:
            log.info("signal is passed on", extra={"fields": {"signal": number, "ranks": len(self._running)}})
            for process in self._running.values():
                process.pass_on(number)

    @property
    def failure(self) -> Failure | None:
        """The first failure of a rank that has not been started anew since."""
        return next(iter(self._failures.values()), None)

    @property
    def failed(self) -> Collection[int]:
        """Ranks that have failed and have not been started anew since."""
        return self._failures.keys()

    @property
    def settling(self) -> bool:
        """Whether an end waits to be told: `advance` should be called again very soon."""
        return bool(self._ended)

    def advance(self) -> None:
        """Tell ends, kill what was asked to stop and did not, and say what is not kept of the ranks' output."""
        self._tell_ends()
        for sentence in self._output.news():
            log.warning("output is not all kept", extra={"fields": {"reason": sentence}})
        if self._kill_at_s is not None and self._clock.monotonic_s() >= self._kill_at_s:
            self._kill_at_s = None
            for process in self._running.values():
                if process.asked_to_stop:
                    process.kill()
        if self._again is not None and not self._running:
            self._start, self._again = msgspec.structs.replace(self._again, log_bytes=self._log_bytes()), None
            try:
                self._launch(self._start.ranks, self._start.attempt, self._start.resume_from)
            except OSError as error:  # that counts as a failure of the ranks
                log.error("ranks cannot be started", extra={"fields": {"error": str(error)}})

    def kill_all(self) -> None:
        """End everything at once and wait for it."""
        gone = {ended.process for ended in self._ended}
        alive = [process for process in self._running.values() if process not in gone]
        for process in alive:
            process.kill()
        for process in alive:
            self._reap(process)
        until_s = time.monotonic() + rank_processes.LAST_OUTPUT_S
        while self._orphans.sweep({}) and time.monotonic() < until_s:
            time.sleep(0.01)
        self._output.settle([ended.process.drain for ended in self._ended])
        self._tell_ends(at_once=True)
        self._output.close()

    def step(self) -> int | None:
        """The furthest step that a hook in one of the ranks tells; None if none does."""
        headers = (process.header() for process in self._running.values())
        return max((header.step for header in headers if header), default=None)

    def stands(self) -> Mapping[int, int | None]:
        """Which pause each rank that runs stands still for, 0 for none; None where its loop takes part in none."""
        headers = {rank: process.header() for rank, process in self._running.items()}
        return {rank: None if header is None else header.stands for rank, header in headers.items()}

    def first_steps(self) -> Mapping[int, int | None]:
        """The first step of each rank that has finished one since its start; None where the script numbers none."""
        for process in self._running.values():
            self._note_first_step(process)
        return self._first_steps

    def say(self, sentence: str) -> None:
        """Show `sentence` to whoever sees the ranks' output."""
        self._output.say(sentence)

    def _note_first_step(self, process: RankProcess) -> None:
        if self._first_steps.get(process.rank) is None and (header := process.header()) and header.recorded:
            self._first_steps[process.rank] = header.first_step

    def _reap(self, process: RankProcess) -> None:
        self._note_first_step(process)
        self._selector.unregister(process.pidfd)
        code, now_s = process.reap(), self._clock.monotonic_s()
        self._ended.append(_Ended(process, code, self._clock.now_s(), now_s, now_s + rank_processes.LAST_OUTPUT_S))

    def _tell_ends(self, *, at_once: bool = False) -> None:
        """Tell of ranks whose last words are kept, or were waited for long enough: who reads of an end finds them.

        Nothing waits here: a child that holds the pipe or a disk that is stuck costs one grace, not one a rank.
        """
        now_s = self._clock.monotonic_s()
        left = self._sweep() if self._ended or now_s - self._swept_s >= SWEEP_S else 0
        while self._ended:
            ended = self._ended[0]
            settled = left == 0 and self._output.settled(ended.process.drain)
            if not (at_once or now_s >= ended.until_s or settled):
                return
            self._ended.popleft()
            del self._running[ended.process.rank]
            self._judge(ended, final=at_once)
            self._events.exited(ended.process, ended.code, ended.at_s)

    def _judge(self, ended: _Ended, *, final: bool) -> None:
        """Take note of a failure, unless it is our own choice of a port that failed."""
        process = ended.process
        if ended.code == 0 or process.asked_to_stop:
            return
        if self._again is None and not final and self._lost_its_port(process):
            assert self._start is not None
            sentence = f"port {self._port} was taken by somebody else before rank {process.rank} had it"
            log.warning("another port is tried", extra={"fields": {"reason": sentence}})
            self.say(f"{sentence}: all ranks start again with another one")
            self._again = msgspec.structs.replace(self._start, tries=self._start.tries - 1)
            self._failures.clear()  # of ranks that did not find each other, all started at once
            self._ask_to_stop(self._running.keys())
        if self._again is not None:
            process.asked_to_stop = True
            return
        self._failures.setdefault(process.rank, Failure(rank_processes.exit_code(ended.code), ended.since_s))
        log.warning("rank failed", extra={"fields": {"rank": process.rank, "code": ended.code}})

    def _lost_its_port(self, process: RankProcess) -> bool:
        start = self._start
        if start is None or start.tries < 1 or self._first_steps:
            return False
        log_file = rundir.rank_log(self._place.run_dir, process.rank)
        return stolen(log_file, start.log_bytes[process.rank], self._port)

    def _sweep(self) -> int:
        self._swept_s = self._clock.monotonic_s()
        gone = {ended.process.rank for ended in self._ended}
        alive = {rank: one.pid for rank, one in self._running.items() if rank not in gone}
        return self._orphans.sweep(alive, {self.beside})
