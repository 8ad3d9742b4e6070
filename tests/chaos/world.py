"""One run drawn from a seed: minutes of faults, then calm in which everything has to come right or be told."""

from __future__ import annotations

import logging
from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from tests.chaos.bus import ChaosBus, ChaosLog
from tests.chaos.detection import STOPPED, Detection, Job
from tests.chaos.engines import Engine
from tests.chaos.grid import Grid
from tests.chaos.history import Call, History, Limits
from tests.chaos.platform import Platform
from tests.chaos.scheduled import ScheduledJob
from tests.chaos.slow_links import exchanging
from tests.chaos.training import Training
from trainwarden.actions.remedies.policy import Rules
from trainwarden.commands.builders import on_job, on_node, set_healthy
from trainwarden.launching import Operation
from trainwarden.records import ActionRecord, CommandRecord
from trainwarden.settings import EngineSettings
from trainwarden.topics import ACTIONS, COMMANDS

BEGINS_S: Final = 1_795_000_000.0
TROUBLE_S: Final = 110
CALM_S: Final = 70  # a cluster that lost most of its nodes has to wait for who was cut off, and for who is missing
HOUR_S: Final = 3700.0  # later budgets are free again
LAST_S: Final = 90.0
NODE_SHARE: Final = 0.3
MOST_OUT: Final = 2  # of the six nodes or the four of a job: that share, rounded up
JOBS: Final = ("a", "d")  # they lie in different partitions


class World:
    """All of it; `run` returns what happened."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.now_s = BEGINS_S
        self.limits = Limits(random.choice((4, 12)), random.choice((1, 3)), 1800.0)
        self.history = History(seed, self.limits)
        self.log = ChaosLog(random, lambda: self.now_s)
        self.grid = Grid("g", random, self.history, 1000.0)
        self.jobs = {name: ScheduledJob(name, random) for name in JOBS}
        self.platform = Platform(self.jobs, random, self.history, MOST_OUT)
        self.bus = ChaosBus(self.log)
        self.training = Training(random, self.history)
        self.detection = Detection(ChaosBus(self.log), random, lambda: self.now_s, random.uniform(-2.0, 2.0))
        nodes = {"at_most": self.limits.nodes_at_most, "share": NODE_SHARE, "within_s": self.limits.within_s}
        settings = EngineSettings(
            mode="auto", actions_per_hour=self.limits.actions_per_hour, policy={"nodes": nodes},
            cool_down_s=random.choice((0.0, 10.0)),
        )  # fmt: skip
        rules = Rules.of(settings)
        one, other = (Engine(rules, self.log, self.platform, random, self.asked) for _ in range(2))
        one.meanwhile, other.meanwhile = other.step, one.step
        self.engines = (one, other)
        self.stopped, self.words = False, 0
        self.blamed: set[str] = set()
        self.flaky: dict[str, int] = {}

    # --- what is true of an engine's call -----------------------------------------------------------------------------

    def asked(self, operation: Operation) -> Call:
        told = any(one.id == operation.id and one.outcome == "started" for one in self.actions())
        sick = self.jobs[operation.job].sick.issuperset(operation.targets.nodes)
        return Call(self.now_s, operation.id, told, sick, self.stopped)

    def actions(self) -> list[ActionRecord]:
        return [one.record for one in self.log.read(ACTIONS) if isinstance(one.record, ActionRecord)]

    # --- time ---------------------------------------------------------------------------------------------------------

    def run(self) -> History:
        logging.disable(logging.CRITICAL)
        try:
            for _ in range(TROUBLE_S):
                self.hurt()
                self.tick(1.0)
            self.be_calm()
            for _ in range(CALM_S):
                self.tick(1.0)
            self.now_s += HOUR_S
            for _ in range(int(LAST_S / 3.0)):
                self.tick(3.0)
        finally:
            logging.disable(logging.NOTSET)
        self.tell_the_end()
        return self.history

    def tick(self, seconds: float) -> None:
        self.now_s += seconds
        self.platform.advance(self.now_s)
        self.grid.tick(self.grid.now_s + 1.0)
        self.training.tick(1.0)
        self.detection.advance()
        for engine in self.random.sample(self.engines, 2):
            engine.step()
        for node, left in list(self.flaky.items()):
            job = self.jobs[node[0]]
            if left and job.trains and node in job.placed and node in job.sick:
                self.flaky[node] = left - 1
                self.crash(job, node)
        for job in self.jobs.values():
            job.note(self.now_s)
        self.grid.note(self.now_s)
        for job in self.jobs.values():
            if job.phase == "failed" and not self.detection.about(job, *STOPPED):  # its ranks did not start
                self.detection.open(job, "crash", min(job.sick.intersection(job.placed), default=job.placed[0]))

    def be_calm(self) -> None:
        """Nothing fails any more, and people lift what they have said."""
        self.log.calm = self.grid.calm = True
        self.log.away_until_s = self.log.deaf_until_s = self.log.held_until_s = self.platform.away_until_s = self.now_s
        self.log.refuses.clear()
        self.grid.away_until_s = [self.grid.now_s] * 2
        self.flaky.clear()
        for engine in self.engines:
            engine.wire.calm, engine.back_s, engine.dies_in = True, self.now_s, None
            engine.cut_until_s = self.now_s
        for one in self.grid.machines:
            one.cut_until_s = self.grid.now_s
            if not one.on:
                one.boot()
        self.say(on_job("resume", None, "ann", self.now_s))
        self.stopped = False
        if self.random.random() < 0.5:
            self.say(on_job("reset", None, "ann", self.now_s))

    def tell_the_end(self) -> None:
        history = self.history
        self.training.tell_the_end()
        messages = self.log.read(ACTIONS)
        history.actions = self.actions()
        history.said_s = {one.record.id: one.time_s for one in messages if isinstance(one.record, ActionRecord)}
        for name, job in self.everything().items():
            history.ends[name] = "goes on" if job.trains else "stopped"
            if job.down_since_s is not None:
                history.down_since_s[name] = job.down_since_s
        history.aside += self.grid.beside()
        history.done = +self.grid.words.done
        if self.grid.over is not None:
            history.over_why["g"] = self.grid.over

    # --- faults -------------------------------------------------------------------------------------------------------

    def hurt(self) -> None:
        """At most one thing happens in a second, and mostly nothing."""
        faults: tuple[tuple[float, str, Callable[[], bool]], ...] = (
            (3.0, "crash", self.crash_some),
            (2.0, "hang", self.hang),
            (2.0, "GPU lost", self.lose_gpu),
            (0.6, "node crashes again and again", self.make_flaky),
            (1.0, "slow link on a healthy node", lambda: self.suspect("slow_link")),
            (1.5, "slow link", self.slow_link),
            (1.5, "metric anomaly on a healthy node", lambda: self.suspect("metric_anomaly")),
            (0.1, "user error", self.user_error),
            (4.0, "", self.kill_engine),
            (2.0, "engine stands still", self.stop_engine),
            (1.5, "launcher killed", self.kill_launcher),
            (1.5, "bus away", self.bus_away),
            (0.8, "engines not let into their groups", self.deafen),
            (1.5, "rebalance held open", self.hold_rebalance),
            (0.8, "topic refuses large records", self.limit_topic),
            (1.0, "first rendezvous away", self.take_rendezvous_away),
            (2.0, "node lost", self.lose_node),
            (1.0, "node lost as it starts", self.lose_node_at_start),
            (0.7, "engine's clock an hour ahead for a round", self.step_clock),
            (0.5, "bus's clock an hour ahead for a record", self.step_bus_clock),
            (3.0, "node comes back", self.boot_node),
            (2.0, "node cut off", self.cut_node),
            (0.7, "half of the nodes cut off", self.cut_half),
            (1.0, "step numbers begin again", self.training.begin_epoch),
            (1.0, "a step bears a number of nonsense", self.training.mistake),
            (1.0, "all ranks begin anew from a checkpoint", self.training.restart),
            (1.5, "rendezvous killed", self.kill_rendezvous),
            (0.7, "a person stops all", self.stop_all),
            (2.0, "a person resumes", self.resume),
            (0.7, "a person cordons or uncordons", self.cordon),
            (4.0, "a command to the job of torchruns", self.grid.words.say),
            (1.0, "a node is repaired", self.repair),
            (20.0, "", lambda: False),
        )
        (found,) = self.random.choices(faults, [one[0] for one in faults])
        if found[2]() and found[1]:
            self.history.faults[found[1]] += 1

    def everything(self) -> dict[str, Job]:
        return {**self.jobs, self.grid.name: self.grid}

    def a_job(self) -> ScheduledJob:
        return self.jobs[self.random.choice(JOBS)]

    def crash_some(self) -> bool:
        job = self.everything()[self.random.choice((*JOBS, "g"))]
        return self.crash(job, self.random.choice(job.placed) if job is self.grid and job.placed else None)

    def crash(self, job: Job, node: str | None) -> bool:
        """Ranks of a node end, of one that is well if none is named."""
        node = node or self.newly_blamed(job)
        if not job.trains or node is None:
            return False
        job.crash(node)
        self.detection.open(job, "crash", node)
        return True

    def newly_blamed(self, job: Job) -> str | None:
        """A node that is well; each is blamed once: who is blamed again and again is at fault."""
        well = [one for one in job.placed if one not in self.blamed]
        if not job.trains or not well:
            return None
        node = self.random.choice(well)
        self.blamed.add(node)
        return node

    def hang(self) -> bool:
        job = self.a_job()
        node = None if self.detection.about(job, "hang") else self.newly_blamed(job)
        if node is None:
            return False
        job.hang()
        self.detection.open(job, "hang", node)
        return True

    def fall_ill(self) -> tuple[ScheduledJob, str] | None:
        """A job that trains and the node of it that is at fault from now on."""
        job = self.a_job()
        if not job.trains:
            return None
        node = self.random.choice(job.placed)
        job.sick.add(node)
        return job, node

    def lose_gpu(self) -> bool:
        if (ill := self.fall_ill()) is None:
            return False
        job, node = ill
        self.detection.open(job, "gpu_lost", node)
        if self.random.random() < 0.7:
            job.crash(node)
            self.detection.open(job, "crash", node)
        return True

    def make_flaky(self) -> bool:
        if (ill := self.fall_ill()) is None:
            return False
        self.flaky[ill[1]] = 3
        return True

    def suspect(self, kind: str) -> bool:
        job = self.a_job()
        if not job.placed:
            return False
        node = self.random.choice(job.placed)
        if node in job.sick:
            return False
        self.detection.open(job, kind, node, self.random.uniform(10.0, 90.0))  # type: ignore[arg-type]
        return True

    def slow_link(self) -> bool:
        """One that gradients go by; the one before it is mended."""
        job = self.a_job()
        if not job.trains or not (pairs := exchanging(job.placed)) or self.detection.about(job, "slow_link"):
            return False
        job.slow = self.random.choice(pairs)
        self.detection.open_slow_link(job, job.slow)
        return True

    def user_error(self) -> bool:
        job = self.a_job()
        if not job.trains:
            return False
        job.crash(job.placed[0])
        self.detection.open(job, "user_error", job.placed[0])
        return True

    def kill_engine(self) -> bool:
        self.random.choice(self.engines).kill_soon()
        return True

    def stop_engine(self) -> bool:
        self.random.choice(self.engines).stand_still(self.random.choice((3.0, 15.0)))
        return True

    def kill_launcher(self) -> bool:
        self.platform.kill(self.random.choice((2.0, 8.0, 20.0)))
        return True

    def bus_away(self) -> bool:
        self.log.away_until_s = self.now_s + self.random.choice((1.0, 4.0, 12.0))
        return True

    def deafen(self) -> bool:
        self.log.deaf_until_s = self.now_s + self.random.choice((1.0, 6.0))
        return True

    def hold_rebalance(self) -> bool:
        self.log.share_out_anew(self.random.choice((0.0, 1.0, 6.0, 12.0)))
        return True

    def limit_topic(self) -> bool:
        """Somebody sets a limit on what engines say; the next time it is lifted."""
        limited = self.log.refuses.pop(ACTIONS.name, None)
        if limited is None:
            self.log.refuses[ACTIONS.name] = self.random.choice((100, 350, 500))
        return limited is None

    def take_rendezvous_away(self) -> bool:
        """Nobody reaches it for a while, and it goes on with what it knew."""
        self.grid.away_until_s[0] = self.grid.now_s + self.random.choice((2.0, 8.0))
        return True

    def lose_node(self) -> bool:
        return self._kill([one for one in self.grid.machines if one.on])

    def _kill(self, nodes: list) -> bool:  # type: ignore[type-arg]
        if not nodes or sum(one.on for one in self.grid.machines) < 2:
            return False
        self.random.choice(nodes).kill()
        return True

    def lose_node_at_start(self) -> bool:
        dead = [one for one in self.grid.machines if not one.on]
        for one in dead:
            one.boot()
            for _ in range(self.random.randrange(3)):
                one.talk()
                one.obey()
            one.kill()
        return bool(dead)

    def step_clock(self) -> bool:
        self.random.choice(self.engines).clock.ahead_s = HOUR_S
        return True

    def step_bus_clock(self) -> bool:
        """What is written next bears the time an hour from now; the bus's stamps never fall (the embedded one's)."""
        self.log.ahead_s = HOUR_S
        return True

    def boot_node(self) -> bool:
        dead = [one for one in self.grid.machines if not one.on]
        if dead:
            self.random.choice(dead).boot()
        return bool(dead)

    def cut_node(self) -> bool:
        one = self.random.choice(self.grid.machines)
        one.cut_until_s = self.grid.now_s + self.random.choice((2.0, 8.0, 30.0))
        return True

    def cut_half(self) -> bool:
        """A switch fails: half of all nodes, and an engine, reach neither bus nor service; later they do."""
        seconds = self.random.choice((2.0, 8.0, 30.0))
        for one in self.random.sample(self.grid.machines, len(self.grid.machines) // 2):
            one.cut_until_s = self.grid.now_s + seconds
        self.random.choice(self.engines).cut_until_s = self.now_s + seconds
        self.training.cut_half(seconds)
        return True

    def kill_rendezvous(self) -> bool:
        self.grid.restart(self.random.choice((0, 1)), self.random.choice((0.0, 3.0, 10.0)))
        return True

    # --- people -------------------------------------------------------------------------------------------------------

    def say(self, command: CommandRecord) -> bool:
        """A person's word, which is on the bus before anything else happens."""
        calm, away_s = self.log.calm, self.log.away_until_s
        self.log.calm, self.log.away_until_s = True, self.now_s
        self.words += 1  # the id that it has is drawn anew in each process
        self.bus.publish(COMMANDS, command.job, msgspec.structs.replace(command, id=f"command/{self.words}"))
        self.bus.flush()
        self.log.calm, self.log.away_until_s = calm, away_s
        return True

    def stop_all(self) -> bool:
        self.stopped = True
        return self.say(on_job("stop", None, "ann", self.now_s))

    def resume(self) -> bool:
        if not self.stopped:
            return False
        self.stopped = False
        return self.say(on_job("resume", None, "ann", self.now_s))

    def cordon(self) -> bool:
        job = self.a_job()
        word, node = self.random.choice(("cordon", "uncordon")), self.random.choice(job.nodes)
        return self.say(on_node(word, node, job.name, "ann", at_s=self.now_s))  # type: ignore[arg-type]

    def repair(self) -> bool:
        at_fault = ((node, job) for job in self.jobs.values() for node in job.sick - job.out)
        sick = sorted(node for node, _ in at_fault if not self.detection.untold(node))
        if not sick:
            return False
        node = self.random.choice(sick)
        self.jobs[node[0]].sick.discard(node)
        self.flaky.pop(node, None)
        return self.say(set_healthy(node, "repaired", "ann", self.now_s))
