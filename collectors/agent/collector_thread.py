"""Collectors that take turns in a thread of their own, and what becomes of one that does not come back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from trainwarden.clock import Clock
from trainwarden.collectors.agent.collector_runner import Batch, CollectorRunner
from trainwarden.collectors.agent.schedule import Task, Wait
from trainwarden.self_metrics import SelfMetrics

log = logging.getLogger("trainwarden.agent")


class CollectorThread:
    """Some collectors, one after the other. Others run in other lanes, so what blocks one holds up none of theirs.

    Nothing can end a call that hangs in the kernel. So a collector that is over its deadline keeps the thread that it
    has, and a new thread goes on with the others; when it comes back, what it brings is taken and its turns go on.

    Parameters
    ----------
    name : str
    tasks : list of Task
    turn : Turn
    hand_on : callable
        Takes what a turn has brought, in any thread.
    clock : Clock
    metrics : SelfMetrics
    """

    def __init__(
        self,
        name: str,
        tasks: list[Task],
        turn: CollectorRunner,
        hand_on: Callable[[Batch], None],
        *,
        clock: Clock,
        metrics: SelfMetrics,
    ) -> None:
        self.tasks = tasks
        self.wait = Wait(clock)
        self._name = name
        self._turn = turn
        self._hand_on = hand_on
        self._clock = clock
        self._metrics = metrics
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._at: tuple[Task, float] | None = None  # whose turn it is, and since when
        self._life = 0  # which of the lane's threads is the one that goes on
        self._last = False
        self._deliver: Callable[[], None] | None = None
        self._every_s: float | None = None

    def after(self, deliver: Callable[[], None], every_s: float) -> None:
        """Call `deliver` after each round, and have a round at least every `every_s`; never in two threads at once."""
        self._deliver, self._every_s = deliver, every_s

    def step(self) -> bool:
        """One round over everything that is due or awake now, without waiting; False if another thread goes on."""
        life, now_s = self._life, self._clock.monotonic_s()
        due = [task for task in self.tasks if not task.stuck and task.is_due(now_s)]
        for task in due:
            with self._lock:
                self._at = task, self._clock.monotonic_s()
            batch = self._turn.run_task(task)
            with self._lock:
                overtaken = self._life != life
                if not overtaken:
                    self._at = None
            self._hand_on(batch)
            if overtaken:
                task.stuck = False
                log.info("collector is back", extra={"fields": {"collector": task.name}})
                self.wait.wake()
                return False
        if self._deliver is not None:
            self._deliver()
        return True

    def start(self) -> None:
        """Let the turns go on in the background."""
        # A daemon: the end of the agent waits for no call that hangs.
        self._thread = threading.Thread(target=self._run, name=f"{self._name}-{self._life}", daemon=True)
        self._thread.start()

    def look_after(self, deadline_s: float) -> None:
        """Go on in a new thread if the collector whose turn it is has had it for longer than `deadline_s`.

        Raises
        ------
        RuntimeError
            If the lane's thread has ended by itself, which only a mistake of ours can bring about.
        """
        if not self.busy and not self._last:
            raise RuntimeError(f"the agent's lane {self._name} has ended")
        with self._lock:
            if self._at is None or self._clock.monotonic_s() - self._at[1] <= deadline_s:
                return
            task, self._at = self._at[0], None
            task.stuck = True
            self._life += 1
        self._metrics.count("collectors_stuck_total", "Collections over their deadline.", collector=task.name)
        log.warning("collector is stuck, the others go on", extra={"fields": {"collector": task.name}})
        self.start()

    def finish(self) -> None:
        """Ask for a last round over everything that is not stuck."""
        self._last = True
        self.wait.wake()

    def join(self, wait_s: float) -> bool:
        """Wait for the end of the last round; False once it is over."""
        if self._thread is not None:
            self._thread.join(wait_s)
        return self.busy

    @property
    def busy(self) -> bool:
        """True until the last round is over."""
        return self._thread is not None and self._thread.is_alive()

    def close(self) -> None:
        """Close the collectors, but for one that hangs: it has its files in use."""
        for task in self.tasks:
            if not task.stuck:
                task.collector.close()
        self.wait.close()

    def _run(self) -> None:
        while not self._last:
            self.wait.wait(self.tasks, self._every_s)
            if not self._last and not self.step():
                return
        for task in self.tasks:
            task.due_s = self._clock.monotonic_s()
        self.step()
