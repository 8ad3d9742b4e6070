"""One link measured in both directions, over a process group of its two ranks alone.

In one group of all ranks a peer that hangs breaks every connection: gloo takes a time-out for the end of all of them.
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from queue import Empty, SimpleQueue
from typing import Any

import torch
import torch.distributed as dist

from trainwarden.actions.validation.participants import LIMITS_OF_A_LINK
from trainwarden.actions.validation.results import RankReport
from trainwarden.actions.validation.running import processor
from trainwarden.actions.validation.running.store import StoreGone, connect

MESSAGE_BYTES = 1 << 20
GREETING_BYTES = 1 << 16  # little, as a slow link takes its time for that too
LEAST_REPEATS, MOST_REPEATS = 2, 50
_ON_DEVICE_FACTOR = 64  # a message of 64 MiB fills a link of 400 Gbit/s for 1.3 ms
_MORE, _NO_MORE = 1.0, 0.0


class Link:
    """The link of `rank` to `peer`; the smaller rank sends first.

    Each message is announced and answered, so the sender's time is that of the whole way and of nothing else.

    Raises
    ------
    RuntimeError
        If the peer does not come within `limit_s`.
    """

    def __init__(self, store: Any, rank: int, peer: int, device: torch.device, limit_s: float) -> None:
        self._other = int(rank < peer)
        self._limit_s = limit_s
        self._device = device
        patience = timedelta(seconds=limit_s)
        if device.type == "cpu":
            self._group = dist.ProcessGroupGloo(store, 1 - self._other, 2, patience)
        else:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = patience
            self._group = dist.ProcessGroupNCCL(store, 1 - self._other, 2, options)
        self.message_bytes = MESSAGE_BYTES * (1 if device.type == "cpu" else _ON_DEVICE_FACTOR)
        self._message = torch.ones(self.message_bytes, dtype=torch.uint8, device=device)
        self._word = torch.zeros(1, dtype=torch.float64, device=device)

    def measure(self, budget_s: float) -> tuple[list[float], list[float]]:
        """Seconds of each message that this rank sent, and how long both ends waited for a processor meanwhile."""
        self._greet()
        if self._other == 1:
            times = self._send_all(budget_s)
            self._receive_all()
        else:
            self._receive_all()
            times = self._send_all(budget_s)
        return times

    def close(self) -> None:
        """Let the connection go: NCCL's kernels would wait for a peer that hangs for ever."""
        if self._device.type != "cpu":
            self._group.abort()

    def _greet(self) -> None:
        """A first message each way, which connects the ends and takes memory for what they send."""
        for sender in (1, 0):
            if sender == self._other:
                self._done(self._group.send([self._message[:GREETING_BYTES]], self._other, 2))
            else:
                self._done(self._group.recv([self._message[:GREETING_BYTES]], self._other, 2))

    def _send_all(self, budget_s: float) -> tuple[list[float], list[float]]:
        walls: list[float] = []
        waits: list[float] = []
        until_s = time.monotonic() + budget_s
        while len(walls) < LEAST_REPEATS or (len(walls) < MOST_REPEATS and time.monotonic() < until_s):
            self._say(_MORE)
            wall_s, wait_s = self._one()
            walls.append(wall_s)
            waits.append(wait_s)
        self._say(_NO_MORE)
        return walls, waits

    def _one(self) -> tuple[float, float]:
        own_s, start_s = processor.waited_s(), time.perf_counter()
        self._done(self._group.send([self._message], self._other, 0))
        theirs_s = self._hear()
        wall_s = time.perf_counter() - start_s
        return wall_s, processor.waited_s() - own_s + theirs_s

    def _receive_all(self) -> None:
        while self._hear() == _MORE:
            own_s = processor.waited_s()
            self._done(self._group.recv([self._message], self._other, 0))
            self._say(processor.waited_s() - own_s)

    def _say(self, word: float) -> None:
        self._word.fill_(word)
        self._done(self._group.send([self._word], self._other, 1))

    def _hear(self) -> float:
        self._done(self._group.recv([self._word], self._other, 1))
        return float(self._word.item())

    def _done(self, work: Any) -> None:
        """Wait until `work` has ended on its device; NCCL's own wait would only order its stream."""
        if self._device.type == "cpu":
            work.wait()
            return
        until_s = time.monotonic() + self._limit_s
        while not work.is_completed():
            if time.monotonic() > until_s:
                raise TimeoutError(f"nothing came through within {self._limit_s:.0f} s")
            time.sleep(0)


def measure(
    address: tuple[str, int],
    prefix: str,
    ends: tuple[int, int],
    device: torch.device,
    *,
    budget_s: float,
    limit_s: float,
) -> RankReport:
    """What `ends[0]`, this rank, has to report of its link to `ends[1]`; within thrice `limit_s` in any case.

    Parameters
    ----------
    address, prefix
        The store by which both ends find each other, and their names there; over a connection of its own, as gloo keeps
        one busy for as long as it tries to connect: four times its time-out where packets vanish.
    """
    rank, peer = ends
    answer: SimpleQueue[RankReport] = SimpleQueue()

    def work() -> None:
        try:
            store = dist.PrefixStore(prefix, connect(*address).store)
            link = Link(store, rank, peer, device, limit_s)
            try:
                walls, waits = link.measure(budget_s)
            finally:
                link.close()
        except (RuntimeError, TimeoutError, OSError, StoreGone) as error:
            answer.put(RankReport(rank=rank, peer=peer, error=(str(error).splitlines() or [""])[0][:200]))
        else:
            sent = link.message_bytes
            answer.put(RankReport(rank=rank, peer=peer, message_bytes=sent, wall_s=tuple(walls), waited_s=tuple(waits)))

    threading.Thread(target=work, daemon=True).start()
    try:
        return answer.get(timeout=(LIMITS_OF_A_LINK - 0.5) * limit_s)
    except Empty:  # the thread is left to gloo: nothing ends it
        return RankReport(rank=rank, peer=peer, error=f"no end within {limit_s:.0f} s")
