"""Which answers of a group a member may still use, on the library's own coordinator that knows no broker."""

from __future__ import annotations

import time

import pytest
from kafka.coordinator.base import Generation
from kafka.errors import CoordinatorNotAvailableError

from trainwarden.bus.kafka.membership import Coordinator

SESSION_S = 6.0


def member(*, age_s: float) -> Coordinator:
    """A member whom its group has answered `age_s` ago, between two polls."""
    made = object.__new__(Coordinator)
    made.config, made.coordinator_id = {"session_timeout_ms": SESSION_S * 1000}, None
    made._generation = Generation(7, "m", "range")
    made._answer, made.answered_s = (made._generation, b"shares"), time.monotonic() - age_s
    return made


def asked(member: Coordinator) -> bytes:
    with pytest.raises(StopIteration) as ended:
        member._do_join_and_sync_async().send(None)
    return ended.value.value


def test_an_answer_is_used_once() -> None:
    one = member(age_s=0.1)
    assert asked(one) == b"shares"
    with pytest.raises(CoordinatorNotAvailableError):  # it asks its group anew
        asked(one)


def test_an_answer_that_is_old_or_of_another_generation_is_not_used() -> None:
    other = member(age_s=0.1)
    other._generation = Generation(7, "m", "range")
    for one in (member(age_s=SESSION_S / 2 + 0.1), other):
        with pytest.raises(CoordinatorNotAvailableError):
            asked(one)
