"""Training steps of simulated ranks: who computes how long, who waits where, how long the kernels of NCCL run.

A rank computes and comes to a call; the call ends when its last rank has come and the bytes have moved. Nothing is put
into what one rank measures but what it could measure: the time from its own coming to the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.simulated_ranks.layout import Layout
from trainwarden.detectors.calls.functions import RECV, SEND, code_of
from trainwarden.detectors.calls.joined import Calls

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
BYTES = {"tp": 1 << 26, "dp": 1 << 28, "pp": 1 << 24, "ep": 1 << 21, "world": 4}
BYTES_PER_S = {"tp": 2e11, "dp": 4e10, "pp": 2e10, "ep": 2e10, "world": 4e10}
LATENCY_S = 3e-5


@dataclass
class Fault:
    """Something that is wrong from a step on: a rank that computes longer, or links that take longer."""

    kind: str = ""  # "late", "dp" (one group), "pair" (a rank and its successor), "nic" (of a rank), "fabric"
    place: int = 0
    share: float = 0.0
    from_step: int = 0


@dataclass
class Ranks:
    """A job of simulated ranks; each call of `step` gives the calls of one more sampled step.

    `noise` is the coefficient of variation of a rank's computing, of whole steps and of their parts, and of transfers;
    `drift` how far ranks and the whole job wander. `unstamped` kinds of groups have no durations (captured graphs).
    Tokens go to experts and come back in sends and receives of all with all, as NCCL makes all-to-alls: those of one
    launch have the stamps of their channel, which is one for all of them if `one_channel`, else one for each. `routing`
    is the coefficient of variation of the tokens that a rank's experts get, `hot` of what they get in all steps alike.
    """

    layout: Layout
    seed: int = 0
    noise: float = 0.03
    drift: float = 0.01
    faults: tuple[Fault, ...] = ()
    work_s: float = 0.8
    micro_batches: int = 0  # as many as stages
    layers: int = 2
    buckets: int = 3
    unstamped: tuple[str, ...] = ()
    one_channel: bool = True
    routing: float = 0.0
    hot: float = 0.0
    random: np.random.Generator = field(init=False)
    number: int = 0

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)
        ranks = self.layout.ranks
        self.micro_batches = self.micro_batches or max(2, self.layout.pp)
        self._own = self.random.lognormal(0.0, 0.005, ranks)
        self._turn = self.random.uniform(0.0, 2 * np.pi, ranks)
        self._at_s = np.zeros(ranks)
        self._hot = self.random.lognormal(0.0, self.hot, ranks)
        self._rows: list[tuple[Any, ...]] = []

    def step(self) -> tuple[Calls, float]:
        """The calls of the next sampled step, and how long it took."""
        self._rows, begun_s = [], float(self._at_s.mean())
        self._factor = self._own * self._pace() * self._late() * self.random.lognormal(0.0, self.noise, self._own.size)
        part_s = self.work_s / (3 * self.micro_batches)
        for _ in range(self.micro_batches):
            self._pass(part_s, forward=True)
        for _ in range(self.micro_batches):
            self._pass(2 * part_s, forward=False)
        for bucket in range(self.buckets):
            self._together("dp", code_of("reduce_scatter") if bucket % 2 == 0 else code_of("all_gather"))
        self._together("world", code_of("all_reduce"))
        self.number += 1
        took_s, calls = float(self._at_s.mean()) - begun_s, self._calls()
        self._at_s -= self._at_s.min()
        return calls, took_s

    # -- what ranks do ---------------------------------------------------------------------------------------

    def _pace(self) -> Floats:
        """Slow wandering: of each rank by itself, and of all together three times as far."""
        turn = 2 * np.pi * self.number / 90.0
        return (1.0 + self.drift * np.sin(turn + self._turn)) * (1.0 + 3 * self.drift * np.sin(turn / 2))

    def _late(self) -> Floats:
        out = np.ones(self._own.size)
        for fault in self.faults:
            if fault.kind == "late" and self.number >= fault.from_step:
                out[fault.place] += fault.share
        return out

    def _pass(self, part_s: float, *, forward: bool) -> None:
        """One micro-batch through all stages: receive, compute with the tensor parallel group, send on."""
        stages = self.layout.grid.reshape(self.layout.pp, -1)
        order = stages if forward else stages[::-1]
        for place, ranks in enumerate(order):
            if place:
                self._pair(order[place - 1], ranks)
            for _ in range(self.layers):
                if self.layout.ep > 1:
                    self._through_experts(ranks, part_s / self.layers / 2.0)
                noise = self.random.lognormal(0.0, self.noise, ranks.size)
                left_s = part_s / self.layers / (2.0 if self.layout.ep > 1 else 1.0)
                self._at_s[ranks] += left_s * self._factor[ranks] * noise
                if self.layout.tp > 1:
                    first = int(ranks[0]) // self.layout.tp
                    part = slice(first, first + ranks.size // self.layout.tp)
                    self._together("tp", code_of("all_reduce"), part)

    def _through_experts(self, ranks: Ints, part_s: float) -> None:
        """Tokens to their experts, these, and back: what an expert's rank gets it computes and sends back."""
        first = int(ranks[0]) // self.layout.ep
        every = first + np.arange(ranks.size // self.layout.ep)
        tokens = self._hot[ranks] * self.random.lognormal(0.0, self.routing, ranks.size)
        share = tokens[np.searchsorted(ranks, self.layout.groups["ep"][every])]
        share /= share.mean(axis=1, keepdims=True)
        self._exchange(every, np.repeat(share[:, None, :], self.layout.ep, axis=1))
        noise = self.random.lognormal(0.0, self.noise, share.shape)
        groups = self.layout.groups["ep"][every]
        self._at_s[groups] += part_s * self._factor[groups] * noise * share
        self._exchange(every, np.repeat(share[:, :, None], self.layout.ep, axis=2))

    def _exchange(self, every: Ints, share: Floats) -> None:
        """All ranks of expert groups send to all, themselves too: `share` of the usual bytes [groups, from, to]."""
        groups = self.layout.groups["ep"][every]
        size, comm = self.layout.ep, np.repeat(self.layout.first["ep"] + every, self.layout.ep**2)
        call_bytes = (BYTES["ep"] * share).astype(np.int64)
        took_s = LATENCY_S + call_bytes.sum(axis=2).max(axis=1)[:, None, None] / BYTES_PER_S["ep"] * (
            self.random.lognormal(0.0, self.noise, (len(every), 1, 1))
        )
        at_s = self._at_s[groups]
        met_s = np.maximum(at_s[:, :, None], at_s[:, None, :]) + took_s
        ends_s = met_s.max(axis=2)
        device_s = (np.repeat(ends_s[:, :, None], size, axis=2) if self.one_channel else met_s) - at_s[:, :, None]
        source, target = np.repeat(groups, size, axis=1).ravel(), np.tile(groups, (1, size)).ravel()
        self._note("ep", source, comm, SEND, device_s.ravel(), target, call_bytes.ravel())
        self._note("ep", source, comm, RECV, device_s.ravel(), target, call_bytes.transpose(0, 2, 1).ravel())
        self._at_s[groups] = ends_s

    def _together(self, kind: str, function: int, part: slice = slice(None)) -> None:
        """One collective call of groups of `kind`."""
        groups = self.layout.groups.get(kind)
        if groups is None:
            return
        every = np.arange(len(groups))[part]
        groups = groups[part]
        transfer_s = self._transfer_s(kind, len(every), 1.0) * self._slow(kind, every, groups)
        ends_s = self._at_s[groups].max(axis=1) + transfer_s
        device_s = ends_s[:, None] - self._at_s[groups]
        self._at_s[groups] = ends_s[:, None]
        comm = np.repeat(self.layout.first[kind] + every, groups.shape[1])
        self._note(kind, groups.ravel(), comm, function, device_s.ravel(), None)

    def _pair(self, source: Ints, target: Ints) -> None:
        """What each of `source` sends to its neighbour of `target`."""
        chain = source % (self.layout.dp * self.layout.tp)
        transfer_s = self._transfer_s("pp", source.size, 1.0) * self._slow_pairs(source, target)
        ends_s = np.maximum(self._at_s[source], self._at_s[target]) + transfer_s
        comm = self.layout.first["pp"] + chain
        self._note("pp", source, comm, SEND, ends_s - self._at_s[source], target)
        self._note("pp", target, comm, RECV, ends_s - self._at_s[target], source)
        self._at_s[source] = self._at_s[target] = ends_s

    def _transfer_s(self, kind: str, size: int, times: float) -> Floats:
        usual_s = LATENCY_S + times * BYTES[kind] / BYTES_PER_S[kind]
        return usual_s * self.random.lognormal(0.0, self.noise, size)

    def _slow(self, kind: str, every: Ints, groups: Ints) -> Floats:
        out = np.ones(len(every))
        for fault in self.faults:
            if self.number < fault.from_step or kind != "dp":
                continue
            if fault.kind == "dp":
                out[every == fault.place] += fault.share
            elif fault.kind == "nic":
                out[(groups == fault.place).any(axis=1)] += fault.share
            elif fault.kind == "fabric":
                out += fault.share
        return out

    def _slow_pairs(self, source: Ints, target: Ints) -> Floats:
        out = np.ones(source.size)
        for fault in self.faults:
            if self.number >= fault.from_step and fault.kind in {"pair", "nic", "fabric"}:
                apart = self.layout.dp * self.layout.tp
                low, high = np.minimum(source, target), np.maximum(source, target)
                hit = (low == fault.place) & (high == fault.place + apart)
                if fault.kind == "nic":
                    hit = (source == fault.place) | (target == fault.place)
                out[hit | (fault.kind == "fabric")] += fault.share
        return out

    # -- what they tell --------------------------------------------------------------------------------------

    def _note(
        self,
        kind: str,
        ranks: Ints,
        comm: Ints,
        function: int,
        device_s: Floats,
        peer: Ints | None,
        call_bytes: Ints | None = None,
    ) -> None:
        if kind in self.unstamped:
            device_s = np.full(device_s.size, np.nan)
        every = np.full(ranks.size, BYTES[kind]) if call_bytes is None else call_bytes
        self._rows.append((ranks, comm, function, every, device_s, peer))

    def _calls(self) -> Calls:
        """Everything noted, numbered by rank, communicator and function, as the plug-in does: by the peer too."""
        sizes = [row[0].size for row in self._rows]
        column, comm = np.concatenate([row[0] for row in self._rows]), np.concatenate([row[1] for row in self._rows])
        function = np.repeat([row[2] for row in self._rows], sizes)
        peer = np.concatenate([np.full(row[0].size, -1) if row[5] is None else row[5] for row in self._rows])
        key = ((comm * 16 + function) * self.layout.ranks + column) * (self.layout.ranks + 1) + peer + 1
        order = np.argsort(key, kind="stable")
        begins = np.flatnonzero(np.append(True, np.diff(key[order]) != 0))
        count = np.diff(np.append(begins, key.size))
        seq = np.empty(key.size, dtype=np.int64)
        seq[order] = np.arange(key.size) - np.repeat(begins, count)
        seq += self.number * 4096
        return Calls(
            column, comm, function, seq, np.concatenate([row[3] for row in self._rows]),
            np.concatenate([row[4] for row in self._rows]), peer,
        )  # fmt: skip
