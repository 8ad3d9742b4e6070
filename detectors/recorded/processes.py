"""Processes that work through recorded jobs side by side, and end with whoever started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

from trainwarden.errors import DataError

Task = TypeVar("Task")
Answer = TypeVar("Answer")


@contextmanager
def processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """`count` processes of this machine, gone when the block is left, at once when it is left by an error.

    They end as well when this process is killed: each waits for tasks on a pipe that it could write to itself, and
    would never see the end of it.

    Raises
    ------
    DataError
        If one of them was ended from outside.
    """
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent)
    try:
        yield pool
    except BaseException as error:
        for child in set(multiprocessing.active_children()) - before:
            child.terminate()
        if isinstance(error, BrokenProcessPool):
            why = "a process that worked on it was ended from outside, most likely for want of memory"
            raise DataError(why) from error
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def submit_all(
    pool: ProcessPoolExecutor, function: Callable[[Task], Answer], tasks: Iterable[Task]
) -> list[Future[Answer]]:
    """Give `pool` all `tasks`; while its processes start, where Ctrl-C would end in a traceback of theirs, it waits."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return [pool.submit(function, task) for task in tasks]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end_with_parent() -> None:
    threading.Thread(target=_follow_parent, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
