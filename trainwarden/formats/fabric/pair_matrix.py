"""Format: what each pair of nodes, ranks or GPUs reached, as a matrix: Markdown, CSV, text or a sheet.

A healthy fabric is the same for all of its members: classes of pairs (one board, one node, one switch) hold every
member equally often. A slow link is one pair far below its class; a slow member has all pairs of its row and column
there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from trainwarden.errors import DataError
from trainwarden.formats.cells import NotNumber, number_of
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.verdicts import Verdict, found_of_verdicts
from trainwarden.recorded.job import Floats

LEAST_MEMBERS: Final = 4
MOST_MEMBERS: Final = 4_096
GAP: Final = 1.3  # between values of two classes of pairs
LEAST_NODES: Final = 3
MOST_OF_NODE: Final = 0.8  # of its pairs with other nodes
MOST_LINKS: Final = 2
_NUMBERED: Final = re.compile(r"(?i)[ _:/.-]?(?:gpu|g|rank|r|cuda|dev)?[ _:.-]?[0-9]{1,3}$")
_RULE: Final = re.compile(r"[\s|:+=-]{3,8000}$")
_NUMBER: Final = re.compile(r"[-+]?[0-9]")
_RATES: Final = re.compile(
    r"(?i)[GM]i?[bB](?:it)?s?(?:/s|ps)\b|bandwidth|bus_?bw|alg_?bw|\bbw\b|throughput|_bw\b|\bbw_"
)
_DELAYS: Final = re.compile(r"(?i)latency|round.?trip|\brtt\b|ping|\((?:us|µs|ms|usec)\)|\b(?:us|µs|usec)\b")
_BLANK: Final = frozenset({"", "-", "--", "x", "n/a", "na", "nan", "none", "*", "self", "\N{EM DASH}"})


@dataclass(frozen=True, slots=True)
class PairMatrix:
    """What each pair reached: ``values [from, to]``, NaN where nothing was measured, and what stands beside it."""

    members: tuple[str, ...]
    values: Floats
    says: str


class PairTable:
    """A row and a column for each member, named alike."""

    name = "pair matrix"

    def sniff(self, name: str, head: str) -> float:
        """By rows that are named as the columns are."""
        del name
        return SURE if head.lstrip()[:1] not in ("{", "[") and matrix_in(head, whole=False) is not None else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        matrix = matrix_in(source.text())
        if matrix is None:
            raise DataError(f"{source.name}: rows of its matrix are missing: give one for each column")
        return found_of_matrix(source, matrix)


def found_of_matrix(source: Source, matrix: PairMatrix) -> Found:
    """What a matrix says of links.

    Raises
    ------
    DataError
        If nothing says whether more is better, or too little was measured.
    """
    says = f"{matrix.says} {source.name.replace('_', ' ')}"
    rate = _RATES.search(says) is not None
    if rate is (_DELAYS.search(says) is not None):
        raise DataError(
            f"{source.name}: nothing says whether its matrix holds bandwidths or delays: name the unit (GB/s, us) in "
            "its corner, above it or in the file's name"
        )
    if len(matrix.members) < LEAST_MEMBERS:
        raise DataError(f"{source.name}: of {len(matrix.members)} members no link can be compared with others")
    verdicts, why = judged(matrix, rate)
    if why:
        raise DataError(f"{source.name}: {why}")
    found = found_of_verdicts(source, "pairs", verdicts)
    found.rows = len(matrix.members)
    found.notes.append(f"a matrix of {'bandwidths' if rate else 'delays'} between {len(matrix.members)} members")
    return found


def judged(matrix: PairMatrix, rate: bool) -> tuple[list[Verdict], str]:
    """Verdicts of members and links, or why there are none.

    Examples
    --------
    >>> values = np.full((5, 5), 46.0)
    >>> values[1, 3] = values[3, 1] = 14.0
    >>> judged(PairMatrix(tuple("abcde"), values, ""), True)[0][0].failed
    'b - d reaches 14, where other pairs of its kind reach 46'
    """
    values = np.where(matrix.values > 0.0, matrix.values, np.nan)
    known = values[~np.eye(len(values), dtype=bool)]
    if np.isfinite(known).mean() < 0.4:
        return [], "most pairs were not measured: give the whole matrix"
    worst = np.fmin(values, values.T) if rate else np.fmax(values, values.T)
    pairs = [(i, j) for i in range(len(values)) for j in range(i + 1, len(values)) if np.isfinite(worst[i, j])]
    goodness = np.array([worst[pair] if rate else 1.0 / worst[pair] for pair in pairs])
    places = _classes(goodness)
    found: list[Verdict] = []
    for number, place in enumerate(places[:-1]):  # the best class has nothing to be compared with
        own = [pairs[one] for one in place]
        told = _blamed(own, matrix.members)
        if told is None:
            continue
        usual = _usual(own, [pairs[one] for later in places[number + 1 :] for one in later], worst)
        level = float(np.median([worst[pair] for pair in own]))
        found += [_verdict(matrix.members, one, level, usual, rate) for one in told]
    return (found or [Verdict(one, "", None) for one in matrix.members]), ""


def _classes(goodness: Floats) -> list[list[int]]:
    """Places of pairs in classes that gaps part, the worst first."""
    order = np.argsort(goodness, kind="stable")
    cuts = np.flatnonzero(goodness[order][1:] >= GAP * goodness[order][:-1]) + 1
    return [part.tolist() for part in np.split(order, cuts)]


def _blamed(own: Sequence[tuple[int, int]], members: Sequence[str]) -> list[tuple[int, ...]] | None:
    """The member or node that is in all pairs of a class, or the few pairs; None where the fabric is built so."""
    count = Counter(one for pair in own for one in pair)
    member, most = count.most_common(1)[0]
    if most == len(own) and len(own) > MOST_LINKS:
        return [(member,)]
    if len(own) <= MOST_LINKS:
        return list(own) if len(count) < len(members) else None
    return _node_of(own, members)


def _node_of(own: Sequence[tuple[int, int]], members: Sequence[str]) -> list[tuple[int, ...]] | None:
    """The members of the one node that has nearly all its pairs with other nodes in a class."""
    nodes = [_NUMBERED.sub("", one) for one in members]
    sizes = Counter(nodes)
    if len(sizes) < LEAST_NODES or len(set(sizes.values())) > 1 or min(sizes.values()) < 3:
        return None
    for node, size in sizes.items():
        across = sum((nodes[i] == node) != (nodes[j] == node) for i, j in own)
        if across == len(own) and across >= MOST_OF_NODE * size * (len(members) - size):
            return [tuple(k for k, one in enumerate(nodes) if one == node)]
    return None


def _usual(own: Sequence[tuple[int, int]], better: Sequence[tuple[int, int]], worst: Floats) -> float:
    """What pairs of the same kind reach: the nearest of the better ones of the same members, else of all."""
    members = {one for pair in own for one in pair}
    beside = [worst[pair] for pair in better if members.intersection(pair)] or [worst[pair] for pair in better]
    return float(np.median(beside))


def _verdict(members: Sequence[str], who: tuple[int, ...], level: float, usual: float, rate: bool) -> Verdict:
    one, all_of = ("reaches", "reach") if rate else ("takes", "take")
    told = [members[place] for place in who]
    node = _NUMBERED.sub("", told[0]) if len(who) > 2 else told[0]
    if len(who) != 2:
        return Verdict(node, "link", f"each pair of {node} {one} {level:.4g}, where others {all_of} {usual:.4g}", node)
    words = f"{told[0]} - {told[1]} {one} {level:.4g}, where other pairs of its kind {all_of} {usual:.4g}"
    return Verdict(f"{told[0]}/{told[1]}", "link", words)


def matrix_in(text: str, *, whole: bool = True) -> PairMatrix | None:
    """The first matrix of pairs in a text; None where there is none.

    Parameters
    ----------
    whole : bool
        Whether rows of all members must be there.

    Examples
    --------
    >>> matrix_in("GB/s,a,b,c,d\\na,-,1,1,1\\nb,1,-,1,1\\nc,1,1,-,1\\nd,1,1,1,-\\n").members
    ('a', 'b', 'c', 'd')
    """
    lines = [line for line in text.replace("\r\n", "\n").split("\n") if line.strip() and not _RULE.match(line)]
    for place, line in enumerate(lines[:64]):
        header = _cells(line)
        row = _cells(lines[place + 1]) if place + 1 < len(lines) else []
        if len(header) < LEAST_MEMBERS or len(header) > MOST_MEMBERS or not row:
            continue
        size = len(row) - 1
        members = header[-size:] if LEAST_MEMBERS <= size <= len(header) else []
        if not members or row[0] != members[0] or len(set(members)) < len(members):
            continue
        rows = [_cells(one) for one in lines[place + 1 : place + 1 + size]]
        told = [one for one in rows if len(one) == size + 1]
        needed = size if whole or members[-1].isdecimal() else 3  # numbers alone may be steps or ranks
        if [one[0] for one in told] != members[: len(told)] or len(told) < needed:
            continue
        after = _cells(lines[place + 1 + size]) if place + 1 + size < len(lines) else []
        if members[-1].isdecimal() and after and len(after) == size + 1 and after[0].isdecimal():
            continue  # steps of ranks that are counted on
        values = _numbers([one[1:] for one in told])
        if values is not None:
            return PairMatrix(tuple(members), values, " ".join([*lines[:place], *header[:-size]])[:4_000])
    return None


def _cells(line: str) -> list[str]:
    """Cells of a line; bars at its ends part nothing."""
    bare = line.strip()
    for part in ("|", "\t", ";", ","):
        if part in bare:
            bare = bare.strip("|") if part == "|" else line
            return [cell.strip().strip('"`*') for cell in bare.split(part)]
    return bare.split()


def _numbers(rows: Sequence[Sequence[str]]) -> Floats | None:
    """Cells as numbers, NaN for blanks; None where one is neither."""
    found = np.full((len(rows), len(rows[0])), np.nan)
    for i, row in enumerate(rows):
        for j, cell in enumerate(row):
            if cell.lower() in _BLANK:
                continue
            if not _NUMBER.match(cell):
                return None
            try:
                found[i, j] = number_of(cell)[0]
            except NotNumber:
                return None
    return found if np.isfinite(found).any() else None
