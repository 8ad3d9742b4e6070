"""The ranks of this node: started, watched by their pidfds, asked to stop, killed when they do not follow, reaped."""

from __future__ import annotations

import logging
import selectors
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from actions.launchers.local import ranks as rank_processes
from actions.launchers.local.ranks import Place, RankProcess, RanksOutput
from actions.launchers.local.run_events import EventFile
from trainwarden.clock import Clock

log = logging.getLogger("trainwarden.supervisor")

CANNOT_START_CODE = 126  # what a shell shows for a command that cannot be run


class Failure(msgspec.Struct, frozen=True):
    """The first rank that failed since the last start: its exit code as a shell shows it, and when (monotonic)."""

    code: int
    at_s: float


class _Ended(msgspec.Struct, frozen=True):
    """A process that is gone, and until when (monotonic) its end is not told for the sake of its last words."""

    process: RankProcess
    code: int
    at_s: float
    until_s: float


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
    """

    def __init__(
        self,
        place: Place,
        environ: Mapping[str, str],
        selector: selectors.BaseSelector,
        clock: Clock,
        stop_grace_s: float,
    ) -> None:
        self._place, self._environ, self._selector, self._clock = place, environ, selector, clock
        self._stop_grace_s = stop_grace_s
        self._events = EventFile(place)
        self._output = RanksOutput(place)
        self._running: dict[int, RankProcess] = {}
        self._port = 0
        self._first_steps: dict[int, int | None] = {}
        self._kill_at_s: float | None = None
        self._ended: deque[_Ended] = deque()  # in the order of their ends
        self.failure: Failure | None = None

    @property
    def running(self) -> Collection[int]:
        """Ranks whose process lives, or whose end has not been told yet."""
        return self._running.keys()

    def start(self, ranks: Sequence[int], attempt: int, resume_from: Path | None = None) -> None:
        """Start `ranks` anew, told to go on from `resume_from`; a failure before is forgotten once they all run.

        Raises
        ------
        OSError
            If there is no memory or process slot for one; that counts as its failure.
        """
        self.failure = Failure(CANNOT_START_CODE, self._clock.monotonic_s())
        if len(ranks) == self._place.ranks or not self._port:
            self._port = rank_processes.free_port()
        for rank in ranks:
            environ = rank_processes.environment(
                self._place, rank, attempt, self._port, self._environ, resume_from=resume_from
            )
            self._first_steps.pop(rank, None)
            process = RankProcess(self._place, rank, environ, self._output)
            self._running[rank] = process
            self._selector.register(process.pidfd, selectors.EVENT_READ, lambda process=process: self._reap(process))
        self.failure = None
        log.info("ranks started", extra={"fields": {"ranks": len(ranks), "attempt": attempt}})

    def ask_to_stop(self, ranks: Sequence[int]) -> None:
        """SIGTERM to `ranks`; those that still run after the grace are killed by `advance`."""
        for rank in ranks:
            if rank in self._running:
                self._running[rank].ask_to_stop()
        self._kill_at_s = self._clock.monotonic_s() + self._stop_grace_s

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

    def kill_all(self) -> None:
        """End everything at once and wait for it."""
        gone = {ended.process for ended in self._ended}
        alive = [process for process in self._running.values() if process not in gone]
        for process in alive:
            process.kill()
        for process in alive:
            self._reap(process)
        self._output.settle([ended.process.drain for ended in self._ended])
        self._tell_ends(at_once=True)
        self._output.close()

    def step(self) -> int | None:
        """The furthest step that a hook in one of the ranks tells; None if none does."""
        headers = (process.header() for process in self._running.values())
        return max((header.step for header in headers if header), default=None)

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
        self._ended.append(_Ended(process, code, self._clock.now_s(), now_s + rank_processes.LAST_OUTPUT_S))
        if code != 0 and not process.asked_to_stop and self.failure is None:
            self.failure = Failure(rank_processes.exit_code(code), now_s)
            log.warning("rank failed", extra={"fields": {"rank": process.rank, "code": code}})

    def _tell_ends(self, *, at_once: bool = False) -> None:
        """Tell of ranks whose last words are kept, or were waited for long enough: who reads of an end finds them.

        Nothing waits here: a child that holds the pipe or a disk that is stuck costs one grace, not one a rank.
        """
        now_s = self._clock.monotonic_s()
        while self._ended:
            ended = self._ended[0]
            if not (at_once or now_s >= ended.until_s or self._output.settled(ended.process.drain)):
                return
            self._ended.popleft()
            del self._running[ended.process.rank]
            self._events.exited(ended.process, ended.code, ended.at_s)
