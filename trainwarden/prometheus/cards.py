"""Which GPUs of a node are told of no more.

A GPU is its UUID, whatever its index is by now and however it is divided.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from trainwarden.prometheus.exporters import Who


@dataclass(slots=True)
class _Card:
    who: Who
    first_s: float
    last_s: float

    def replaces(self, other: _Card) -> bool:
        """Whether it came later into the place of `other`."""
        return self.who.device == other.who.device and self.first_s > other.last_s


def lost_cards(told: Iterable[tuple[Who, float, float]], patience_s: float) -> list[tuple[Who, float]]:
    """GPUs of one node of which nothing has come for `patience_s` while others went on, each with its last stamp.

    Parameters
    ----------
    told : iterable of tuples
        First and last stamp of what was told of each GPU or MIG instance.

    Examples
    --------
    >>> lost_cards([(Who("n", "0", "A"), 0.0, 900.0), (Who("n", "1", "B"), 0.0, 300.0)], 60.0)
    [(Who(node='n', device='1', uuid='B'), 300.0)]
    >>> lost_cards([(Who("n", "0/1", "A/1"), 0.0, 300.0), (Who("n", "0/2", "A/2"), 400.0, 900.0)], 60.0)
    []
    """
    cards: dict[str, _Card] = {}
    for one, first_s, last_s in sorted(told, key=lambda one: one[2]):
        who = one.card
        card = cards.setdefault(who.uuid or who.device, _Card(who, first_s, last_s))
        card.who, card.first_s, card.last_s = who, min(card.first_s, first_s), last_s
    newest_s = max((card.last_s for card in cards.values()), default=0.0)
    silent = [card for card in cards.values() if newest_s - card.last_s > patience_s]
    return [(card.who, card.last_s) for card in silent if not any(one.replaces(card) for one in cards.values())]
