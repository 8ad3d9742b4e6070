"""Format: `lspci -vv`, in which devices say what their PCIe link can do and what it does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from trainwarden.errors import DataError
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.verdicts import Verdict, found_of_verdicts

_DEVICE: Final = re.compile(
    r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]) ([A-Z0-9][^:\n]{2,80}): ([^\n]{1,300})$"
)
_LINK: Final = re.compile(r"\s{1,16}Lnk(Cap|Sta):[^\n]{0,80}?Speed ([0-9.]{1,6})GT/s[^\n]{0,40}?Width x([0-9]{1,2})")
# Classes whose links a training run depends on; an empty slot or a bridge is narrow by design.
_CLASSES: Final = ("3D controller", "Display controller", "VGA compatible controller", "Processing accelerators",
                   "Infiniband controller", "Ethernet controller", "Non-Volatile memory controller")  # fmt: skip
_GPUS: Final = _CLASSES[:4]
_LEAST_PEERS: Final = 3


class _Card(NamedTuple):
    address: str
    is_gpu: bool
    model: str
    most: int
    width: int


class PciList:
    """Devices of one model are compared: the link of an idle GPU slows down, and never narrows."""

    name = "pci list"

    def sniff(self, name: str, head: str) -> float:
        """By the line of a device and the state of a link below it."""
        del name
        lines = head[:40_000].split("\n")
        listed = lines and _DEVICE.match(next((line for line in lines if line.strip()), "")) is not None
        return SURE if listed and any(_LINK.match(line) for line in lines) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        verdicts = list(_verdicts(list(_cards(source.text()))))
        if not verdicts:
            raise DataError(
                f"{source.name}: fewer than {_LEAST_PEERS + 1} devices of one model tell the state of their links "
                "(as root: `lspci -vv`); give `nvidia-smi -q`"
            )
        return found_of_verdicts(source, "pci list", verdicts)


def _cards(text: str) -> Iterator[_Card]:
    device: re.Match[str] | None = None
    most = 0
    for line in text.split("\n"):
        if (begins := _DEVICE.match(line.rstrip())) is not None:
            device, most = (begins if begins[3] in _CLASSES else None), 0
        elif device is not None and (link := _LINK.match(line)) is not None:
            if link[1] == "Cap":
                most = int(link[3])
            elif most:
                address = f"{device[1] or '0000'}:{device[2]}".lower()
                yield _Card(address, device[3] in _GPUS, device[4].strip(), most, int(link[3]))
                device = None


def _verdicts(cards: list[_Card]) -> Iterator[Verdict]:
    for card in cards:
        whole = sum(one.model == card.model and one.width == one.most for one in cards if one is not card)
        narrow = sum(one.model == card.model and one.width < one.most for one in cards)
        if card.width == card.most:
            if whole >= _LEAST_PEERS:
                yield Verdict(card.address, "", None)
        elif card.width > 0 and whole >= _LEAST_PEERS and narrow * 2 < whole:
            words = f"x{card.width} of x{card.most}, while {whole} others of its model have all lanes"
            yield Verdict(card.address, "pcie", f"{words}: {card.model[:80]}")
