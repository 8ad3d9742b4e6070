"""Format: results of nccl-tests and rccl-tests, which check what each collective left in the buffers.

Values that came out wrong are told. Bandwidths have no baseline, and are judged between pairs of nodes alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

from trainwarden.errors import DataError
from trainwarden.formats.collected import nodes_in
from trainwarden.formats.fabric.node_pairs import runs_of
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.verdicts import Verdict, found_of_verdicts

_HEADER: Final = re.compile(r"(?m)^#\s{1,40}size\s{1,40}count[ ()a-z]{0,40}\s{1,40}type\s")
# The last line of a run that was validated (nccl-tests, common.cu); FAILED where a value was out of bounds.
_TOTAL: Final = re.compile(r"^(?:\S{0,40}\s?)?# Out of bounds values : ([0-9]{1,12}) (OK|FAILED)\s*$")
_STARTED: Final = re.compile(r"# nThread [0-9]")
_OWN: Final = re.compile(r"\s{0,80}(?:#|[0-9]{1,16}\s{1,20}[0-9]{1,16}\s)")
_LOOKED_AT: Final = 200  # lines
_LEAST_SHARE: Final = 0.8
_UNJUDGED: Final = (
    "results of nccl-tests, a benchmark: bandwidths, which nothing says what they should be; "
    "give the training's own record"
)


class NcclTests:
    """One run or several; a sum that validated says nothing of a training run."""

    name = "nccl tests"

    def sniff(self, name: str, head: str) -> float:
        """By the header of its table."""
        del name
        if _HEADER.search(head) is None:
            return NEVER
        lines = [line for line in head.split("\n")[:_LOOKED_AT] if line.strip()]
        own = sum(_OWN.match(line) is not None or len(nodes_in(line[:200])) == 2 for line in lines)
        return SURE if own >= _LEAST_SHARE * len(lines) else NEVER  # NCCL's own log tells more than the table in it

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        text = source.text()
        verdicts = list(_verdicts(text))
        if any(one.failed for one in verdicts):
            return found_of_verdicts(source, "nccl tests", verdicts)
        pairs = list(runs_of(text, source.name, source.path.stat().st_mtime))
        if not pairs:
            raise DataError(f"{source.name}: {_UNJUDGED}")
        return Found(rows=len(pairs), pairs=pairs)


def _verdicts(text: str) -> Iterator[Verdict]:
    """A verdict for each run; which rank or link spoilt a value the results do not say."""
    wrong = 0
    for line in text.split("\n"):
        if _STARTED.search(line):
            wrong = 0
        elif (total := _TOTAL.match(line)) is not None:
            failed = total[2] == "FAILED" and int(total[1]) > 0
            words = f"{total[1]} results with values out of bounds, {wrong} wrong values in all"
            yield Verdict("collectives", "results", words if failed else None)
            wrong = 0
        else:
            wrong += _wrong(line)


def _wrong(line: str) -> int:
    """Wrong values of a row: the last cell of each half of it; 0 where nothing was checked.

    Examples
    --------
    >>> _wrong(" 1024  256  float  sum  -1  9.1  0.1  0.2  3  9.0  0.1  0.2  1"), _wrong("# comment")
    (4, 0)
    """
    cells = line.split()
    if len(cells) < 12 or not cells[0].isdecimal() or not cells[1].isdecimal():
        return 0
    return sum(int(cell) for cell in (cells[-1], cells[-5]) if cell.isdecimal())
