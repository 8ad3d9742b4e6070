"""A job of torchruns, decided by the real table of two rendezvous services, of which the first that answers is used.

Only processes, time and the network between them are made up. Agents do what they are told, and carry what was decided.
"""

from __future__ import annotations

from random import Random
from typing import Final

import msgspec

from tests.chaos.grid_words import Words
from tests.chaos.history import History
from tests.unit.actions.launchers.torchrun.agents import Agent
from trainwarden.actions.launchers.torchrun.messages import Memory
from trainwarden.actions.launchers.torchrun.operations import end_operations
from trainwarden.actions.launchers.torchrun.table import JobTable
from trainwarden.launching import JobPhase

NODES: Final = 4
LOST_AFTER_S: Final = 5.0
LOST_ON_THE_WIRE: Final = 0.05
CHECKPOINT_STEPS: Final = 5


class Shape(msgspec.Struct, frozen=True):
    """How many nodes train at least and at most; the others are spares."""

    least: int = 2
    most: int = 3


SHAPE: Final = Shape()


class GridNode:
    """A machine with its torchrun."""

    def __init__(self, number: int, grid: Grid) -> None:
        self.number, self.name, self.grid = number, f"{grid.name}{number}", grid
        self.lives, self.cut_until_s = 0, float("-inf")
        self.service: JobTable | None = None
        self.boot()

    def boot(self) -> None:
        self.lives += 1
        self.on, self.service = True, None
        self.told: set[tuple[str, ...]] = set()  # whom it knows to have taken part in rounds
        shape = self.grid.shape
        self.agent = Agent(
            self.name, f"{self.name}/{self.lives}", shape.least, shape.most, ranks=1, failures=1000, grow="now"
        )
        self.agent.sees(0)

    def kill(self) -> None:
        """The process ends; half of the time the machine with it, so that no end of a connection is heard."""
        self.on = False
        if self.service is not None and self.grid.reaches(self, self.service) and self.grid.random.random() < 0.5:
            self.service.closed(self.agent.life, self.grid.now_s)
        self.service = None

    @property
    def runs(self) -> int | None:
        """The round whose ranks run here."""
        beat = self.agent.beat
        return beat.at if self.on and beat.alive and not beat.waits and beat.failure is None else None

    def talk(self) -> None:
        """Say what is true, to the first service that answers."""
        grid, agent = self.grid, self.agent
        found = next((one for one in grid.services if grid.reaches(self, one)), None)
        if found is None or (not grid.calm and grid.random.random() < LOST_ON_THE_WIRE):
            return
        if found is not self.service:
            if self.service is not None and self.service in grid.services and grid.reaches(self, self.service):
                moves = msgspec.structs.replace(agent.beat, moves=True)
                self.service.beat(agent.life, moves, grid.now_s)
            self.service = found
            found.hello(agent.hello(), grid.now_s)
        found.beat(agent.life, agent.beat, grid.now_s)

    def obey(self) -> None:
        """Do what the service says, unless that is lost on the way."""
        if self.service is None or not self.grid.reaches(self, self.service):
            return
        if self.service.members.get(self.agent.life) is None:
            return
        before = len(self.agent.rounds)
        self.agent.obey(self.service)
        self.told.add(tuple(seat.life for seat in self.service.memory.roster))
        if len(self.agent.rounds) > before:
            self.grid.begins(self, self.service.memory)


class Grid:
    """The job ``g``, which restarts by itself what has crashed; an engine's launcher knows nothing of it."""

    def __init__(
        self, name: str, random: Random, history: History, now_s: float, shape: Shape = SHAPE, nodes: int = NODES
    ) -> None:
        self.name, self.random, self.history, self.now_s, self.shape = name, random, history, now_s, shape
        self.calm = False
        self.away_until_s = [float("-inf"), float("-inf")]
        self.sick: set[str] = set()
        self.out: set[str] = set()
        self.down_since_s: float | None = None
        self.step = self.anew = 0  # `anew`: how often rounds were numbered from the beginning
        self.rosters: dict[int, tuple[str, ...]] = {}
        self.blind: dict[int, tuple[str, ...]] = {}  # rounds of torchruns that cannot know of those that still train
        self.services = [JobTable("j", LOST_AFTER_S, now_s) for _ in range(2)]
        self.words = Words(self, random)
        self.machines = [GridNode(number, self) for number in range(nodes)]

    def restart(self, number: int, away_s: float) -> None:
        """A service is killed; after a while another one that knows nothing is there."""
        self.services[number] = JobTable("j", LOST_AFTER_S, self.now_s)
        self.away_until_s[number] = self.now_s + away_s

    def reaches(self, node: GridNode, service: JobTable) -> bool:
        """Whether a line between them arrives."""
        return service in self.services and self.now_s >= max(
            node.cut_until_s, self.away_until_s[self.services.index(service)]
        )

    def tick(self, now_s: float) -> None:
        self.now_s = now_s
        on = [one for one in self.random.sample(self.machines, len(self.machines)) if one.on]
        for one in on:
            one.talk()
        for number, table in enumerate(self.services):
            if now_s >= self.away_until_s[number]:
                table.tick(now_s)
                end_operations(table, now_s)
        for one in on:
            one.obey()
        self.words.tick()
        self._settle()
        whole = self._whole()
        self.history.steps += [(self.anew, number) for number in whole]
        if whole:
            self.step += 1
            if self.step % CHECKPOINT_STEPS == 0:
                for one in on:
                    one.agent.sees(self.step)

    def begins(self, node: GridNode, memory: Memory) -> None:
        """A node starts ranks: of a round that is one and the same wherever it begins."""
        lives = tuple(seat.life for seat in memory.roster)
        self.history.begun.setdefault(node.agent.life, []).append((memory.round, 0))
        newest = max(self.rosters, default=0)
        if memory.round <= newest and self.rosters.get(memory.round) != lives:
            # A service that knows nothing numbers rounds anew where too few agents are left that could tell it.
            if self._trains_on(newest):
                if knew := self._who_knows(node, newest):
                    said = f"round {memory.round} began with {lives}, and {newest} still ran, as {knew} knew"
                    self.history.aside.append(said)
                self.blind[memory.round] = lives
                return
            self._number_anew()
        self.rosters[memory.round] = lives
        self.words.check(memory)

    def _trains_on(self, number: int) -> bool:
        """Whether more than half of the torchruns of round `number` run it."""
        still = {one.agent.life for one in self.machines if one.runs == number} & set(self.rosters[number])
        return 2 * len(still) > len(self.rosters[number])

    def _who_knows(self, node: GridNode, number: int) -> list[str]:
        """Who of those that the service of `node` hears has been told of round `number`."""
        heard = [one for one in self.machines if one.on and one.service is node.service]
        return [one.agent.life for one in heard if self.rosters[number] in one.told]

    def _settle(self) -> None:
        """Whoever began without knowing gives way when the others are back, or is the job when they have ended."""
        if self.blind and not self._trains_on(max(self.rosters)):
            self._number_anew()
        runs = {(one.agent.life, one.runs) for one in self.machines}
        self.blind = {number: lives for number, lives in self.blind.items() if {(one, number) for one in lives} & runs}

    def beside(self) -> list[str]:
        """Rounds that were begun without knowing, and still run beside the others'; at the end, all hear each other."""
        return [f"round {number} of {lives} still runs beside another" for number, lives in self.blind.items()]

    def _number_anew(self) -> None:
        self.anew += 1
        self.rosters = dict(self.blind)
        self.blind.clear()

    def _whole(self) -> list[int]:
        """Rounds of which every rank runs."""
        runs = {one.agent.life: one.runs for one in self.machines}
        found = []
        for number, lives in sorted(self.rosters.items()):
            if all(runs.get(life) == number for life in lives):
                found.append(number)
        return found

    @property
    def service(self) -> JobTable | None:
        """The service that people reach: the first that hears nodes of the job."""
        for number, table in enumerate(self.services):
            if self.now_s >= self.away_until_s[number] and any(one.service is table for one in self.machines):
                return table
        return None

    @property
    def over(self) -> str | None:
        """Why the job is over."""
        return next((one.memory.reason for one in self.services if one.memory.over is not None), None)

    @property
    def phase(self) -> JobPhase:
        if self.over is not None:
            return "ended"
        return "running" if self._whole() else "restarting"

    @property
    def trains(self) -> bool:
        return self.phase == "running"

    @property
    def placed(self) -> list[str]:
        whole = self._whole()
        return [life.split("/")[0] for life in self.rosters[whole[-1]]] if whole else []

    def crash(self, node: str) -> None:
        for one in self.machines:
            if one.name == node and one.agent.beat.alive:
                one.agent.fail(one.agent.beat.ranks[0])

    def note(self, now_s: float) -> None:
        if self.trains:
            self.down_since_s = None
        elif self.down_since_s is None:
            self.down_since_s = now_s
