"""Format: counters of ports as ibdiagnet leaves them: `ibdiagnet2.pm` and the tables of `ibdiagnet2.db_csv`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from trainwarden.errors import DataError
from trainwarden.formats.fabric.ib_errors import Port, found_of_ports
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source

_TABLE: Final = re.compile(r"(?m)^START_(NODES|PM_INFO|PM_DELTA|LINKS)\s{0,4}$")
_PORT: Final = re.compile(
    r"(?m)^Port=([0-9]{1,4}) Lid=0x[0-9a-f]{1,8} GUID=0x[0-9a-f]{1,16}(?: Device=[0-9]{1,8})?"
    r"(?: Port Name=([^\n]{1,160}))?\s{0,4}$"
)
_COUNTER: Final = re.compile(r"([a-z][a-z0-9_]{3,60})=(0x[0-9a-f]{1,20}|[0-9]{1,20})\s{0,4}$")
_OF_PORT: Final = re.compile(r"/P?[0-9]{1,3}$")
# What ibdiagnet2.pm calls the counters that `ibqueryerrors` and the tables call otherwise.
_NAMES: Final = {
    "link_down_counter": "LinkDownedCounter", "link_error_recovery_counter": "LinkErrorRecoveryCounter",
    "symbol_error_counter": "SymbolErrorCounter", "port_rcv_errors": "PortRcvErrors",
    "local_link_integrity_errors": "LocalLinkIntegrityErrors",
    "excessive_buffer_errors": "ExcessiveBufferOverrunErrors",
    "excessive_buffer_overrun_errors": "ExcessiveBufferOverrunErrors",
}  # fmt: skip


class Ibdiagnet:
    """Ports with all their counters, most of them sound."""

    name = "fabric counters"

    def sniff(self, name: str, head: str) -> float:
        """By the line that begins a port, or a table."""
        del name
        if "GUID" not in head:
            return NEVER
        is_text = _PORT.search(head) is not None and any(map(_COUNTER.match, head.split("\n")))
        return SURE if is_text or (_TABLE.search(head) is not None and "NodeGUID" in head) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        text = source.text()
        ports = list(_of_text(text) if _PORT.search(text) else _of_tables(text))
        if not ports:
            raise DataError(f"{source.name}: no port's counters are in it (`ibdiagnet2.pm`, or PM_INFO of the tables)")
        return found_of_ports(source, ports, len({port.owner for port in ports}))


def _of_text(text: str) -> Iterator[Port]:
    port: Port | None = None
    for line in text.split("\n"):
        if (begins := _PORT.match(line)) is not None:
            if port is not None and port.counts:
                yield port
            name = (begins[2] or "a port without a name").strip().strip('"')
            port = Port(_OF_PORT.sub("", name), begins[1], {}, "")
        elif port is not None and (match := _COUNTER.match(line)) is not None and match[1] in _NAMES:
            port.counts[_NAMES[match[1]]] = int(match[2], 0)
    if port is not None and port.counts:
        yield port


def _of_tables(text: str) -> Iterator[Port]:
    """Ports of the newest table of counters, with the names that the table of nodes gives them."""
    tables = {match[1]: _table(text, match) for match in _TABLE.finditer(text)}
    names = {
        row.get("NodeGUID", ""): " ".join(row.get("NodeDesc", "").strip('"').split()) for row in tables.get("NODES", [])
    }
    far: dict[tuple[str, str], str] = {}
    for row in tables.get("LINKS", []):
        ends = [(row.get(f"NodeGuid{end}", ""), row.get(f"PortNum{end}", "")) for end in (1, 2)]
        far |= {ends[0]: names.get(ends[1][0], ""), ends[1]: names.get(ends[0][0], "")}
    for row in tables.get("PM_DELTA") or tables.get("PM_INFO") or []:
        counts = {name: int(cell) for name, cell in row.items() if name in _NAMES.values() and cell.isdecimal()}
        guid, number = row.get("NodeGUID", ""), row.get("PortNumber", row.get("PortNum", ""))
        if counts:
            yield Port(names.get(guid) or guid, number, counts, far.get((guid, number), ""))


def _table(text: str, match: re.Match[str]) -> list[dict[str, str]]:
    """Rows of a table by the names of its columns; one that is cut short ends with its last whole row."""
    end = text.find(f"END_{match[1]}", match.end())
    lines = text[match.end() : end if end >= 0 else len(text)].strip().split("\n")
    header = [cell.strip() for cell in lines[0].split(",")]
    rows = ([cell.strip() for cell in line.split(",")] for line in lines[1:])
    return [dict(zip(header, row, strict=True)) for row in rows if len(row) == len(header)]
