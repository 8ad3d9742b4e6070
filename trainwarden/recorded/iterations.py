"""The iterations of a recorded folder and its collective calls, checked and in order."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trainwarden.recorded.columns import Columns, Roles, Texts
from trainwarden.recorded.job import CollectiveTable, Floats, Ints, IterationTable
from trainwarden.recorded.rows import (
    by_appearance,
    fail,
    has_times,
    not_negative,
    owners_of,
    read_columns,
    refuse,
    require,
    time_notes,
    times_s_of,
    whole,
)

_MAX_DURATION_S = 1e9  # 30 years
_SPLIT_COLUMNS = ("compute_s", "wait_s", "pause_s", "micro_batches")
_NUMBERS = frozenset({"time_s", "step", "duration_s", "steps", *_SPLIT_COLUMNS})
_TEXTS = frozenset({"timestamp", "rank", "node", "incarnation", "basis"})
_CALL_NUMBERS = frozenset({"step", "seq", "bytes", "device_s", "enqueued_s", "nodes", "size", "peer"})
_CALL_TEXTS = frozenset({"rank", "comm", "func", "group", "node"})


def read_iterations(path: Path, file: str) -> IterationTable | None:
    """Read `iterations`; None if it has a header and no rows. Columns that the contract does not name are ignored.

    Without times the end of each step is counted up from zero: a gap in the step numbers counts as steps of the
    duration that follows it. Ranks share their ends; where a rank has a step twice (it was restarted) each rank counts
    for itself, in the order of its rows.

    Raises
    ------
    DataError
        One sentence with file, line and column.
    """
    columns = read_columns(path, file, _roles(_NUMBERS, _TEXTS))
    require(columns, ("step",))
    require(columns, ("duration_s",))
    if columns.rows == 0:
        return None
    step = whole(columns, "step", columns.numbers["step"], 0)
    duration_s = _checked_durations(columns)
    steps = whole(columns, "steps", columns.numbers["steps"], 1, missing=1) if "steps" in columns.numbers else None
    steps = np.ones(columns.rows, np.int64) if steps is None else steps
    owners = owners_of(columns, ("node", "rank"))
    timed = has_times(columns)
    end_s = times_s_of(columns) if timed else counted_s(owners.code, step, duration_s, steps)
    order = np.argsort(end_s, kind="stable")
    code, first = by_appearance(owners.code[order])
    splits = {name: not_negative(columns, name)[order] for name in _SPLIT_COLUMNS}
    incarnation, basis = columns.texts.get("incarnation"), columns.texts.get("basis")
    return IterationTable(
        rank=code,
        ranks=tuple(owners.ranks[place] for place in first),
        nodes=tuple(owners.nodes[place] for place in first),
        step=step[order],
        end_s=end_s[order],
        duration_s=duration_s[order],
        compute_s=splits["compute_s"],
        wait_s=splits["wait_s"],
        pause_s=splits["pause_s"],
        micro_batches=splits["micro_batches"],
        steps=steps[order],
        timed=timed,
        incarnation=tuple(incarnation.values[place] or "" for place in incarnation.codes[order]) if incarnation else (),
        basis=tuple(basis.values[place] or "" for place in basis.codes[order]) if basis else (),
        notes=time_notes(columns),
    )


def _roles(numbers: frozenset[str], texts: frozenset[str]) -> Roles:
    return lambda name: "number" if name in numbers else "text" if name in texts else "skip"


def _checked_durations(columns: Columns) -> Floats:
    duration_s = columns.numbers["duration_s"]
    wrong = ~((duration_s > 0.0) & (duration_s < _MAX_DURATION_S))
    refuse(columns, "duration_s", wrong, "is not a duration above zero, in seconds")
    return duration_s


def counted_s(code: Ints, step: Ints, duration_s: Floats, steps: Ints) -> Floats:
    """End of every step counted up from zero; see `read_iterations`.

    Ranks that repeat no step share their ends, a step taking what it takes the median rank: a clock of each rank's own
    would drift from the others', although they step together. A row that stands twice, to the last digit, is a copy and
    no repeated step.
    """
    import pandas as pd  # as in `by_appearance`

    rows = pd.DataFrame({"code": code, "step": step, "duration_s": duration_s, "steps": steps})
    once = rows.drop_duplicates()
    if once.duplicated(["code", "step"]).any():
        return _counted_each_s(code, step, duration_s, steps)
    each = once.groupby("step").agg({"duration_s": "median", "steps": "first"})
    gap = np.diff(each.index, prepend=each.index[0] - each["steps"].iloc[0])
    ends_s = np.cumsum(each["duration_s"].to_numpy() * np.maximum(gap, each["steps"].to_numpy()))
    return np.asarray(ends_s[each.index.get_indexer(pd.Index(step))])


def _counted_each_s(code: Ints, step: Ints, duration_s: Floats, steps: Ints) -> Floats:
    """The same for each rank by itself, in the order of the file where a rank repeats a step."""
    end_s = np.empty(len(step))
    order = np.argsort(code, kind="stable")
    bounds = np.flatnonzero(np.diff(code[order])) + 1
    for rows in np.split(order, bounds):
        by_step = rows[np.argsort(step[rows], kind="stable")]
        repeated = bool((np.diff(step[by_step]) == 0).any())
        taken = rows if repeated else by_step
        gap = np.diff(step[taken], prepend=step[taken[0]] - steps[taken[0]])
        passed = np.maximum(gap, steps[taken])
        end_s[taken] = np.cumsum(duration_s[taken] * passed)
    return end_s


def read_collectives(path: Path, file: str) -> CollectiveTable | None:
    """Read `collectives`; None if it has a header and no rows. Columns that the contract does not name are ignored.

    Raises
    ------
    DataError
        One sentence with file, line and column.
    """
    columns = read_columns(path, file, _roles(_CALL_NUMBERS, _CALL_TEXTS))
    for name in ("step", "rank", "comm", "func", "seq", "bytes", "device_s"):
        require(columns, (name,))
    if columns.rows == 0:
        return None
    owners = owners_of(columns, ("rank",))
    known = [-1 if rank is None else rank for rank in owners.ranks]
    rank = np.array(known, np.int64)[owners.code]
    if (rank < 0).any():
        fail(columns, int(np.argmax(rank < 0)), "rank", "the cell is empty")
    step = whole(columns, "step", columns.numbers["step"], 0)
    peer = whole(columns, "peer", columns.numbers["peer"], 0, missing=-1) if "peer" in columns.numbers else None
    comm, comms = _words(columns, "comm")
    function, functions = _words(columns, "func")
    enqueued_s = columns.numbers.get("enqueued_s", np.full(columns.rows, np.nan))
    order = np.lexsort((rank, step))
    return CollectiveTable(
        step=step[order], rank=rank[order], comm=comm[order], function=function[order],
        seq=whole(columns, "seq", columns.numbers["seq"], 0)[order],
        call_bytes=whole(columns, "bytes", columns.numbers["bytes"], 0)[order],
        device_s=not_negative(columns, "device_s")[order],
        enqueued_s=np.where(np.isfinite(enqueued_s), enqueued_s, np.nan)[order],
        peer=np.full(columns.rows, -1) if peer is None else peer[order],
        comms=comms, functions=functions, groups=_group_names(columns, comm, len(comms)),
        nodes=_largest(columns, "nodes", comm, len(comms)), sizes=_largest(columns, "size", comm, len(comms)),
        hosts=_hosts(columns, rank),
    )  # fmt: skip


def _words(columns: Columns, name: str) -> tuple[Ints, tuple[str, ...]]:
    """A column of names, none of them empty: places, and the names."""
    column = columns.texts[name]
    empty = np.array([value is None for value in column.values] or [True])[column.codes]
    if empty.any():
        fail(columns, int(np.argmax(empty)), name, "the cell is empty")
    return column.codes, tuple(value or "" for value in column.values)


def _first_rows(key: Ints, wanted: Texts | None) -> dict[int, str]:
    """For each of `key` the first text of its rows that is not empty."""
    if wanted is None:
        return {}
    told = np.array([value is not None for value in wanted.values] or [False])[wanted.codes]
    rows = np.flatnonzero(told)
    keys, first = np.unique(key[rows], return_index=True)
    texts = (wanted.values[int(wanted.codes[rows[place]])] or "" for place in first)
    return dict(zip(keys.tolist(), texts, strict=True))


def _group_names(columns: Columns, comm: Ints, size: int) -> tuple[str, ...]:
    names = _first_rows(comm, columns.texts.get("group"))
    return tuple(names.get(code, "") for code in range(size))


def _hosts(columns: Columns, rank: Ints) -> dict[int, str]:
    return _first_rows(rank, columns.texts.get("node"))


def _largest(columns: Columns, name: str, comm: Ints, size: int) -> tuple[int, ...]:
    """A number that is told of each communicator; of several the largest, 0 where there is none."""
    if name not in columns.numbers:
        return (0,) * size
    most = np.zeros(size, dtype=np.int64)
    np.maximum.at(most, comm, whole(columns, name, columns.numbers[name], 1, missing=0))
    return tuple(most.tolist())
