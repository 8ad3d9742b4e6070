"""Which connection has to go where more are open than there are places: those whose callers are not known yet.

A port that others reach is reached by strangers. They have places of their own, so that they take none from callers
who have shown who they are; so many from one address, so that one machine takes none from another; and each only for
so long. Where places run out, the one that goes is of the address that holds the most, and silent before others are.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

import msgspec

_NETWORK_BITS: Final = 64  # of an IPv6 address: who has one has as many as they like in that network (RFC 6177)

Key = TypeVar("Key", bound=Hashable)


class _Place(msgspec.Struct):
    origin: str
    since_s: float
    silent: bool = True


class Strangers(Generic[Key]):
    """Keeps count of connections whose callers are not known; closing them is for the caller to do.

    Parameters
    ----------
    most : int
        Places in all.
    most_of_one : int
        Places of one address.
    silent_s, longest_s : float
        How long one may be silent, and how long it may stay at all, in seconds.
    """

    def __init__(self, most: int, most_of_one: int, *, silent_s: float, longest_s: float) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._silent_s, self._longest_s = silent_s, longest_s
        self._places: dict[Key, _Place] = {}  # oldest first
        self._held: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._places)

    def enter(self, key: Key, address: str, now_s: float) -> Key | None:
        """Give `key` a place; who has to go for it, if somebody has."""
        origin = origin_of(address)
        self._places[key] = _Place(origin, now_s)
        self._held[origin] += 1
        if self._held[origin] > self._most_of_one:
            return self._first({origin}, but=key)
        if len(self._places) > self._most:
            most = max(self._held.values())
            return self._first({one for one, held in self._held.items() if held == most}, but=key)
        return None

    def speaks(self, key: Key) -> None:
        """Something came from `key`."""
        if (place := self._places.get(key)) is not None:
            place.silent = False

    def leave(self, key: Key) -> None:
        """`key` is gone, or its caller is known now."""
        if (place := self._places.pop(key, None)) is not None:
            self._held[place.origin] -= 1
            if not self._held[place.origin]:
                del self._held[place.origin]

    def overdue(self, now_s: float) -> list[Key]:
        """Whose time is over."""
        return [
            key
            for key, place in self._places.items()
            if now_s - place.since_s > (self._silent_s if place.silent else self._longest_s)
        ]

    def first(self) -> Key | None:
        """Who has to go if one has to; None if there is nobody."""
        if not self._places:
            return None
        most = max(self._held.values())
        return self._first({origin for origin, held in self._held.items() if held == most})

    def _first(self, origins: set[str], but: Key | None = None) -> Key | None:
        """The oldest of `origins`, of the silent ones where there are any."""
        found = [(key, place.silent) for key, place in self._places.items() if place.origin in origins and key != but]
        return next((key for key, silent in found if silent), found[0][0] if found else None)


def origin_of(address: str) -> str:
    """What counts as one address.

    Examples
    --------
    >>> origin_of("10.0.0.1"), origin_of("::ffff:10.0.0.1"), origin_of("2001:db8::1:2:3:4%eth0")
    ('10.0.0.1', '10.0.0.1', '2001:db8::')
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, _NETWORK_BITS), strict=False).network_address)
