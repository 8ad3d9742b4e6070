"""Numbers and moments as people read them."""

from __future__ import annotations

import signal
from datetime import UTC, datetime
from typing import Final

EPOCH_FROM_S: Final = 1e8  # 1973: below, a time is counted from the start of a recording

NO_CHECKPOINTS: Final = (
    "no checkpoint folder is named (launch --checkpoints DIR): "
    "nobody verifies that a restart goes on from the newest checkpoint"
)


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun.

    Examples
    --------
    >>> counted(1, "incident"), counted(0, "incident"), counted(2, "log entry", "log entries")
    ('1 incident', '0 incidents', '2 log entries')
    """
    return f"{number} {one if number == 1 else many or one + 's'}"


def moment(time_s: float) -> str:
    """A point in time: a date in UTC, or seconds of a recording that counts from its start.

    Examples
    --------
    >>> moment(1795280400.25), moment(802.0), moment(5400.5)
    ('2026-11-21 17:00:00Z', '802 s', '5400.5 s')
    """
    if time_s < EPOCH_FROM_S:
        return f"{round(time_s, 3):.12g} s"
    return f"{datetime.fromtimestamp(time_s, UTC):%Y-%m-%d %H:%M:%S}Z"


def how_ended(returncode: int) -> str:
    """How a process ended, by what `subprocess` says of it.

    Examples
    --------
    >>> how_ended(3), how_ended(-9), how_ended(-40)
    ('ended with exit code 3', 'was killed by SIGKILL', 'was killed by signal 40')
    """
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:  # a real-time one, or none of this system
        return f"was killed by signal {-returncode}"
