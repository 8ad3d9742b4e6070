"""Cards as fabrics describe them: the host and its device in one name."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

# `host device`, or `host/device/port` as ibdiagnet writes it.
_CARD: Final = re.compile(
    r"(\S{1,64}?)[ /]((?:mlx|bnxt|hfi|irdma)[0-9a-z_]{1,16}|HCA-[0-9]{1,2}|U[0-9]{1,2})(?:/P?[0-9]{1,3})?$"
)


class Card(NamedTuple):
    """A card and the node that it is in."""

    node: str
    device: str


def card_of(name: str) -> Card | None:
    """The card that a fabric calls `name`; None if that is a switch.

    Examples
    --------
    >>> card_of("gpu01 mlx5_0"), card_of("gpu01/mlx5_3/P1"), card_of("MF0;leaf01:MQM9700/U1"), card_of("leaf1")
    (Card(node='gpu01', device='mlx5_0'), Card(node='gpu01', device='mlx5_3'), None, None)
    """
    match = _CARD.match(name)
    return None if match is None or ";" in match[1] or ":" in match[1] else Card(match[1], match[2])
