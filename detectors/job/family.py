"""The newest metric samples of one family of entities in ring arrays: one row an entity, one column a metric."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainwarden.catalogue import lookup
from trainwarden.detectors.job.samples import Entity, FamilySamples, Floats

Rows = npt.NDArray[np.int64]

CUBE: Final = ("values",)
BY_METRIC: Final = ("base", "base_s", "now", "now_s")
BY_ENTITY: Final = ("times", "count", "taken")


def family_of_row(device: str, names: tuple[str, ...]) -> str | None:
    """The family that a row of `device` with metrics `names` belongs to; None if it is about ourselves.

    Examples
    --------
    >>> family_of_row("GPU-9f", ("gpu_power_watts",)), family_of_row("disk:sda", ("host_disk_busy_ratio",))
    ('gpu', 'host:disk')
    >>> family_of_row("pump-12", ("flow",)), family_of_row("", ("gpu_power_watts",)), family_of_row("agent", ("x",))
    ('pump', '', None)
    """
    if not device:
        return ""
    per = next((known.per for name in names if (known := lookup(name)) is not None), None)
    if per == "agent" or device == "agent":
        return None
    if per is None:
        return device.rstrip("0123456789").rstrip("-_:. ") or "device"
    kind, colon, _ = device.partition(":")
    # A node's disks and mounts are per host too, but have other metrics than the host itself.
    return f"{per}:{kind}" if colon and per == "host" else per


def role_of(role: str, model: str) -> str:
    """What an entity is compared by: the role of its rank and the model of the device, as far as either is known.

    Examples
    --------
    >>> role_of("tp0", "NVIDIA H200"), role_of("", "NVIDIA H200"), role_of("", "")
    ('tp0 NVIDIA H200', 'NVIDIA H200', '')
    """
    return " ".join(word for word in (role, model) if word)


@dataclass(slots=True)
class FamilyRing:
    """Ring arrays of one family; sample s of an entity lies in column s % samples."""

    samples: int
    entities: list[Entity] = field(default_factory=list)
    models: list[str] = field(default_factory=list)  # what each entity's maker calls it; empty if nobody says
    row: dict[tuple[str | None, str | None, int | None], int] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    column: dict[str, int] = field(default_factory=dict)
    counters: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=np.bool_))
    values: Floats = field(init=False)  # [entities, metrics, samples]
    times: Floats = field(init=False)  # [entities, samples]
    count: Rows = field(init=False)  # samples so far
    taken: Rows = field(init=False)  # of which these have been shown
    base: Floats = field(init=False)  # counters: the reading before the newest, [entities, metrics]
    base_s: Floats = field(init=False)
    now: Floats = field(init=False)  # counters: the newest reading
    now_s: Floats = field(init=False)

    def __post_init__(self) -> None:
        self.values, self.times = np.zeros((0, 0, self.samples)), np.zeros((0, self.samples))
        self.count, self.taken = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
        self.base, self.base_s, self.now, self.now_s = (np.zeros((0, 0)) for _ in range(4))

    def add_entity(self, node: str | None, device: str | None, rank: int | None, model: str = "") -> int:
        """The row of an entity; a device keeps its row whichever rank uses it."""
        key = (node, device, None if device else rank)
        row = self.row.get(key)
        if row is None:
            row = self.row[key] = len(self.entities)
            self.entities.append(Entity(node, device, rank))
            self.models.append(model)
            self._room()
        elif rank is not None and self.entities[row].rank != rank:
            self.entities[row] = Entity(node, device, rank)
        self.models[row] = model or self.models[row]
        return row

    def add_metric(self, name: str) -> int:
        column = self.column.get(name)
        if column is None:
            column = self.column[name] = len(self.names)
            self.names.append(name)
            known = lookup(name)
            self.counters = np.append(self.counters, known is not None and known.kind == "counter")
            self._room()
        return column

    def _room(self) -> None:
        have, wide = self.values.shape[:2]
        size, width = len(self.entities), len(self.names)
        if size <= have and width <= wide:
            return
        more = max(size, have + have // 2) - have if size > have else 0
        wider = max(width, wide + 4) - wide if width > wide else 0
        self.values = _grown(self.values, (more, wider, 0))
        self.times, self.count = _grown(self.times, (more, 0)), _grown(self.count, (more,))
        self.taken = _grown(self.taken, (more,))
        self.base, self.base_s = _grown(self.base, (more, wider)), _grown(self.base_s, (more, wider))
        self.now, self.now_s = _grown(self.now, (more, wider)), _grown(self.now_s, (more, wider))

    def feed(self, rows: Rows, columns: Rows, values: Floats, time_s: float) -> int:
        """Take ``values [entities, metrics]`` of one time; how many were too late."""
        last = (self.count[rows] - 1) % self.samples
        newest = np.where(self.count[rows] > 0, self.times[rows, last], -np.inf)
        late = newest > time_s
        if late.any():
            rows, values, newest = rows[~late], values[~late], newest[~late]
        begins = rows[newest < time_s]
        if begins.size:
            place = self.count[begins] % self.samples
            self.values[begins, :, place] = np.nan
            self.times[begins, place] = time_s
            self.count[begins] += 1
        counting = self.counters[columns]
        if counting.any():
            values[:, counting] = self._rates(rows, columns[counting], values[:, counting], time_s)
        cells = rows[:, None], columns[None, :], ((self.count[rows] - 1) % self.samples)[:, None]
        # What another collector has said of this sample stays where this record is silent.
        self.values[cells] = np.where(np.isnan(values), self.values[cells], values)
        return int(late.sum())

    def _rates(self, rows: Rows, columns: Rows, values: Floats, time_s: float) -> Floats:
        """Growth per second since the reading before; NaN for the first one and after a reset."""
        cells = rows[:, None], columns[None, :]
        measured = np.isfinite(values)
        step = measured & ~(self.now_s[cells] >= time_s)
        self.base[cells] = np.where(step, self.now[cells], self.base[cells])
        self.base_s[cells] = np.where(step, self.now_s[cells], self.base_s[cells])
        self.now[cells] = np.where(measured, values, self.now[cells])
        self.now_s[cells] = np.where(measured, time_s, self.now_s[cells])
        grown, elapsed_s = values - self.base[cells], time_s - self.base_s[cells]
        right = measured & (grown >= 0.0) & (elapsed_s > 0.0)
        return np.where(right, np.divide(grown, elapsed_s, out=np.zeros_like(grown), where=right), np.nan)

    def _role(self, row: int, roles: dict[int, str]) -> str:
        rank = self.entities[row].rank
        own = "" if rank is None else roles.get(rank, "")
        return role_of(own, self.models[row])

    def after(self, before: Rows, least: int, most: int) -> tuple[Rows, int]:
        """`most` rows, evenly spaced, with `least` samples after the first `before`; how many they all have."""
        size = len(self.entities)
        past = np.append(before, np.zeros(max(0, size - before.size), dtype=np.int64))[:size]
        found = np.minimum(self.count[:size] - past, self.samples)
        rows = np.flatnonzero(found >= least)
        rows = rows[np.linspace(0, rows.size - 1, min(rows.size, most)).astype(np.int64)]
        return rows, int(found[rows].min(initial=self.samples)) if rows.size else 0

    def newest(self, name: str, rows: Rows, samples: int) -> FamilySamples:
        """The newest so many samples of `rows`, as if all were new."""
        places = (self.count[rows][:, None] + np.arange(-samples, 0)) % self.samples
        values = self.values[rows[:, None, None], np.arange(len(self.names))[None, :, None], places[:, None, :]]
        who = tuple(self.entities[row] for row in rows.tolist())
        return FamilySamples(
            name, tuple(self.names), rows, who, ("",) * rows.size, values, self.times[rows[:, None], places]
        )

    def series(self, row: int, column: int) -> tuple[Floats, Floats]:
        """When one metric of one entity was measured, oldest first, and what it was."""
        places = np.arange(max(0, int(self.count[row]) - self.samples), int(self.count[row])) % self.samples
        values = self.values[row, column, places]
        return self.times[row, places][np.isfinite(values)], values[np.isfinite(values)]

    def pop_new(self, name: str, roles: dict[int, str], history: int) -> list[FamilySamples]:
        """What is new, entities with equally many new samples together."""
        size = len(self.entities)
        fresh = np.minimum(self.count[:size] - self.taken[:size], self.samples)
        self.taken[:size] = self.count[:size]
        found = []
        for number in np.unique(fresh[fresh > 0]).tolist():
            rows = np.flatnonzero(fresh == number)
            past = min(int(self.count[rows].max()) - number, history, self.samples - number)
            back = np.arange(-(past + number), 0)
            places = (self.count[rows][:, None] + back) % self.samples
            values = self.values[rows[:, None, None], np.arange(len(self.names))[None, :, None], places[:, None, :]]
            # Columns that an entity has not filled yet.
            unfilled = self.count[rows][:, None] + back < 0
            times_s = self.times[rows[:, None], places]
            if unfilled.any():
                values = np.where(unfilled[:, None, :], np.nan, values)
                times_s = np.where(unfilled, np.nan, times_s)
            entities = tuple(self.entities[row] for row in rows.tolist())
            found.append(
                FamilySamples(
                    family=name,
                    names=tuple(self.names),
                    rows=rows,
                    entities=entities,
                    roles=tuple(self._role(row, roles) for row in rows.tolist()),
                    values=values,
                    times_s=times_s[:, past:],
                    past_s=times_s[:, :past],
                )
            )
        return found


def _grown(array: npt.NDArray[Any], by: tuple[int, ...]) -> npt.NDArray[Any]:
    fill = 0 if array.dtype.kind == "i" else np.nan
    return np.pad(array, [(0, more) for more in by], constant_values=fill)
