"""Which signals a watched command gets from us, and which it has had already: real signals to this process."""

from __future__ import annotations

import os
import queue
import signal
from typing import Any, cast

from trainwarden.cli.run.watched import PassedOn

LIMIT_S = 30.0


class Command:
    """A command that notes what it is sent."""

    def __init__(self) -> None:
        self.sent: queue.Queue[int] = queue.Queue()

    def poll(self) -> None:
        return None

    def send_signal(self, number: int) -> None:
        self.sent.put(number)

    def next(self) -> int:
        return self.sent.get(timeout=LIMIT_S)


class Output:
    """An output whose relay has heard of each signal in `heard`, once."""

    def __init__(self, *heard: int) -> None:
        self.heard = list(heard)

    def has_come_there(self, number: int) -> bool:
        if number in self.heard:
            self.heard.remove(number)
            return True
        return False


def begin(signals: PassedOn, output: Output) -> tuple[Command, list[int]]:
    command, stopped = Command(), list[int]()
    signals.begin(cast("Any", command), cast("Any", output), stopped.append)
    return command, stopped


def test_a_stop_of_the_whole_group_just_before_the_command_is_there_reaches_it_once() -> None:
    """The relay was there to hear it, the command was not: it was left alone."""
    output = Output(signal.SIGTERM)
    with PassedOn() as signals:
        os.kill(os.getpid(), signal.SIGTERM)
        command, stopped = begin(signals, output)
        assert command.next() == signal.SIGTERM
        assert set(stopped) == {signal.SIGTERM}
        os.kill(os.getpid(), signal.SIGUSR1)  # all before it is passed on by now
        assert command.next() == signal.SIGUSR1
        assert not output.heard, "the next one alone would be taken for one of the group"


def test_a_signal_that_asks_for_no_end_is_none_of_a_later_command() -> None:
    """A command that has just begun has no handler: it would die of it."""
    with PassedOn() as signals:
        os.kill(os.getpid(), signal.SIGUSR1)
        command, stopped = begin(signals, Output())
        os.kill(os.getpid(), signal.SIGTERM)
        assert command.next() == signal.SIGTERM
        assert stopped == [signal.SIGTERM]
        assert command.sent.empty()


def test_a_stop_of_the_whole_group_is_not_passed_on_once_the_command_is_there() -> None:
    output = Output(signal.SIGTERM)
    with PassedOn() as signals:
        command, stopped = begin(signals, output)
        os.kill(os.getpid(), signal.SIGTERM)
        while output.heard:
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert command.next() == signal.SIGUSR1
        assert stopped == [signal.SIGTERM]
