"""The validation's own store, never the job's: who has come, orders to ranks, and what they answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final

import msgspec
import torch.distributed as dist

from trainwarden.actions.validation.results import NodeReport, RankCommand, RankInfo, RankReport, Validation

LOOK_S: Final = 0.01
CONNECT_S: Final = 30.0
ANSWER_S: Final = 10.0
"""The store answers at once, or its host is gone."""


class StoreGone(Exception):
    """The host of the store cannot be reached any more."""


class Board:
    """What is written on the store; each key once, by one process.

    Parameters
    ----------
    store : torch.distributed.TCPStore
    """

    def __init__(self, store: Any) -> None:
        self.store = store

    def come(self, member: RankInfo) -> bool:
        """Whether `member` is the first that says it is this rank."""
        first = self.store.add(f"came/{member.rank}", 1) == 1
        if first:
            self._put(f"joined/{member.rank}", member)
        return bool(first)

    def next_order(self, number: int, within_s: float) -> RankCommand | None:
        """The order of that number; None if there is none within so long.

        Raises
        ------
        StoreGone
            If the host of the store is gone.
        """
        try:
            self.store.wait([f"order/{number}"], timedelta(seconds=within_s))
        except dist.DistNetworkError as error:
            raise StoreGone(str(error)) from error
        except dist.DistStoreError:
            return None
        return self.order(number)

    def order(self, number: int) -> RankCommand | None:
        """The order of that number, if it was given."""
        found = self.found([f"order/{number}"])
        return msgspec.json.decode(found[f"order/{number}"], type=RankCommand) if found else None

    def report(self, number: int, report: RankReport) -> None:
        """What a rank answers to order `number`."""
        self._put(f"report/{number}/{report.rank}", report)

    def tell_start(self, rank: int, node: str) -> None:
        """That the process of `rank` has been started on `node`."""
        self.store.set(f"started/{rank}", node)

    def tell_end(self, rank: int, how: str) -> None:
        """That the process of `rank` has ended, by the node that started it."""
        self.store.set(f"ended/{rank}", how)

    def tell_node(self, number: int, report: NodeReport) -> None:
        """What disk and memory of node `number` answered."""
        self._put(f"node/{number}", report)

    def tell_result(self, result: Validation) -> None:
        """How it ended, for the other nodes."""
        self._put("result", result)

    def result(self) -> Validation | None:
        """How it ended; None while it lasts."""
        found = self.found(["result"])
        return msgspec.json.decode(found["result"], type=Validation) if found else None

    def found(self, keys: Sequence[str]) -> Mapping[str, bytes]:
        """Those of `keys` that are written.

        Raises
        ------
        StoreGone
            If the host of the store is gone.
        """
        try:
            return {key: self.store.get(key) for key in keys if self.store.check([key])}
        except dist.DistError as error:
            raise StoreGone(str(error)) from error

    def _put(self, key: str, value: msgspec.Struct) -> None:
        self.store.set(key, msgspec.json.encode(value))


class Limited:
    """A store each of whose answers has a limit: torch waits for ever, and deaf to signals, for a host that hangs.

    Raises
    ------
    StoreGone
        By any call that has no answer within `ANSWER_S`.
    """

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._ask, getattr(self._store, name))

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        answer: SimpleQueue[Any] = SimpleQueue()

        def work() -> None:
            try:
                answer.put(call(*arguments))
            except RuntimeError as error:
                answer.put(error)

        threading.Thread(target=work, daemon=True).start()
        try:
            said = answer.get(timeout=ANSWER_S)
        except Empty:  # the thread is left to torch: nothing ends it
            raise StoreGone(f"no answer within {ANSWER_S:.0f} s") from None
        if isinstance(said, RuntimeError):
            raise said
        return said


class StoreTalk:
    """`trainwarden.actions.validation.participants.RankChannel` over the store; `pump` is called while it waits."""

    def __init__(
        self, board: Board, world_size: int, nodes: int, pump: Callable[[], None], *, join_s: float, nodes_s: float
    ) -> None:
        self._board, self._world_size, self._nodes, self._pump = board, world_size, nodes, pump
        self._join_s, self._nodes_s = join_s, nodes_s
        self._ended: dict[int, str] = {}

    def join(self) -> Mapping[int, RankInfo]:
        """See `RankChannel.join`."""
        said = self._wait("joined", range(self._world_size), self._join_s)
        self._nodes_until_s = time.monotonic() + self._nodes_s  # a node begins its checks before its ranks come
        return {rank: msgspec.json.decode(text, type=RankInfo) for rank, text in said.items()}

    def places(self) -> Mapping[int, str]:
        """See `RankChannel.places`."""
        keys = {f"started/{rank}": rank for rank in range(self._world_size)}
        return {keys[key]: text.decode() for key, text in self._board.found([*keys]).items()}

    def ask(self, order: RankCommand) -> Mapping[int, RankReport]:
        """See `RankChannel.ask`."""
        self._board.store.set(f"order/{order.number}", msgspec.json.encode(order))
        said = self._wait(f"report/{order.number}", order.ranks, order.limit_s)
        return {rank: msgspec.json.decode(text, type=RankReport) for rank, text in said.items()}

    def ended(self) -> Mapping[int, str]:
        """See `RankChannel.ended`."""
        self._look_for_ends(range(self._world_size))
        return self._ended

    def nodes(self) -> Sequence[NodeReport]:
        """See `RankChannel.nodes`: those that are there once the checks of all nodes must have ended."""
        left_s = max(0.0, self._nodes_until_s - time.monotonic())
        said = self._wait("node", range(self._nodes), left_s, of_ranks=False)
        return [msgspec.json.decode(text, type=NodeReport) for _, text in sorted(said.items())]

    def _wait(self, under: str, whom: Iterable[int], limit_s: float, *, of_ranks: bool = True) -> dict[int, bytes]:
        """What each of `whom` writes under a key, as far as it comes in time; the dead are not waited for."""
        said: dict[int, bytes] = {}
        waiting = set(whom)
        until_s = time.monotonic() + limit_s
        while waiting:
            self._pump()
            keys = {f"{under}/{number}": number for number in sorted(waiting)}
            new = {keys[key]: text for key, text in self._board.found([*keys]).items()}
            said |= new
            waiting -= new.keys()
            if of_ranks and waiting:
                self._look_for_ends(waiting)
                # Who answered and ended then has answered: read once more before it is given up.
                waiting -= {rank for rank in waiting & self._ended.keys() if not self._board.found([f"{under}/{rank}"])}
            if time.monotonic() > until_s:
                return said
            if waiting and not new:
                time.sleep(LOOK_S)
        return said

    def _look_for_ends(self, ranks: Iterable[int]) -> None:
        keys = {f"ended/{rank}": rank for rank in ranks if rank not in self._ended}
        self._ended |= {keys[key]: text.decode() for key, text in self._board.found([*keys]).items()}


def connect(address: str, port: int, *, within_s: float = CONNECT_S) -> Board:
    """The board on the store at `address`.

    Raises
    ------
    StoreGone
        If nobody answers within so long.
    """
    try:
        store = dist.TCPStore(address, port, None, False, timedelta(seconds=within_s), wait_for_workers=False)
    except dist.DistError as error:
        raise StoreGone(f"nobody answers at {address}:{port} ({str(error).splitlines()[0]})") from error
    store.set_timeout(timedelta(seconds=ANSWER_S))
    return Board(store)
