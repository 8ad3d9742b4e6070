"""Which process of a rank is the one that trains: a child inherits the rank's environment, and may itself run torch.

The trainer is whoever trains. A process begun after the last sign of life of a trainer that is gone follows it at
once: that is a restart. Whoever begins beside a living trainer has to make steps while that one makes none, and not a
few; a child of it has to make more than it ever made. Nothing is lost by waiting: steps stay in the hook's file until
they are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from trainwarden import hook
from trainwarden.collectors.iterations.hook_source import HookSource

TAKE_OVER_STEPS: Final = 20  # of one process while the other makes none
_START_SLACK_S: Final = 2.0  # the kernel tells starts by a boot time of whole seconds
_GENERATIONS: Final = 16  # between a trainer and its furthest child that is looked for


class _Seat:
    """The trainer of one rank, and what the others had done when it last made a step."""

    def __init__(self, source: HookSource, header: hook.Header) -> None:
        self.source = source
        self.recorded = header.recorded
        self.others: dict[str, int] = {}
        source.trains = True
        source.trained = source.trained or header.recorded > 0

    def note(self, header: hook.Header) -> None:
        """A step of its own makes the others begin to count anew."""
        self.source.trained = self.source.trained or header.recorded > 0
        if header.recorded != self.recorded:
            self.recorded = header.recorded
            self.others.clear()


class Trainers:
    """One process for each rank.

    Parameters
    ----------
    proc : Path
        The kernel's process folder.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._seats: dict[int, _Seat] = {}

    def update(self, sources: Iterable[HookSource]) -> list[HookSource]:
        """Look at everybody once; those that have become trainers now, in the order in which they did."""
        by_rank: dict[int, list[tuple[hook.Header, HookSource]]] = {}
        for source in sources:
            if source.header is not None:
                by_rank.setdefault(source.header.rank, []).append((source.header, source))
        self._seats = {rank: seat for rank, seat in self._seats.items() if rank in by_rank}
        seated: list[HookSource] = []
        for rank, found in by_rank.items():
            found.sort(key=lambda one: (one[0].start_monotonic_s, one[0].pid))
            seat = self._seats.get(rank)
            if seat is None or all(source is not seat.source for _, source in found):
                # Of an earlier agent's choice, else whoever was there first.
                header, source = next((one for one in found if one[1].trains), found[0])
                seat = self._seats[rank] = _Seat(source, header)
                seated.append(source)
            assert seat.source.header is not None  # it is one of `found`
            seat.note(seat.source.header)
            for header, source in found:
                if source is not seat.source and self._takes_over(seat, source, header):
                    seat.source.trains = False
                    seat = self._seats[rank] = _Seat(source, header)
                    seated.append(source)
        return seated

    def of_rank(self, rank: int) -> HookSource:
        """The trainer of `rank`, which has one."""
        return self._seats[rank].source

    def _takes_over(self, seat: _Seat, source: HookSource, new: hook.Header) -> bool:
        old = seat.source.header
        assert old is not None  # as above
        if new.attempt != old.attempt:  # our own launcher counts them
            return new.attempt > old.attempt
        # A container that begins anew is another namespace; of the old one nothing can be seen from outside of both.
        lost = not seat.source.kernel.state and new.pid_namespace != old.pid_namespace
        if (seat.source.gone_since_s is not None or lost) and not source.trained:
            last_sign_s = max(old.phase_since_s, old.step_end_s or 0.0)
            if new.start_s + _START_SLACK_S >= last_sign_s:
                return True
        if not new.recorded:
            return False
        if not source.trained and new.start_monotonic_s < old.start_monotonic_s:
            return True  # it was there first, and begins only now
        made = new.recorded - seat.others.setdefault(source.name, new.recorded if old.recorded else 0)
        if made < TAKE_OVER_STEPS or hook.SOURCES.index(new.source) < hook.SOURCES.index(old.source):
            return False
        if new.recorded > old.recorded or seat.source.gone_since_s is not None:
            return True
        return not self._is_child(source, seat.source)

    def _is_child(self, source: HookSource, of: HookSource) -> bool:
        """Whether the one descends from the other, as far as the kernel knows."""
        pid, parent = source.kernel.pid, of.kernel.pid
        if pid is None or parent is None:
            return False
        for _ in range(_GENERATIONS):
            try:
                text = (self._proc / str(pid) / "stat").read_bytes()
                pid = int(text[text.rfind(b")") + 2 :].split()[1])
            except (OSError, ValueError, IndexError):
                return False
            if pid in (0, 1, parent):
                return pid == parent
        return False
