"""Tables with a column or a row for each rank, and tables with a column of units, as one row for each rank and step."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from trainwarden.formats import names
from trainwarden.formats.cells import UNITS, rank_of_cell
from trainwarden.formats.roles import Roles
from trainwarden.formats.steps import is_loss
from trainwarden.formats.table import Table, ranks_of, tag_of

LEAST_RANKS: Final = 2
LEAST_STEPS: Final = 2
_UNIT_COLUMNS: Final = ("unit", "units", "uom", "unit_of_measure")
_RANK: Final = re.compile(r"(?i)(?:^|[^a-z0-9])(?:global[ _-]?)?ranks?[ _:#.=-]{0,2}([0-9]{1,5})(?![0-9a-z])")
_GPU: Final = re.compile(r"(?i)(?:^|[^a-z0-9])(?:gpus?|workers?|trainers?|r)[ _:#.=-]{0,2}([0-9]{1,5})(?![0-9a-z])")
_BARE: Final = re.compile(r"\s{0,4}([0-9]{1,5})(?:\.0)?\s{0,4}$")
_STEP: Final = re.compile(
    r"(?i)\s{0,4}(?:global[ _-]?)?(?:steps?|iter(?:ation)?s?|it|batch)?[ _:#.=-]{0,2}([0-9]{1,9})(?:\.0)?\s{0,4}$"
)
_EDGE: Final = " _.:/-|,()[]"
_TITLE: Final = re.compile(r"(?i)-data-.*$|\.(?:csv|tsv|txt|xlsx|xlsm|parquet|gz|zst|bz2|xz|md|tab)\b.*$")
_BY_RANK: Final = re.compile(
    r"(?i)[ _-]{0,2}(?:(?:per|by|of|for|each|all)[ _-]{1,2})+(?:ranks?|gpus?|workers?|steps?)\b"
)


def reshaped(table: Table) -> None:
    """Give `table` one row for each rank and step where it has a column or a row for each, and units in its cells."""
    _with_units(table)
    if not table.said:
        wide = _transposed(table) or _wide(table)
        if wide:
            table.lines = None


def number_samples(table: Table, roles: Roles) -> bool:
    """Count the samples of each rank as steps, where times of ranks' work stand beside no step."""
    if table.said or roles.step is not None or roles.rank is None or roles.series is not None:
        return False
    if not any(quantity_of(str(one)) for one in table.frame.columns):
        return False
    ranks = pd.Series(ranks_of(table, roles.rank), dtype=object)
    clocks = [one for one in (roles.time, roles.date) if one is not None]
    table.frame = table.frame.drop(columns=clocks).assign(step=ranks.groupby(ranks, dropna=False).cumcount().to_numpy())
    table.notes.append("no steps: each rank's samples are counted, in the order of rows")
    return True


def number_ranks(table: Table, roles: Roles) -> bool:
    """Give rows of one step their ranks by node and local rank, where no column tells the rank of the whole job."""
    if table.said or roles.step is None or roles.rank is not None or roles.device is None or roles.series is not None:
        return False
    if not any(quantity_of(str(one)) for one in table.frame.columns):
        return False
    local = [rank_of_cell(cell) for cell in table.frame[roles.device].tolist()]
    nodes = [""] * len(local) if roles.node is None else table.frame[roles.node].astype(str).tolist()
    places = sorted({(node, one) for node, one in zip(nodes, local, strict=True) if one is not None})
    if None in local or len(places) < LEAST_RANKS:
        return False
    numbers = {one: number for number, one in enumerate(places)} if roles.node is not None else {}
    ranks = [numbers.get((node, one), one) for node, one in zip(nodes, local, strict=True) if one is not None]
    table.frame = table.frame.drop(columns=roles.device).assign(rank=ranks)
    if numbers:
        table.notes.append(f"{len(numbers)} ranks are counted in the order of nodes and of their local ranks")
    return True


def tells_ranks(header: Sequence[str], file: str) -> bool:
    """Whether a table with such a header has a column for each rank or step, and tells what was measured of them.

    Examples
    --------
    >>> tells_ranks(["iteration", "rank0", "rank1"], "fwd_bwd_time_ms.csv"), tells_ranks(["a", "rank0"], "x.csv")
    (True, False)
    """
    of_ranks = bool(header) and "rank" in re.split(r"[^a-z]+", header[0].lower())
    told = of_ranks and quantity_of(_TITLE.sub("", file.rsplit("/", 1)[-1])) is not None
    if len(header) > LEAST_STEPS and (told or quantity_of(header[0]) is not None):
        return all(map(_STEP.match, header[1:])) or bool(_places(header))
    places = _places(header)
    return bool(places) and any(_quantity(rest, header, file) is not None for _, rest in places.values())


def quantity_of(name: str) -> str | None:
    """A name that the readers of steps know for what `name` says of steps, losses or waits; None for anything else.

    Examples
    --------
    >>> quantity_of("Compute time per rank"), quantity_of("fwd_bwd_time_ms"), quantity_of("GPU temperature")
    ('Compute time', 'fwd_bwd_time_ms', None)
    """
    bare = _BY_RANK.sub("", name).strip(_EDGE if not name.rstrip().endswith((")", "]")) else " _.:/-|,")
    for one in (bare, bare.rpartition(" by ")[0], bare.removesuffix("s"), bare.replace("times", "time")):
        if one and (names.duration_factor(one) is not None or names.part_factor(one) is not None or is_loss(one)):
            return one
    return None


def _with_units(table: Table) -> None:
    """Put the units of a column of units behind the numbers of their rows, where these are all of one kind."""
    frame = table.frame
    column = next((one for one in frame.columns if names.plain(str(one)) in _UNIT_COLUMNS), None)
    if column is None or column in table.said.values():
        return
    words = [str(cell if cell is not None else "").strip() for cell in frame[column].tolist()]
    kinds = {UNITS[word.lower()][0] for word in words if word.lower() in UNITS}
    told = [one for one in frame.columns if one != column and _measured(str(one))]
    if len(kinds) != 1 or len(told) != 1:
        return
    unknown = [row for row, word in enumerate(words) if word.lower() not in UNITS]
    if unknown:
        table.notes.append(f"{len(unknown)} rows have no unit that is known, and are left out")
    cells = [
        None if cell is None or word.lower() not in UNITS else f"{cell} {word}"
        for cell, word in zip(frame[told[0]].tolist(), words, strict=True)
    ]
    table.frame = frame.drop(columns=column).assign(**{told[0]: pd.Series(cells, frame.index, dtype=object)})


def _measured(name: str) -> bool:
    return names.known(name, names.VALUE) or quantity_of(name) is not None or names.metric_of(name) is not None


def _places(header: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Columns of ranks with the rank and what else their names say; empty where ranks or names are not alike."""
    for pattern in (_RANK, _GPU):
        found: dict[str, tuple[int, str]] = {}
        for one in header:
            match = pattern.search(str(one))
            if match is not None:
                before, after = str(one)[: match.start()], str(one)[match.end() :]
                found[str(one)] = int(match[1]), _rest(before, after)
        if _alike(found):
            return found
    steps = [one for one in header if names.known(str(one), names.STEP)]
    bare = {str(one): (int(match[1]), "") for one in header if (match := _BARE.match(str(one))) is not None}
    return bare if steps and len(bare) == len(header) - 1 and _alike(bare) else {}


def _rest(before: str, after: str) -> str:
    """What a column's name says beside its rank; a unit in brackets stays one."""
    before, after = before.strip(" _.:/-|,"), after.strip(" _.:/-|,")
    if after.startswith(("(", "[")) or not before or not after:
        return f"{before} {after}".strip()
    return f"{before}_{after}"


def _alike(found: dict[str, tuple[int, str]]) -> bool:
    """Whether every rank has the same columns."""
    ranks: dict[int, set[str]] = {}
    for rank, rest in found.values():
        ranks.setdefault(rank, set()).add(rest)
    each = list(ranks.values())
    return len(ranks) >= LEAST_RANKS and all(one == each[0] for one in each) and len(found) == len(ranks) * len(each[0])


def _quantity(rest: str, header: Sequence[str], file: str) -> str | None:
    """What the columns of ranks hold: by their own names, the corner of the table, else the file's name."""
    if rest and (said := quantity_of(rest)) is not None:
        return said
    if rest and names.unit_of(f"x {rest}") == "":
        return None
    told = quantity_of(str(header[0])) if len(header) else None
    told = told or quantity_of(_TITLE.sub("", file.rsplit("/", 1)[-1])) or quantity_of(tag_of(file))
    return f"{told} {rest}".strip() if told is not None else None


def _wide(table: Table) -> bool:
    """A column for each rank."""
    header = [str(one) for one in table.frame.columns]
    places = _places(header)
    called = {rest: _quantity(rest, header, table.file) for _, rest in places.values()}
    if not places or not any(called.values()):
        return False
    kept = [one for one in table.frame.columns if str(one) not in places]
    steps = [one for one in kept if names.known(str(one), names.STEP)]
    frame = table.frame
    if not steps and kept and quantity_of(str(kept[0])) and _counts(frame[kept[0]].tolist()):
        frame = frame.rename(columns={kept[0]: "step"})  # the corner of a sheet says what its cells hold
        kept[0] = "step"
    parts = []
    for rank in dict.fromkeys(rank for rank, _ in places.values()):
        own = {
            called[rest]: frame[one] for one in frame.columns
            if str(one) in places and places[str(one)][0] == rank and called[rest := places[str(one)][1]] is not None
        }  # fmt: skip
        parts.append(frame[kept].assign(rank=rank, **{str(name): cells for name, cells in own.items()}))
    table.frame = pd.concat(parts, ignore_index=True).astype(object)
    table.notes.append(f"columns of {len(parts)} ranks, each taken for its {', '.join(filter(None, called.values()))}")
    return True


def _transposed(table: Table) -> bool:
    """A row for each rank and a column for each step."""
    header = [str(one) for one in table.frame.columns]
    if len(header) <= LEAST_STEPS or len(table.frame) < LEAST_RANKS:
        return False
    steps = [match for one in header[1:] if (match := _STEP.match(one)) is not None]
    corner = header[0]
    ranks = [rank_of_cell(cell) for cell in table.frame[table.frame.columns[0]].tolist()]
    bare = all(_BARE.match(str(cell)) for cell in table.frame[table.frame.columns[0]].tolist())
    named = not bare or "rank" in re.split(r"[^a-z]+", corner.lower())
    if len(steps) != len(header) - 1 or None in ranks or len(set(ranks)) < len(ranks) or not named:
        return False
    if bare and any(_BARE.match(one) for one in header[1:]) and names.known(corner, names.STEP):
        return False
    called = quantity_of(corner) or quantity_of(_TITLE.sub("", table.file.rsplit("/", 1)[-1]))
    if called is None:
        return False
    cells = table.frame.iloc[:, 1:].to_numpy(object)
    numbers = [int(match[1]) for match in steps]
    table.frame = pd.DataFrame({
        "step": np.repeat(np.array(numbers, object), len(ranks)),
        "rank": np.tile(np.array(ranks, object), len(numbers)),
        called: cells.T.ravel(),
    })  # fmt: skip
    table.notes.append(f"a row for each of {len(ranks)} ranks, a column for each step, taken for {called}")
    return True


def _counts(cells: Sequence[object]) -> bool:
    """Whether cells are whole numbers that rise."""
    found = [_STEP.match(str(cell)) for cell in cells]
    numbers = [int(one[1]) for one in found if one is not None]
    return len(numbers) == len(cells) and all(a < b for a, b in itertools.pairwise(numbers))
