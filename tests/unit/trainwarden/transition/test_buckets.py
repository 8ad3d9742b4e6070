"""What becomes of calls that fail."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trainwarden.transition.buckets import Broken, Buckets, Group


class Stuck:
    """A process group whose calls never end, or cannot begin."""

    def __init__(self, error: str = "") -> None:
        self._error = error

    def allreduce(self, *_: object) -> Any:
        if self._error:
            raise RuntimeError(self._error)
        return self

    def is_completed(self) -> bool:
        return False


def test_a_broken_group_is_waited_for_once_for_all_buckets() -> None:
    asked: list[bool] = []
    buckets = Buckets([torch.nn.Parameter(torch.zeros(1)) for _ in range(50)], bucket_bytes=4)
    buckets.use(Group(Stuck(), lambda: asked.append(True) or True, 60.0))
    with pytest.raises(Broken):
        buckets.finish()
    assert len(asked) == 1


def test_a_call_that_cannot_begin_raises_where_all_are_there() -> None:
    with pytest.raises(RuntimeError, match="Invalid scalar type"):
        Group(Stuck("Invalid scalar type"), lambda: False, 60.0).reduce(torch.zeros(1))


def test_a_call_that_cannot_begin_as_a_member_is_gone_is_a_broken_one() -> None:
    group = Group(Stuck("Connection closed by peer"), lambda: True, 60.0)
    with pytest.raises(Broken):
        group.finish(group.reduce(torch.zeros(1)))
