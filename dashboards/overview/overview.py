"""All jobs on the bus, as the newest records tell them; filled by one thread, read by others."""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final

from trainwarden.actions.nodes.states import MAX_NODES, NodeStates
from trainwarden.clock import Clock
from trainwarden.commands.builders import EVERY_JOB
from trainwarden.commands.silences import Silences
from trainwarden.commands.trust import Trust, in_order
from trainwarden.dashboards.overview.job import JobOverview
from trainwarden.protocols import Bus, Consumer, Message
from trainwarden.records import CommandRecord, HeartbeatRecord, Record, TaskRecord
from trainwarden.service_loop import Output
from trainwarden.topics import ACTIONS, COMMANDS, EVENTS, HEARTBEATS, INCIDENTS, ITERATIONS, TASKS, VERDICTS, Topic

SINCE_S: Final = 1_800.0  # of steps, heartbeats, verdicts and events
HISTORY: Final[tuple[Topic[Any], ...]] = (COMMANDS, INCIDENTS, ACTIONS, TASKS)  # short, and read whole
MAX_JOBS: Final = 1_000
FORGET_S: Final = 7 * 86_400.0
FORGET_NODE_S: Final = 86_400.0  # pods and spot machines come under a new name each time
MAX_SAID: Final = 10_000
FEW: Final = 100  # records taken in at once
YIELD_S: Final = 1e-4
FORGET_EVERY_S: Final = 60.0
READ_UP: Final = 1_000  # records that are still to come, as many as one poll gives: a busy bus is never read to its end


class Overview:
    """A handler of the service loop that remembers and says nothing.

    Take `lock` while reading more than one thing. Words that do not count by `trust` (None: all do) are passed over.

    Attributes
    ----------
    jobs : dict of str to JobOverview
    silences : Silences
    said : dict of str to CommandRecord
        Approvals and denials by id, the first of each.
    nodes : NodeStates
        In which state each node is, by the bus alone.
    tasks : dict of str to TaskRecord
        The last report of the coordinator on each job that it gives nodes to, without those that are over.
    coordinator_s : float or None
        When it last reported; None while no coordinator is known.
    news : int
        Grows with each verdict, incident, action, event or command.
    """

    topics: Sequence[Topic[Any]] = (ITERATIONS, HEARTBEATS, VERDICTS, EVENTS, *HISTORY)

    def __init__(self, clock: Clock, trust: Trust | None = None) -> None:
        self.group = f"overview-{uuid.uuid4().hex}"  # everybody who looks sees everything
        self.lock = threading.RLock()
        self.jobs: dict[str, JobOverview] = {}
        self.news = 0
        self.ready = False
        self.round_s: float | None = None
        self._forget_s = 0.0
        self._clock = clock
        self._trust = trust or Trust()
        self._consumer: Consumer | None = None
        self._read: dict[tuple[str, int], int] = {}
        self._stops: dict[str, str | None] = {}
        self.silences = Silences()
        self.said: dict[str, CommandRecord] = {}
        self.nodes = NodeStates()
        self.tasks: dict[str, TaskRecord] = {}
        self.coordinator_s: float | None = None
        self._beating: OrderedDict[tuple[str, str], None] = OrderedDict()  # (job, node), the longest silent first
        self._listeners: list[Callable[[Record], None]] = []

    def start(self, bus: Bus, consumer: Consumer) -> None:
        """See `trainwarden.service_loop.Handler`: what is short is read whole, the rest from half an hour ago."""
        self._consumer = consumer
        for topic in HISTORY:
            self._apply(in_order(bus.read(topic)) if topic is COMMANDS else bus.read(topic))
        consumer.seek_to_time(self._clock.now_s() - SINCE_S)

    def handle(self, messages: Sequence[Message]) -> Iterable[Output]:
        """See `trainwarden.service_loop.Handler`."""
        self._apply(messages)
        return ()

    def tick(self, now_s: float) -> Iterable[Output]:
        """See `trainwarden.service_loop.Handler`."""
        with self.lock:
            self.round_s = now_s
            for job in self.jobs.values():
                job.pace.apply_pending()
            lag = None if self.ready or self._consumer is None else self._consumer.lag()
            if lag is not None and lag <= READ_UP:
                self.ready = True
            self._forget(now_s)
        return ()

    def stopped_by(self, job: str = EVERY_JOB) -> str | None:
        """Who has stopped all acting (on `job`); None if nobody has."""
        return self._stops.get(job) or self._stops.get(EVERY_JOB)

    def last_job_on(self, node: str) -> str | None:
        """The job whose agent was heard of last on `node`; else one that the node was in trouble with."""
        heard = {name: job.node_seen_s[node] for name, job in self.jobs.items() if node in job.node_seen_s}
        return max(heard, key=heard.__getitem__) if heard else self.nodes.last_job_on(node)

    def listen(self, listener: Callable[[Record], None]) -> Callable[[], None]:
        """Have `listener` called with each new verdict, incident, action or event; the answer ends that."""
        with self.lock:
            self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _apply(self, messages: Iterable[Message]) -> None:
        """A few at a time, so that nobody who asks waits for a whole history to be read."""
        coming = iter(messages)
        while few := list(islice(coming, FEW)):
            with self.lock:
                for message in few:
                    place = (message.topic, message.partition)
                    if message.offset > self._read.get(place, -1):
                        self._read[place] = message.offset
                        self._take_one(message)
            if len(few) == FEW:
                self._clock.sleep(YIELD_S)  # a lock that is taken again at once is never given to another thread

    def _take_one(self, message: Message) -> None:
        record = message.record
        if self._trust.refusal(message) is not None:
            return
        self.nodes.apply(record, message.time_s)
        if isinstance(record, CommandRecord):
            self._take_command(record, message.offset)
            self._tell(record)
            return
        if isinstance(record, TaskRecord):
            self._take_task(record, self._clock.now_s() if self.ready else message.time_s)  # as below
            return
        name = getattr(record, "job", None)
        if name is None:
            return
        job = self.jobs.get(name)
        if job is None:
            job = self.jobs[name] = JobOverview(name)
        # What comes live is heard now, whatever clocks agents, detectors and the bus have.
        if job.apply(message, self._clock.now_s() if self.ready else None):
            self._tell(record)
        if isinstance(record, HeartbeatRecord):
            self._note_node(name, record.node)

    def _take_task(self, task: TaskRecord, time_s: float) -> None:
        """What the coordinator says of a job; a task that is only registered has no status yet."""
        if task.status is None or self._clock.now_s() - time_s > FORGET_NODE_S:
            return  # a cluster without a coordinator for so long has none
        self.coordinator_s = max(time_s, self.coordinator_s or time_s)
        self.tasks.pop(task.job, None)
        if not task.finished:
            self.tasks[task.job] = task
        if len(self.tasks) > MAX_JOBS:
            del self.tasks[next(iter(self.tasks))]
        self._tell(task)

    def _note_node(self, job: str, node: str) -> None:
        """Of more nodes than there can be, those of all jobs together, the longest silent go."""
        self._beating[job, node] = None
        self._beating.move_to_end((job, node))
        if len(self._beating) > MAX_NODES:
            (of_job, gone), _ = self._beating.popitem(last=False)
            if of_job in self.jobs:
                self.jobs[of_job].forget_node(gone)

    def _take_command(self, command: CommandRecord, offset: int) -> None:
        if command.kind in ("stop", "resume"):
            self._stops[command.job] = (command.by or "somebody") if command.kind == "stop" else None
        elif command.kind == "silence":
            self.silences.apply(command, offset)
        elif command.kind in ("approve", "deny"):
            self.remember(command)

    def remember(self, command: CommandRecord) -> CommandRecord:
        """The first record of what `command` says; that is itself, if nobody has said it before."""
        first = self.said.setdefault(command.id, command)
        if len(self.said) > MAX_SAID:
            del self.said[next(iter(self.said))]
        return first

    def _tell(self, record: Record) -> None:
        self.news += 1
        for listener in tuple(self._listeners):
            listener(record)

    def _forget(self, now_s: float) -> None:
        """Jobs that nothing was heard of for a week go; so do the longest silent ones above `MAX_JOBS`."""
        if now_s < self._forget_s:
            return
        self._forget_s = now_s + FORGET_EVERY_S
        self.silences.forget(now_s)
        self.nodes.forget(now_s - FORGET_S)
        by_silence = sorted(self.jobs.values(), key=_heard_s)
        for place, job in enumerate(by_silence):
            silent = _heard_s(job) < now_s - FORGET_S and not job.open_incidents()
            if silent or place < len(by_silence) - MAX_JOBS:
                del self.jobs[job.job]
            else:
                job.forget_nodes(now_s - FORGET_NODE_S)


def _heard_s(job: JobOverview) -> float:
    told_s = max((one.updated_at_s for one in job.incidents.values()), default=0.0)
    event_s = job.events[-1].time_s if job.events else 0.0
    return max(job.seen_s or 0.0, told_s, event_s, job.verdict.time_s if job.verdict else 0.0)
