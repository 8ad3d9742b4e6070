"""By which signals a command is asked to end in order."""

from __future__ import annotations

import signal


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGINT, SIGTERM and, where it is not ignored as under nohup, SIGHUP: the terminal was closed.

    Examples
    --------
    >>> stop_signals()[:2]
    (<Signals.SIGINT: 2>, <Signals.SIGTERM: 15>)
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGINT, signal.SIGTERM, *(() if ignored else (signal.SIGHUP,)))
