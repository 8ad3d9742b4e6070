"""Whatever is played in whatever order, the file says what a plain model of the plug-in says."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

import pytest

from tests.nccl_player import Player
from trainwarden.collectors.nccl_profiler import read

EVERY, WARM_UP = 4, 16


@dataclass
class Made:
    """A call that was to be stamped, and what the device has said of it."""

    function: str
    ordinal: int
    seq: int
    step: int | None
    peer: int | None
    channels: int
    begun: int = 0
    lasted: list[int] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return 0 < self.begun <= len(self.lasted) and len(self.lasted) >= self.channels


@dataclass
class Comm:
    identity: int
    enqueued: int = 0
    stamped: int = 0
    peers: dict[tuple[str, int], int] = field(default_factory=dict)
    made: list[Made] = field(default_factory=list)

    @property
    def counts(self) -> tuple[int, int | None, int | None]:
        if not self.enqueued or self.stamped != self.enqueued:
            return self.enqueued, None, None
        started = max((one.ordinal for one in self.made if one.begun), default=0)
        return self.enqueued, started, max((one.ordinal for one in self.made if one.done), default=0)


class Model:
    """Plays at random, and keeps what is to be read."""

    def __init__(self, player: Player, seed: int) -> None:
        self.player, self.draw = player, random.Random(seed)
        self.alive: dict[int, Comm] = {}
        self.all: list[Comm] = []
        self.records: list[Made] = []
        self.open: list[tuple[int, int, Made]] = []  # comm, handle, call: kernels that may begin
        self.running: list[tuple[int, int, Made, int]] = []  # handle, start, call, channel
        self.step: int | None = None
        self.warm, self.on = 0, False

    def play(self, times: int) -> None:
        moves = [self.begin, self.advance, self.end, *[self.call] * 8, *[self.kernel] * 8, *[self.stop] * 8]
        for _ in range(times):
            self.draw.choice(moves)()

    def begin(self) -> None:
        place = self.draw.randrange(6)
        if place not in self.alive:
            self.alive[place] = comm = Comm(identity=len(self.all) + 1)
            self.all.append(comm)
            self.player.init(place, comm.identity)
            self.warm, self.on = WARM_UP, True

    def end(self) -> None:
        """Its kernels are never heard of again, as far as that communicator's counts go."""
        if self.alive and self.draw.random() < 0.3:
            place = self.draw.choice(list(self.alive))
            self.player.ask("end", place)
            gone = self.alive.pop(place)
            self.open = [one for one in self.open if one[2] not in gone.made]

    def advance(self) -> None:
        if self.alive:
            self.step = (self.step if self.step is not None else -1) + 1
            self.player.ask("step", self.step)

    def call(self) -> None:
        if not self.alive:
            return
        place = self.draw.choice(list(self.alive))
        comm, channels, pair = self.alive[place], self.draw.randint(1, 3), self.draw.random() < 0.3
        sampled = self.warm > 0 or (self.step is not None and self.step % EVERY == 0)
        stamped, told = self.on, self.on and sampled
        seq, peer, function = comm.enqueued, None, "ReduceScatter"
        self.warm = max(0, self.warm - 1)
        ahead = self.step is not None and (self.step % EVERY == 0 or (self.step + 1) % EVERY == 0)
        self.on = self.warm > 0 or ahead  # which NCCL reads before the next call
        if pair:
            peer, function = self.draw.randrange(3), self.draw.choice(["Send", "Recv"])
            seq = comm.peers.get((function, peer), 0)
            comm.peers[function, peer] = seq + 1
            handle, _ = self.player.ask("p2p", place, function, 64, "ncclFloat16", peer, channels)
        else:
            handle, asked = self.player.ask("coll", place, function, seq, 64, "ncclFloat16", channels)
            assert bool(asked) == stamped
        comm.enqueued += 1
        assert bool(handle) == stamped
        if told:
            made = Made(function, comm.enqueued, seq, self.step, peer, channels)
            comm.stamped = comm.enqueued
            comm.made.append(made)
            self.records.append(made)
            self.open.append((place, handle, made))

    def kernel(self) -> None:
        """On a channel of its own, as those of one channel follow each other."""
        free = sorted(set(range(64)) - {channel for *_, channel in self.running})
        if self.open and free:
            place, handle, made = one = self.draw.choice(self.open)
            start, channel = self.player.now(), self.draw.choice(free)
            (kernel,) = self.player.ask("begin", place, handle, channel, start)
            assert kernel
            made.begun += 1
            self.running.append((kernel, start, made, channel))
            if made.begun == made.channels:
                self.open.remove(one)

    def stop(self) -> None:
        if self.running:
            kernel, start, made, _ = self.running.pop(self.draw.randrange(len(self.running)))
            stop = self.player.now()
            self.player.ask("stop", kernel, stop)
            made.lasted.append(stop - start)


@pytest.mark.parametrize("seed", range(12))
def test_the_file_says_what_the_model_says(built, tmp_path, seed):
    with Player(built, tmp_path, TRAINWARDEN_NCCL_EVERY=str(EVERY)) as player:
        model = Model(player, seed)
        model.begin()
        model.play(600)
        descriptor = os.open(player.path, os.O_RDONLY)
        header = read.read_header(descriptor)
        assert header is not None
        comms, calls = read.read_comms(descriptor), read.read_calls(descriptor, 0, header)
        os.close(descriptor)
    assert [int(comm.id, 16) for comm in comms] == [comm.identity for comm in model.all]
    for told, comm in zip(comms, model.all, strict=True):
        assert told.closed == (comm not in model.alive.values())
        assert told.trusted
        if not told.closed:
            assert (told.enqueued, told.started, told.finished) == comm.counts
        assert told.enqueued == comm.enqueued
    assert len(calls) == len(model.records)
    for call, made in zip(calls.values(), model.records, strict=True):
        assert (call.function, call.seq, call.step, call.peer) == (made.function, made.seq, made.step, made.peer)
        assert call.size_bytes == 128
        assert call.device_ns == (max(made.lasted) if made.done else None)
    assert header.counts.stale == header.counts.orphans == header.counts.foreign == 0
