"""A data-parallel step that goes on when a rank dies: nothing of it is lost but what that rank had computed.

On a death the survivors leave the collective call and form a group anew. What a bucket of gradients had been reduced to
anywhere is kept. The micro-batches of the lost rank are shared out among the survivors, and added to the buckets that
were not reduced. All make one optimizer step, with the global batch of a step without a failure. A newcomer joins
before a step, and gets the state of a rank that has it (Unicron, He et al. 2024, sections 6.2 and 6.3).
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from trainwarden.checkpoint.state import State, collect, decode, model_tensors
from trainwarden.transition.buckets import BUCKET_BYTES, Broken, Buckets, Group
from trainwarden.transition.launcher import Launcher
from trainwarden.transition.members import Members, TransitionError, ranks

log = logging.getLogger("trainwarden.transition")

CONNECT_S: Final = 30.0  # all members have just come, so each is there
FUTILE: Final = 2
"""So many transitions in which nobody left or came, and no step was made, are one too many: the call itself fails."""
_STATELESS: Final = -1


class Stateful(Protocol):
    """What torch calls so: its state can be taken, and given to another."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One micro-batch for this rank.

    Attributes
    ----------
    index : int
        Its place among all micro-batches of the step: what data it is must follow from this and the step alone.
    weight : float
        What a loss that is a mean over the micro-batch is multiplied by, where all are equally large.
    again : bool
        Whether a rank that is gone had it before.
    """

    index: int
    weight: float
    again: bool


class Status(NamedTuple):
    """What a member says of itself in a new epoch; `number` is below 0 while it lacks the state of the job."""

    number: int
    base: int
    busy: bool
    newcomer: bool
    first: int
    reduced: tuple[bool, ...]


@dataclass(slots=True)
class Transition:
    """What a step has survived: who left and came, whose state newcomers got, and seconds by phase.

    `members`: who is left; `group`: those form a group; `state`: what each has is compared and handed on; `again`: this
    rank's part of the lost micro-batches.
    """

    gone: set[str] = field(default_factory=set)
    come: set[str] = field(default_factory=set)
    source: str = ""
    phases: dict[str, float] = field(default_factory=dict)

    def spend(self, phase: str, since_s: float) -> None:
        self.phases[phase] = self.phases.get(phase, 0.0) + time.monotonic() - since_s


class ResilientStep:
    """The steps of a data-parallel job whose every rank holds the whole model.

    Parameters
    ----------
    total : int
        Micro-batches of a step over all ranks.
    model : torch.nn.Module
        The model itself, not a DistributedDataParallel. All ranks start with the weights of the first.
    optimizer : torch.optim.Optimizer
        Its optimizer.
    also : mapping of str to object
        What else a newcomer has to get, by a name of yours: a scheduler of the learning rate, a GradScaler, a sampler.
    least : int
        Ranks without whom the job does not go on.
    timeout_s : float
        Longest wait for a collective call, seconds. Ranks that are only late find each other again after it, if they
        come within as long again.
    first_step : int
        Number of the first step, for a job that goes on from a checkpoint.
    bucket_bytes : int
        Size of what is reduced at once, as DistributedDataParallel's `bucket_cap_mb`.

    Raises
    ------
    TransitionError
        If the ranks' store is one that dies with a rank: ``TORCHELASTIC_USE_AGENT_STORE`` is not set. If the model is
        not on the CPU.

    Examples
    --------
    A training loop. With our rendezvous, torchrun starts a rank that has died again, and it joins::

        steps = ResilientStep(total=24, model=model, optimizer=optimizer)
        for number in steps.numbers(1000):
            for micro in steps.micro_batches():
                inputs, targets = data(number, micro.index)
                (loss_of(model(inputs), targets) * micro.weight).backward()
            if steps.due:
                optimizer.step()
            optimizer.zero_grad()
        steps.close()
    """

    def __init__(
        self, total: int, model: nn.Module, optimizer: torch.optim.Optimizer, *,
        also: Mapping[str, Stateful] | None = None,
        least: int = 1, timeout_s: float = 600.0, first_step: int = 0, bucket_bytes: int = BUCKET_BYTES,
    ) -> None:  # fmt: skip
        environ = os.environ
        world = int(environ.get("WORLD_SIZE", "1"))
        if total < world:
            raise ValueError(f"{total} micro-batches leave some of {world} ranks without any")
        if environ.get("TORCHELASTIC_USE_AGENT_STORE", "") != "True":
            raise TransitionError("the ranks need a store that outlives each of them, as torchrun's own is")
        if others := {one.device.type for one in (*model.parameters(), *model.buffers())} - {"cpu"}:
            raise TransitionError(f"the model is on {', '.join(sorted(others))}, and this was never run on NCCL")
        self.total, self.model, self.optimizer, self._timeout_s = total, model, optimizer, timeout_s
        self._also = dict(also or {})
        self._first, self.number, self.due = first_step, _STATELESS, False
        self.lost_s: list[float] = []
        """Seconds of each transition, from the failed call to the next collective call."""
        self._base, self._done, self._waits, self._begun = 0, set[int](), False, False
        self._futile, self._why = 0, ""
        self._launcher, self._transition = Launcher(environ), Transition()
        self._buckets = Buckets([*model.parameters()], bucket_bytes)
        self._members = Members(
            int(environ["RANK"]), world, (environ["MASTER_ADDR"], int(environ["MASTER_PORT"])), least, timeout_s
        )
        self._group: Group | None = None
        with self._resilient():
            self._launcher.offer()
            if self._members.is_newcomer:
                self._members.join()
            if not self._regroup():
                self._recover(admit=False)
        self._transition = Transition()

    @contextmanager
    def _resilient(self) -> Iterator[None]:
        """Where the job cannot go on in these processes, the launcher has to start all again."""
        try:
            yield
        except TransitionError:
            self._launcher.withdraw()
            raise

    @property
    def is_first(self) -> bool:
        """Whether this is the first of the ranks that take part: the one to save and to print."""
        return self._members.place == 0

    def numbers(self, stop: int) -> Iterator[int]:
        """The numbers of the steps up to `stop`; a newcomer's first is that at which it joined."""
        while self.number < stop:
            yield self.number

    def micro_batches(self) -> Iterator[MicroBatch]:
        """This rank's micro-batches of the step; afterwards ``grad`` holds the gradients of the global batch.

        Where `due` is False afterwards, the state of another rank was taken, which has made this step already.

        Raises
        ------
        TransitionError
            If the job cannot go on in these processes.
        RuntimeError
            If the micro-batches of this step were not all taken, one at a time. If a call between the ranks cannot be
            made.
        """
        if self._begun:
            raise RuntimeError("micro_batches() was left before its end: take them one at a time, to the end")
        self._begun, self.due = True, False
        with self._resilient():
            if self._waits:
                self._recover(admit=True)
            number = self.number
            self._launcher.number(number)
            while self.number == number:
                yield from self._rest()
                if self._finished():
                    break
                self._recover(admit=False)
        self.due = self.number == number
        self._report(number)
        if self.due:
            self._buckets.write()
            self._advance(number + 1)
        else:
            self._buckets.drop_gradients()
        self._begun = False

    def _rest(self) -> Iterator[MicroBatch]:
        """What this rank has to compute, as far as all now know."""
        left = [] if self._buckets.are_reduced else [index for index in self._owned() if index not in self._done]
        for place, index in enumerate(left):
            if place == len(left) - 1:
                self._buckets.arm()
            again, began_s = self._members.name != self._first_owner(index), time.monotonic()
            self._buckets.is_open = True
            try:
                yield MicroBatch(index, 1.0 / self.total, again)
            finally:
                self._buckets.is_open = False
            self._done.add(index)
            if again:
                self._transition.spend("again", began_s)

    def close(self) -> None:
        """Leave the job at its end. Safe twice."""
        self._launcher.withdraw()
        self._members.close()
        self._buckets.close()
        if self._group is not None:
            self._group.leave()

    # -- who computes what

    def _owners(self) -> dict[int, str]:
        """The member that computes each micro-batch, after all epochs since the step began."""
        history = self._members.history
        first = history[self._base]
        owners = {index: first[index * len(first) // self.total] for index in range(self.total)}
        for epoch in range(self._base + 1, self._members.epoch.number + 1):
            there = history[epoch]
            lost = [index for index, name in owners.items() if name not in there]
            owners.update({index: there[place % len(there)] for place, index in enumerate(lost)})
        return owners

    def _owned(self) -> list[int]:
        return [index for index, name in self._owners().items() if name == self._members.name]

    def _first_owner(self, index: int) -> str:
        first = self._members.history[self._base]
        return first[index * len(first) // self.total]

    # -- together

    def _finished(self) -> bool:
        """Whether all members have all buckets; only then does any of them step."""
        assert self._group is not None
        try:
            self._buckets.finish()
            word = torch.tensor([self._members.joins() if self._members.place == 0 else 0])
            self._group.finish(self._group.reduce(word, highest=True))
        except Broken as error:
            self._why = str(error) or self._why
            return False
        self._waits = int(word) > self._members.epoch.joins
        return True

    def _advance(self, number: int) -> None:
        self.number, self._base, self._futile = number, self._members.epoch.number, 0
        self._done.clear()
        self._buckets.clear()

    def _recover(self, *, admit: bool) -> None:
        """Go on with those who are left, and with newcomers where `admit`."""
        began_s, before = time.monotonic(), self._members.epoch.members
        regrouped = False
        while not regrouped:
            if self._group is not None:
                self._group.leave()
            if self._futile >= FUTILE:
                raise TransitionError(f"a call fails again and again, and all ranks are there: {self._why}")
            last, number, left_s = set(self._members.epoch.members), self.number, time.monotonic()
            try:
                self._members.next_epoch(admit=admit)
            except RuntimeError as error:
                raise TransitionError(f"the ranks' store does not answer: {error}") from error
            self._transition.spend("members", left_s)
            regrouped = self._regroup()
            is_futile = last == set(self._members.epoch.members) and self.number <= number
            self._futile = self._futile + 1 if is_futile else 0
        self._waits = False
        self.lost_s.append(time.monotonic() - began_s)
        self._say(before, self.lost_s[-1])

    def _say(self, before: Sequence[str], seconds: float) -> None:
        now = self._members.epoch.members
        gone, come = set(before) - set(now), set(now) - set(before)
        self._transition.gone |= gone
        self._transition.come |= come
        if self._members.place:
            return
        what = [f"rank {ranks(names)} {verb}" for names, verb in ((gone, "is gone"), (come, "has joined")) if names]
        log.warning(
            "trainwarden: %s; step %d goes on with %d ranks after %.2f s",
            " and ".join(what) or "a call between the ranks failed", self.number, len(now), seconds,
        )  # fmt: skip

    def _report(self, number: int) -> None:
        """Have the launcher know of the transition that this step has survived, if there was one."""
        done, self._transition = self._transition, Transition()
        if self._members.place or not (done.gone or done.come):
            return
        # A newcomer that died within its first step is not there.
        gone, come, left = ranks(done.gone), ranks(done.come - done.gone), len(self._members.epoch.members)
        said = [f"rank {gone} died, and {left} ranks finished step {number}"] if gone else []
        source = f" with the state of rank {done.source}" if done.source else ""
        said += [f"rank {come} joined at step {number}{source}"] if come else []
        fields = {
            "step": number, "ranks": left, **({"gone": gone} if gone else {}), **({"joined": come} if come else {}),
            **({"source": done.source} if come and done.source else {}),
            **{f"{phase}_s": round(seconds, 4) for phase, seconds in done.phases.items()},
        }  # fmt: skip
        self._launcher.report(self._members.name, self._members.epoch.number, "; ".join(said), fields)

    def _regroup(self) -> bool:
        """Form the group of this epoch, and have all its members come to one state; False if one is gone again."""
        epoch, members, began_s = self._members.epoch, self._members, time.monotonic()
        try:
            store = torch.distributed.PrefixStore(f"group/{epoch.number}/", members.client(CONNECT_S))
            made = _process_group(store, members.place, len(epoch.members), min(self._timeout_s, CONNECT_S))
        except RuntimeError as error:
            self._why = str(error)
            log.warning("trainwarden: the ranks do not reach each other: %s", error)
            return False
        self._group = Group(made, members.is_over, self._timeout_s)
        self._buckets.use(self._group)
        self._transition.spend("group", began_s)
        began_s = time.monotonic()
        try:
            self._agree()
        except Broken as error:
            self._why = str(error) or self._why
            return False
        finally:
            self._transition.spend("state", began_s)
        return True

    def _agree(self) -> None:
        """Give the newest state to those who are behind, and each reduced bucket to all.

        Raises
        ------
        Broken
            If a member is gone meanwhile.
        TransitionError
            If no member holds the state of the job.
        """
        said = self._statuses()
        leader = max(range(len(said)), key=lambda place: (said[place].number, not said[place].newcomer, -place))
        if said[leader].number == _STATELESS and said[leader].newcomer:
            raise TransitionError("no rank is left that holds the state of the job")
        number = said[leader].first if said[leader].number == _STATELESS else said[leader].number
        behind = [place for place, one in enumerate(said) if one.number < number and place != leader]
        self._hand_over(leader, behind)
        if behind:
            self._transition.source = ranks([self._members.epoch.members[leader]])
        if self._members.place in behind:
            self._done.clear()
            self._buckets.clear()
            self._buckets.drop_gradients()
        self.number = number
        bases = [one.base for one in said if one.busy and one.number == number]
        self._base = bases[0] if bases else self._members.epoch.number
        self._share_reduced([one.reduced if one.number == number else (False,) * len(one.reduced) for one in said])

    def _statuses(self) -> list[Status]:
        members, group, buckets = self._members, self._group, self._buckets
        assert group is not None
        own = Status(
            self.number, self._base, bool(self._done or buckets.reduced), members.is_newcomer, self._first,
            tuple(bucket in buckets.reduced for bucket in range(len(buckets))),
        )  # fmt: skip
        row = torch.tensor([own.number + 1, *map(int, own[1:5]), *map(int, own.reduced)])
        table = torch.zeros(len(members.epoch.members), len(row), dtype=torch.int64)
        table[members.place] = row
        group.finish(group.reduce(table))
        return [
            Status(row[0] - 1, row[1], bool(row[2]), bool(row[3]), row[4], tuple(map(bool, row[5:])))
            for row in table.tolist()
        ]  # fmt: skip

    def _share_reduced(self, have: Sequence[Sequence[bool]]) -> None:
        for bucket in range(len(self._buckets)):
            holders = [place for place, reduced in enumerate(have) if reduced[bucket]]
            if 0 < len(holders) < len(have):
                known = self._buckets.reduced.get(bucket)
                flat = self._buckets.flat(bucket) if known is None or self._members.place != holders[0] else known
                self._spread(flat, holders[0])
                self._buckets.reduced.setdefault(bucket, flat)

    def _spread(self, tensor: Tensor, source: int) -> None:
        assert self._group is not None
        self._group.spread(tensor, source)

    def _hand_over(self, leader: int, behind: Sequence[int]) -> None:
        """Model, optimizer and what describes them, without pickle."""
        if not behind:
            return
        place = self._members.place
        state = State()
        if place == leader:
            state = collect(self.model, self.optimizer, {name: one.state_dict() for name, one in self._also.items()})
        tree, shapes = self._describe(state, leader)
        tensors = state.tensors or self._places()
        for name, (kind, shape) in shapes.items():
            own = tensors.get(name)
            one = torch.empty(shape, dtype=getattr(torch, kind)) if own is None else own.contiguous()
            self._spread(one, leader)
            if place in behind:
                tensors[name] = one
        if place in behind:
            self._adopt(decode(tree, tensors))

    def _describe(self, state: State, leader: int) -> Any:
        """The leader's JSON, and type and shape of its tensors."""
        shapes = {name: [str(one.dtype).removeprefix("torch."), list(one.shape)] for name, one in state.tensors.items()}
        text = torch.frombuffer(bytearray(json.dumps([state.tree, shapes]).encode()), dtype=torch.uint8)
        length = torch.tensor([len(text)])
        self._spread(length, leader)
        text = text if self._members.place == leader else torch.zeros(int(length), dtype=torch.uint8)
        self._spread(text, leader)
        return json.loads(bytes(text.tolist()))

    def _places(self) -> dict[str, Tensor]:
        """Where a newcomer receives the model: in the model. Another may have to lead if the sender dies meanwhile."""
        if not self._members.is_newcomer or self.number != _STATELESS:
            return {}
        return {f"model/{name}": one.detach() for name, one in model_tensors(self.model).items()}

    def _adopt(self, found: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, one in model_tensors(self.model).items():
                one.copy_(found["model"][name])
        self.optimizer.load_state_dict(found["optimizer"])
        for name, other in self._also.items():
            other.load_state_dict(found["extra"][name])


def _process_group(store: Any, place: int, size: int, connect_s: float) -> Any:
    """A group that torch's table does not know, so that it can go without the others' consent.

    Its constructor waits as long as its calls would by themselves; ours have a time-out of their own.
    """
    return torch.distributed.ProcessGroupGloo(store, place, size, timedelta(seconds=connect_s))
