"""Who of a job's agents is there, by what this service has heard of them itself; times are of its own clock alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import inf
from typing import Final, Literal

from trainwarden.actions.launchers.torchrun.messages import Beat, Hello

GRACE_S: Final = 0.3  # a connection that has closed is no death: an agent that lives is back long before
Absence = Literal["closed", "silent"]


class Member:
    """One agent, by what it has said last."""

    __slots__ = ("beat", "beat_s", "closed_s", "host", "last_seen_s", "life", "node", "place", "since_s")

    def __init__(self, hello: Hello, now_s: float) -> None:
        self.life, self.node, self.host, self.beat = hello.life, hello.node, hello.host, hello.beat
        self.place, self.last_seen_s = hello.place, now_s
        self.since_s = self.beat_s = now_s  # when it came, and when it has really said something
        self.closed_s: float | None = None


def seat_order(member: Member) -> tuple[float, list[tuple[str, int]], str]:
    """A key by which new nodes are seated: those with a place of their own by that, then by name, n2 before n10."""
    named = inf if member.place is None else float(member.place)
    parts = re.findall(r"([^0-9]*)([0-9]{1,18})", f"{member.node}0")
    return named, [(text, int(digits)) for text, digits in parts], member.life


class Members:
    """All agents that were heard here.

    Parameters
    ----------
    lost_after_s : float
        An agent that is silent for so long is lost.
    """

    def __init__(self, lost_after_s: float, now_s: float) -> None:
        self.lost_after_s = lost_after_s
        self._by_life: dict[str, Member] = {}
        self._patient_until_s = now_s + lost_after_s
        self._looked_s = now_s

    def get(self, life: str) -> Member | None:
        """The agent `life`, if it was heard here."""
        return self._by_life.get(life)

    def all(self) -> Iterable[Member]:
        """Everybody, lost ones too."""
        return self._by_life.values()

    def add(self, hello: Hello, now_s: float) -> None:
        """An agent has connected, perhaps again."""
        member, before = Member(hello, now_s), self._by_life.get(hello.life)
        member.since_s = now_s if before is None else before.since_s
        self._by_life[hello.life] = member

    def update(self, life: str, beat: Beat, now_s: float) -> None:
        """An agent has said something."""
        if (member := self._by_life.get(life)) is not None:
            member.beat, member.beat_s, member.closed_s = beat, now_s, None
            member.last_seen_s = float("-inf") if beat.moves else now_s  # another service may hear it from now on

    def closed(self, life: str, now_s: float) -> None:
        """Its connection has ended, by its own end."""
        member = self._by_life.get(life)
        if member is not None and member.closed_s is None and not member.beat.moves:
            member.closed_s = now_s

    def be_patient(self, now_s: float) -> None:
        """From now on everybody has a full time-out: this service was not there, or has learned of others just now."""
        self._patient_until_s = now_s + self.lost_after_s
        for member in self._by_life.values():
            member.last_seen_s = member.last_seen_s if member.beat.moves else max(member.last_seen_s, now_s)

    def look(self, now_s: float) -> None:
        """Say that time goes on. Where it has jumped, this process stood still and has missed what agents said."""
        if now_s - self._looked_s > self.lost_after_s / 2:
            self.be_patient(now_s)
        self._looked_s = now_s

    def absence(self, life: str, now_s: float) -> Absence | None:
        """Why `life` is lost: its process has ended for certain (``closed``), or nothing is heard of it; else None."""
        patient = now_s < self._patient_until_s
        member = self._by_life.get(life)
        if member is None:
            return None if patient else "silent"
        if member.closed_s is not None:
            return None if patient or now_s - member.closed_s < GRACE_S else "closed"
        return "silent" if now_s - member.last_seen_s >= self.lost_after_s else None

    def living(self, now_s: float) -> list[Member]:
        """Who is there and has not said that it leaves."""
        return [one for one in self._by_life.values() if not one.beat.left and self.absence(one.life, now_s) is None]

    def is_succeeded(self, life: str, node: str, now_s: float) -> bool:
        """Whether another torchrun was started on its node since it was heard last: then that process is gone."""
        member = self._by_life.get(life)
        since_s = float("-inf") if member is None else member.beat_s
        return any(one.node == node and one.life != life and one.since_s > since_s for one in self.living(now_s))

    def forget_lost(self, keep: Iterable[str], now_s: float) -> None:
        """Drop whoever has left or lost its connection for good and is not of `keep`; silent ones may speak again."""
        kept = set(keep)
        gone = [one.life for one in self._by_life.values() if one.life not in kept and self._is_gone(one, now_s)]
        for life in gone:
            del self._by_life[life]

    def _is_gone(self, member: Member, now_s: float) -> bool:
        return member.beat.left or (member.closed_s is not None and self.absence(member.life, now_s) is not None)
