"""Signals that are none of ours, as a command passes them on."""

from __future__ import annotations

import signal

from trainwarden.torchrun.signals import foreign_signals


class ForeignSignals:
    """Foreign signals that have come to this process since somebody asked, for a loop that passes them on."""

    def __init__(self) -> None:
        self._come: list[int] = []
        numbers = foreign_signals()
        for number in numbers:
            signal.signal(number, lambda come, _frame: self._come.append(come))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # whoever started us may have held them back

    def pop_new(self) -> list[int]:
        """Each number once, as the kernel does with those that wait."""
        come: dict[int, None] = {}
        while self._come:
            come[self._come.pop(0)] = None
        return list(come)
