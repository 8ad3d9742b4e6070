"""Watched calls: counted, and telling the stage of a pipeline."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.hook_doubles import HandClock, backward, header_of, steps_of, wait
from trainwarden import hook
from trainwarden.hook import Hook
from trainwarden.hook.layout import RECEIVE, SEND
from trainwarden.hook.watches.calls import watched_call


def test_calls_are_counted_when_they_begin(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    inside: list[hook.Header] = []
    watched_call(target.waits, target.calls, lambda group: inside.append(header_of(target)), 8)(None)
    assert (inside[0].calls, inside[0].phase) == (1, "wait")


def test_waits_for_pipeline_neighbours_do_not_end_steps(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    for _ in range(6):
        wait(target, clock, 1, call=RECEIVE)
        backward(target, clock)
        wait(target, clock, 1, call=SEND)
    assert steps_of(target) == []


@pytest.mark.parametrize(
    ("before", "after", "role"),
    [
        ((SEND, SEND, RECEIVE), (RECEIVE,), "p2p:first"),
        ((RECEIVE, SEND), (SEND,), "p2p:middle"),
        ((RECEIVE, RECEIVE), (SEND,), "p2p:last"),
    ],
)
def test_the_stage_of_a_pipeline_is_told_by_its_calls(
    make: Callable[..., Hook], clock: HandClock, before: tuple[int, ...], after: tuple[int, ...], role: str
) -> None:
    target = make()
    for _ in range(2):
        for call in before:
            wait(target, clock, 1, call)
        backward(target, clock)
        for call in after:
            wait(target, clock, 1, call)
        target.ends.optimizer_stepped()
    assert header_of(target).role == role
