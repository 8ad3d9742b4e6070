"""What the rendezvous service decides of one job: rounds, seats, spares, losses, failures. Pure: time is an argument.

A round is one start of all ranks. It begins when enough agents wait for it, and only where more than half of those that
took part in the last one are known here to wait, or to be gone for certain: two services that cannot hear each other
then never begin a round each. Agents carry what was decided (`words.Memory`); training goes on without this service.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Final, Protocol

import msgspec

from trainwarden.actions.launchers.torchrun.growing import Growing
from trainwarden.actions.launchers.torchrun.members import Member, Members, seat_order
from trainwarden.actions.launchers.torchrun.messages import (
    Beat,
    Begin,
    Checkpoint,
    CheckWord,
    Hello,
    Memory,
    Seat,
    Word,
)
from trainwarden.launching import COORDINATOR_MARK, Operation, Report

MOST_FAILURES: Final = 3  # without a newer checkpoint; what the engine's own table tries of a crash (remedies.toml)
FORGIVEN_S: Final = 3600.0  # where no folder of checkpoints is known, an older failure no longer counts
STOP_S: Final = 12.0  # for agents that stop their ranks; torchrun itself kills them after 30
BACK_OFF_S: Final = 5.0  # after the second failure in vain, twice as long after each further one
MOST_BACK_OFF_S: Final = 60.0
STARTING_S: Final = 600.0  # as torchrun's time-out for joining (elastic/rendezvous/dynamic_rendezvous.py)
UNTOLD_S: Final = 60.0  # for spares that were not announced
GAVE_UP_CODE: Final = 75  # sysexits.h, EX_TEMPFAIL: the job was given up, its command was not wrong
CANNOT_CODE: Final = 1
HELD: Final = f"{COORDINATOR_MARK}it waits until it is given to this job"


class Checks(Protocol):
    """Measures ranks: `checks.JobChecks` where all are on this machine, `checks_afar.ChecksAfar` by their agents."""

    here: bool

    @property
    def failed(self) -> bool: ...
    @property
    def measures(self) -> bool: ...
    @property
    def possible(self) -> bool: ...
    def word(self, life: str) -> CheckWord | None: ...
    def announce(self, number: int) -> None: ...
    def is_open(self, number: int) -> bool: ...
    def refusal(self, operation: Operation) -> Report | None: ...
    def begin(self, operation: Operation) -> None: ...
    def report(self, ident: str) -> Report: ...
    def advance(self) -> None: ...


class JobTable:
    """One job.

    Parameters
    ----------
    lost_after_s : float
        An agent that is silent for so long is lost.
    """

    def __init__(self, job: str, lost_after_s: float, now_s: float) -> None:
        self.job = job
        self.checks: Checks | None = None
        self._reset(lost_after_s, now_s)

    def _reset(self, lost_after_s: float, now_s: float) -> None:
        self.memory = Memory()
        self._lives_of: tuple[tuple[Seat, ...], Set[str]] = self.memory.roster, frozenset()
        self.least = self.most = 1
        self.weight: float | None = None
        self.members = Members(lost_after_s, now_s)
        self.since_s = now_s  # the last change of round or target
        self._last_call_s = 0.0
        self._enough_s: float | None = None  # since when the first round could begin
        self._failed_s: list[float] = []
        self._rest_until_s = float("-inf")
        self._began_s, self._seen = now_s, set[str]()  # the nodes that were ever heard of
        self._spares: int | None = None
        self._most_failures = MOST_FAILURES
        self._growing = Growing()
        self._grow_after: int | None = None  # the step of a checkpoint; with a newer one the job takes in more nodes

    # --- what is heard -----------------------------------------------------------------------------------------------

    def hello(self, hello: Hello, now_s: float) -> None:
        """An agent has connected."""
        if self.memory.over is not None and hello.memory is None and not self.members.living(now_s):
            self._reset(self.members.lost_after_s, now_s)  # all of the last run have gone: another of the same name
        if hello.memory is not None and hello.memory.newer_than > self.memory.newer_than:
            self.memory = msgspec.structs.replace(hello.memory, generation=hello.memory.generation + 1)
            self.since_s = now_s
            self.members.be_patient(now_s)
        self.least, self.most, self._last_call_s = hello.least, hello.most, hello.last_call_s
        self._spares, self._most_failures = hello.spares, hello.failures or MOST_FAILURES
        self._growing.how = hello.grow
        self.weight = self.weight if hello.weight is None else hello.weight
        if hello.held and hello.memory is None and self.members.get(hello.life) is None:
            self.change(cordoned={**self.memory.cordoned, hello.node: self.memory.cordoned.get(hello.node, HELD)})
        self._seen.add(hello.node)
        self.members.add(hello, now_s)

    def misfit(self, hello: Hello, now_s: float) -> str | None:
        """Why an agent that is new here cannot take part in the job as it runs; None if it can."""
        seats = {seat.life for seat in self.memory.roster}
        others = [one for one in self.members.living(now_s) if one.node != hello.node]
        if self.memory.over is not None or hello.life in seats or self.members.get(hello.life) or not others:
            return None
        if (hello.least, hello.most) != (self.least, self.most):
            theirs = f"{others[0].node} was started for --nnodes {self.least}:{self.most}"
            return f"{theirs}, and {hello.node} for {hello.least}:{hello.most}"
        usable = {one.node for one in others}.difference(self.memory.cordoned)
        if hello.spares is not None and len(usable) >= self.most + hello.spares:
            return f"the job has its {self.most} nodes and {hello.spares} spares"
        return None

    def expects(self, now_s: float) -> bool:
        """Whether nodes that the job was started for may still be starting."""
        age_s = now_s - self._began_s
        if self._spares is None:
            return age_s < UNTOLD_S
        return age_s < STARTING_S and len(self._seen) < self.most + self._spares

    def beat(self, life: str, beat: Beat, now_s: float) -> None:
        """An agent has said how it is."""
        self.members.update(life, beat, now_s)

    def closed(self, life: str, now_s: float) -> None:
        """An agent's connection has ended."""
        self.members.closed(life, now_s)

    # --- what is said ------------------------------------------------------------------------------------------------

    def word(self, life: str) -> Word:
        """What `life` is to know, without what only comes where it has changed."""
        memory, member = self.memory, self.members.get(life)
        if memory.over is not None:
            return Word(over=memory.over, stop=memory.over != 0, why=memory.reason)
        if member is None:
            return Word()
        beat, begin = member.beat, None
        if beat.waits and beat.at < memory.round == memory.target:
            place = next((number for number, seat in enumerate(memory.roster) if seat.life == life), None)
            if place is not None:
                begin = self._begin(place)
        # Two services that knew nothing of each other may have numbered two rounds alike: one of them gives way.
        is_apart = beat.at == memory.round and life not in self._lives
        stop = (0 < beat.at < memory.target or (beat.at > 0 and is_apart)) and not (beat.waits or beat.finished)
        check = None if stop or self.checks is None else self.checks.word(life)
        return Word(begin=begin, stop=stop, why=memory.reason if stop else "", save=self._asked_to_save, check=check)

    @property
    def _lives(self) -> Set[str]:
        """Who has a seat; asked for each agent, so it is kept."""
        if self._lives_of[0] is not self.memory.roster:
            self._lives_of = self.memory.roster, {seat.life for seat in self.memory.roster}
        return self._lives_of[1]

    @property
    def _asked_to_save(self) -> str | None:
        asked = [one.report for one in self.memory.kept if one.kind == "checkpoint" and not one.report.ended]
        return asked[-1].operation if asked else None

    def _begin(self, place: int) -> Begin:
        memory = self.memory
        return Begin(
            round=memory.round, rank=place, world=len(memory.roster), host=memory.host, port=memory.port,
            resume=None if memory.resume is None else memory.resume.path,
        )  # fmt: skip

    # --- what is decided ---------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Decide what is due; called a few times a second, and after whatever was heard."""
        self.members.look(now_s)
        if self.memory.over is None and self.memory.target == self.memory.round and self.memory.roster:
            self._follow(now_s)
        if self.memory.over is None and self.memory.target > self.memory.round and not self.memory.paused:
            self._gather(now_s)
        if self.memory.round:
            self._note_bench(now_s)

    def change(self, now_s: float | None = None, **fields: Any) -> None:
        """Decide `fields` of the memory; with `now_s` the round or the target is among them."""
        self.memory = msgspec.structs.replace(self.memory, serial=self.memory.serial + 1, **fields)
        if now_s is not None:
            self.since_s = now_s

    def come_back(self, now_s: float, reason: str, **fields: Any) -> None:
        """All agents are to stop their ranks and to wait for the next round."""
        self.change(now_s, target=self.memory.round + 1, reason=reason[:512], **fields)

    def end(self, code: int, reason: str) -> None:
        """The job is over, for all agents."""
        self.change(over=code, reason=reason[:512])

    @property
    def seated(self) -> Mapping[str, Member]:
        """By life, those of the last round that were heard here."""
        found = ((seat.life, self.members.get(seat.life)) for seat in self.memory.roster)
        return {life: member for life, member in found if member is not None}

    def runs(self, now_s: float) -> bool:
        """Whether all nodes of the round say that their ranks were started."""
        memory, seated = self.memory, self.seated
        there = [one for one in seated.values() if one.beat.at == memory.round and one.beat.ranks]
        return bool(memory.roster) and memory.target == memory.round and len(there) == len(memory.roster)

    def majority(self, now_s: float) -> bool:
        """Whether more than half of the last round's agents, and of those that waited then, are accounted for here.

        Of one that is only silent nobody knows where it is; of one that is cordoned somebody has said that it is out.
        """
        memory = self.memory
        voters = {**dict.fromkeys(memory.bench, ""), **{seat.life: seat.node for seat in memory.roster}}
        known = {life for life, node in voters.items() if self._accounted(life, node, now_s)}
        # No step is made without a node that is known to have stopped; where all seats are only silent, all may train.
        seats = not memory.roster or any(seat.life in known for seat in memory.roster)
        return not voters or (seats and 2 * len(known) > len(voters))

    def _accounted(self, life: str, node: str, now_s: float) -> bool:
        member = self.members.get(life)
        if node in self.memory.cordoned:
            return True
        if member is not None and (member.beat.left or self.members.absence(life, now_s) != "silent"):
            return True
        absent = self.members.absence(life, now_s) == "silent"
        return absent and self.members.is_succeeded(life, node or life.rpartition("/")[0], now_s)

    def _follow(self, now_s: float) -> None:
        """See what has become of the round that runs."""
        memory, seated = self.memory, self.seated
        ours = [seated.get(seat.life) for seat in memory.roster]
        if all(one is not None and one.beat.finished and one.beat.at == memory.round for one in ours):
            self.end(0, "all ranks have ended well")
            return
        if self.runs(now_s) and not (self._same_size(list(seated.values())) and self._went_on(list(seated.values()))):
            return
        if not self.majority(now_s):
            return
        # Ranks fail where a node of theirs is lost: while a connection's end is not judged yet, no failure is.
        if any(one is not None and self._undecided(one, now_s) for one in ours):
            return
        for seat, member in zip(memory.roster, ours, strict=True):
            if (lost := self._lost(seat, member, now_s)) is not None:
                self.come_back(now_s, lost)
                return
        if any(one is not None and one.beat.at == memory.round and self._failed(one, now_s) for one in ours):
            return
        self._grow(now_s)

    def _grow(self, now_s: float) -> None:
        """Apply more nodes where that is worth a restart: at a checkpoint, if it is known where those are."""
        there = len(self.memory.roster)
        more = min(self.most - there, len(self.spares(now_s)))
        self._growing.observe(there, more, now_s)
        took_s = [one.beat.start_s for one in self.seated.values() if one.beat.start_s is not None]
        if more < 1 or self._growing.how == "restart":
            self._grow_after = None
        elif not any(one.beat.looks for one in self.seated.values()):
            self.come_back(now_s, f"{more} more nodes wait")  # as torchrun's own rendezvous has it
        elif self._growing.is_due(max(took_s, default=None)):
            newest = self.newest()
            step = 0 if newest is None else newest.step
            if self._grow_after is None:
                self._grow_after = step
            elif step > self._grow_after:
                self._grow_after = None
                self.come_back(now_s, f"a checkpoint of step {step} is complete, and {more} more nodes wait")

    def _went_on(self, seated: Sequence[Member]) -> bool:
        """Whether no script has started over though it was given a checkpoint; else it would overwrite that one.

        In the first round it may leave out what lies in the folder: a person has started it, perhaps anew on purpose.
        """
        newest = 0 if self.memory.resume is None or self.memory.round == 1 else self.memory.resume.step
        for one in seated:
            first, given = one.beat.first_step, newest if one.beat.restored is None else one.beat.restored
            if first is not None and one.beat.at == self.memory.round and first < given:
                why = f"{one.node} started over at step {first} although the checkpoint of step {given} is complete"
                self.end(CANNOT_CODE, f"{why}; the script must go on from it (docs/checkpoints.md)")
                return False
        return True

    def _same_size(self, seated: Sequence[Member]) -> bool:
        """Whether all nodes have as many ranks; else two ranks may have one number, so the job ends."""
        sizes = {len(one.beat.ranks): one.node for one in seated}
        if len(sizes) > 1:
            (most, one), (least, other) = max(sizes.items()), min(sizes.items())
            self.end(CANNOT_CODE, f"{one} has {most} ranks and {other} {least}: all need the same --nproc-per-node")
            return False
        world = len(seated) * next(iter(sizes), 0)
        if world != self.memory.world:
            self.change(world=world)
        return True

    def _undecided(self, member: Member, now_s: float) -> bool:
        waited = member.closed_s is not None and self.members.absence(member.life, now_s) is None
        return waited and not member.beat.left and not member.beat.finished

    def _failed(self, member: Member, now_s: float) -> bool:
        """Whether ranks of `member` have failed by themselves; then a new round is wanted, or the job is given up."""
        beat = member.beat
        if beat.failure is None and not beat.waits:
            return False
        how = f"rank {beat.failure.rank} {beat.failure.how}" if beat.failure is not None else "its ranks ended"
        self._failed_s = [then for then in self._failed_s if now_s - then < FORGIVEN_S] + [now_s]
        newest, proof = self.newest(), self.memory.proof
        newer = newest is not None and (proof is None or newest.step > proof)
        failures = 1 if newer else self.memory.failures + 1
        if not any(one.beat.looks for one in self.seated.values()):
            failures = len(self._failed_s)
        self.come_back(
            now_s, f"{how} on {member.node}", failed_rounds=self.memory.failed_rounds + 1, failures=failures,
            proof=newest.step if newer and newest is not None else proof,
        )  # fmt: skip
        self._rest_until_s = now_s + back_off_s(failures)
        if failures >= self._most_failures:
            self.end(GAVE_UP_CODE, f"{how} on {member.node}: {failures} failures without a newer checkpoint")
        return True

    def _lost(self, seat: Seat, member: Member | None, now_s: float) -> str | None:
        """Why the node of `seat` no longer takes part; None if it does, or has nothing more to do."""
        if member is not None and member.beat.finished:
            return None
        if member is not None and member.beat.left:
            return f"{seat.node} has left"
        absence = self.members.absence(seat.life, now_s)
        said = "has ended" if absence == "closed" else "is silent"
        return None if absence is None else f"torchrun on {seat.node} {said}"

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that all nodes see which see any: one may see it before the others do."""
        return self._newest_of(self.seated.values())

    def checkpoints(self) -> list[Checkpoint]:
        """What the nodes of the round see that see any."""
        return [one.beat.checkpoint for one in self.seated.values() if one.beat.checkpoint is not None]

    @staticmethod
    def _newest_of(members: Iterable[Member]) -> Checkpoint | None:
        seen = [one.beat.checkpoint for one in members if one.beat.checkpoint is not None]
        return min(seen, key=lambda one: one.step, default=None)

    # --- the next round ----------------------------------------------------------------------------------------------

    def spares(self, now_s: float) -> list[Member]:
        """Who waits, has no seat and may have one, in the order in which they came."""
        seats = {seat.life for seat in self.memory.roster}
        return [one for one in self._waiting(now_s) if one.life not in seats]

    def _waiting(self, now_s: float) -> list[Member]:
        out = self.memory.cordoned
        return [one for one in self.members.living(now_s) if one.beat.waits and one.node not in out]

    def _late(self, now_s: float) -> bool:
        """Whether somebody of the last round may still come, and has time for it."""
        if now_s - self.since_s >= STOP_S:
            return False
        for seat in self.memory.roster:
            member = self.members.get(seat.life)
            if seat.node in self.memory.cordoned or self.members.absence(seat.life, now_s) is not None:
                continue
            if member is None or not (member.beat.waits or member.beat.finished or member.beat.left):
                return True
        return False

    def _gather(self, now_s: float) -> None:
        """Begin the next round if enough agents wait for it."""
        if self.checks is not None:
            self.checks.announce(self.memory.target)
            if self.memory.over is not None:
                return
        waiting = self._waiting(now_s)
        enough = len(waiting) >= self.least
        if now_s < self._rest_until_s:
            return
        if not self.memory.round:
            self._enough_s = (self._enough_s or now_s) if enough else None
            called = self._enough_s is not None and now_s - self._enough_s >= self._last_call_s
            seated = sorted(waiting, key=seat_order)[: self.most]
            if (len(seated) < self.most or any((one.place or 0) >= self.most for one in seated)) and not called:
                return
        elif self._late(now_s):
            return
        if not enough:
            finished = [one.node for one in self.seated.values() if one.beat.finished]
            if finished and waiting:
                self.end(CANNOT_CODE, f"{finished[0]} has finished already, so the job cannot begin anew without it")
            return
        if self.majority(now_s) and (self.checks is None or self.checks.is_open(self.memory.target)):
            seats = self._seats(waiting)
            newest = self.newest() if self.memory.round else self._newest_of(waiting)
            first = self.members.get(seats[0].life)
            assert first is not None  # it waits
            self.change(
                now_s, round=self.memory.target, roster=seats, host=first.host, port=first.beat.port, order=(),
                resume=newest,
            )  # fmt: skip
            self.members.forget_lost((seat.life for seat in seats), now_s)

    def _seats(self, waiting: Sequence[Member]) -> tuple[Seat, ...]:
        """The order of the round: as somebody wished, else everybody's last place, and of those lost a spare's."""
        free = {one.life: one for one in sorted(waiting, key=seat_order)}
        wished = self.memory.order
        if wished:
            ordered = sorted(waiting, key=lambda one: wished.index(one.node) if one.node in wished else len(wished))
            old: list[Seat] = [Seat(one.life, one.node) for one in ordered if one.node in wished]
        else:
            old = list(self.memory.roster)
        own = [free.pop(seat.life, None) for seat in old]
        for number, seat in enumerate(old):
            if own[number] is None:  # a new process on the same node comes before others
                life = next((one.life for one in free.values() if one.node == seat.node), None)
                own[number] = free.pop(life) if life is not None else None
        spares = iter(list(free.values()))
        filled = [one if one is not None else next(spares, None) for one in own]
        seated = [*(one for one in filled if one is not None), *spares][: self.most]
        return tuple(Seat(one.life, one.node) for one in seated)

    def _note_bench(self, now_s: float) -> None:
        """Keep who waits while a round runs: they count when it is said who may begin the next one."""
        bench = tuple(sorted(one.life for one in self.spares(now_s)))
        if self.memory.target == self.memory.round and bench != self.memory.bench and self.majority(now_s):
            self.change(bench=bench)


def back_off_s(failures: int) -> float:
    """For how long nothing begins after so many failures in vain, in seconds; meanwhile detection may name a node.

    Examples
    --------
    >>> [back_off_s(failures) for failures in (0, 1, 2, 3, 4, 99)]
    [0.0, 0.0, 5.0, 10.0, 20.0, 60.0]
    """
    return 0.0 if failures < 2 else min(BACK_OFF_S * 2.0 ** min(failures - 2, 30), MOST_BACK_OFF_S)
