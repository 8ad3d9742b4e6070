"""The newest metric samples of every entity of a job, one set of ring arrays for each family of entities."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.family import BY_ENTITY, BY_METRIC, CUBE, FamilyRing, Rows, family_of_row
from trainwarden.detectors.job.packed import pack, unpack
from trainwarden.detectors.job.samples import MOST, Entity, FamilySamples, Floats
from trainwarden.errors import DetectorError
from trainwarden.records import MetricsRecord

MAX_ENTITIES: Final = 262_144  # of one family: 16 devices on each of 16,384 nodes; more is damage
MAX_METRICS: Final = 1_024  # of one family
MAX_FAMILIES: Final = 64
MAX_LAYOUTS: Final = 65_536  # remembered layouts of records (about one for each node and collector)
HISTORY: Final = 64  # older samples shown with new ones; the models look back on 62


@dataclass(slots=True)
class _Layout:
    """Where the cells of like records go; `seen` cells of the record ``[names, devices]`` have a place."""

    seen: npt.NDArray[np.bool_]
    parts: list[tuple[FamilyRing, Rows, Rows, Rows, Rows]] = field(default_factory=list)


class MetricBuffer:
    """All metric samples of one job, as recent as `samples` for each entity.

    Examples
    --------
    >>> board = MetricBuffer(samples=8)
    >>> for second in range(3):
    ...     board.feed(MetricsRecord(job="j", node="n", time_s=float(second), devices=("GPU-a", "GPU-b"),
    ...                              names=("gpu_power_watts", "gpu_energy_joules"),
    ...                              values=((300.0, 310.0), (50.0 * second, None)), ranks=(0, 1)))
    >>> (new,) = board.pop_new()
    >>> new.family, new.entities[0], new.values[:, 1].tolist()
    ('gpu', Entity(node='n', device='GPU-a', rank=0), [[nan, 50.0, 50.0], [nan, nan, nan]])
    """

    def __init__(self, samples: int = 128) -> None:
        self._samples = samples
        self._families: dict[str, FamilyRing] = {}
        self._layouts: OrderedDict[Any, _Layout] = OrderedDict()
        self.late = 0
        self.odd = 0

    def feed(self, record: MetricsRecord) -> None:
        """Apply all devices of one node at one time; what is older than an entity's newest sample counts as late."""
        shape = (len(record.names), len(record.devices))
        if len(record.values) != shape[0] or any(len(lane) != shape[1] for lane in record.values):
            self.odd += 1
            return
        if not all(shape):
            return
        table = np.array(record.values, dtype=np.float64)
        table[~(np.abs(table) < MOST)] = np.nan
        measured = ~np.isnan(table)
        key = (record.node, record.devices, record.names, record.ranks, record.models)
        layout = self._layouts.get(key)
        if layout is None or (measured & ~layout.seen).any():
            layout = self._layouts[key] = self._laid_out(record, measured if layout is None else measured | layout.seen)
            if len(self._layouts) > MAX_LAYOUTS:
                self._layouts.popitem(last=False)
        for family, devices, names, rows, columns in layout.parts:
            values = table[names[None, :], devices[:, None]]
            there = ~np.isnan(values).all(axis=1)
            if there.all():
                self.late += family.feed(rows, columns, values, record.time_s)
            elif there.any():
                self.late += family.feed(rows[there], columns, values[there], record.time_s)

    def pop_new(self, roles: dict[int, str] | None = None, history: int = HISTORY) -> list[FamilySamples]:
        """What is new since the last call, each sample once; `roles` by rank, `history` older samples come along."""
        return [
            new
            for name, family in self._families.items()
            if (family.count > family.taken).any()
            for new in family.pop_new(name, roles or {}, history)
        ]

    def of_rank(self, family: str, metric: str, rank: int) -> tuple[Floats, Floats]:
        """When `metric` of `rank` was measured, oldest first, and what it was; both empty where it was not."""
        ring = self._families.get(family)
        rows = (row for row, one in enumerate(ring.entities) if one.rank == rank) if ring else iter(())
        if ring is None or metric not in ring.names or (row := next(rows, None)) is None:
            return np.zeros(0), np.zeros(0)
        return ring.series(row, ring.names.index(metric))

    def by_second(self, family: str, metrics: tuple[str, ...], seconds: Rows) -> tuple[list[Entity], Floats]:
        """The entities of `family`, and their `metrics` in each of `seconds` [metrics, seconds, entities].

        A sample belongs to the whole second in which it was taken; NaN where there is none.
        """
        ring = self._families.get(family)
        size = 0 if ring is None else len(ring.entities)
        table = np.full((len(metrics), seconds.size, size), np.nan)
        if ring is None or not seconds.size:
            return [], table
        taken = np.arange(self._samples) < ring.count[:size, None]
        at = np.floor(np.where(taken, ring.times[:size], -np.inf))
        for place, metric in enumerate(metrics):
            if metric in ring.column:
                values = ring.values[:size, ring.column[metric]]
                rows, samples = np.nonzero((at >= seconds[0]) & (at <= seconds[-1]) & np.isfinite(values))
                table[place, (at[rows, samples] - seconds[0]).astype(np.int64), rows] = values[rows, samples]
        return list(ring.entities), table

    def counts(self) -> dict[str, Rows]:
        """How many samples every entity has had, by family."""
        return {name: family.count[: len(family.entities)].copy() for name, family in self._families.items()}

    def after(self, before: Mapping[str, Rows], enough: int, least: int, most: int) -> list[FamilySamples]:
        """What came after `before`, of `most` entities of families with `least`; nothing until one has `enough`."""
        found = {
            name: family.after(before.get(name, np.zeros(0, dtype=np.int64)), least, most)
            for name, family in self._families.items()
        }
        if max((samples for _, samples in found.values()), default=0) < enough:
            return []
        return [self._families[name].newest(name, *part) for name, part in found.items() if part[0].size]

    def _laid_out(self, record: MetricsRecord, seen: npt.NDArray[np.bool_]) -> _Layout:
        """Where a record's devices and metrics go, of those ``seen [names, devices]`` to have been measured."""
        entities = _entities(record)
        members: dict[str, list[int]] = {}
        for place in np.flatnonzero(seen.any(axis=0)).tolist():
            # What a device has itself says more of what it is than what its neighbours have.
            own = tuple(record.names[one] for one in np.flatnonzero(seen[:, place]).tolist())
            name = family_of_row(record.devices[place], own + record.names)
            if name is not None:
                members.setdefault(name, []).append(place)
        layout = _Layout(seen)
        for name, places in members.items():
            family = self._families.get(name)
            if family is None:
                if len(self._families) >= MAX_FAMILIES:
                    self.odd += 1
                    continue
                family = self._families[name] = FamilyRing(self._samples)
            wanted = np.flatnonzero(seen[:, places].any(axis=1)).tolist()
            metrics = [record.names[one] for one in wanted]
            if len(family.entities) + len(places) > MAX_ENTITIES or len({*family.names, *metrics}) > MAX_METRICS:
                self.odd += 1
                continue
            rows = [family.add_entity(*entities[one]) for one in places]
            columns = [family.add_metric(metric) for metric in metrics]
            layout.parts.append((family, _places(places), _places(wanted), _places(rows), _places(columns)))
        return layout

    # -- state -----------------------------------------------------------------------------------------------

    def state(self) -> bytes:
        """Everything that `restore` needs."""
        plain: dict[str, Any] = {"samples": self._samples, "late": self.late, "odd": self.odd, "families": {}}
        arrays: dict[str, npt.NDArray[Any]] = {}
        for number, (name, family) in enumerate(self._families.items()):
            size, width = len(family.entities), len(family.names)
            plain["families"][name] = {
                "entities": [list(one) for one in family.entities], "names": family.names, "models": family.models,
            }  # fmt: skip
            arrays |= {f"{number}/{part}": getattr(family, part)[:size, :width] for part in (*CUBE, *BY_METRIC)}
            arrays |= {f"{number}/{part}": getattr(family, part)[:size] for part in BY_ENTITY}
        return pack("metric_board", plain, arrays)

    def restore(self, state: bytes) -> None:
        """Go on from `state`.

        Raises
        ------
        DetectorError
            If `state` is not one of a board's.
        """
        plain, arrays = unpack("metric_board", state)
        families: dict[str, FamilyRing] = {}
        try:
            for number, (name, one) in enumerate(plain["families"].items()):
                family = families[name] = FamilyRing(int(plain["samples"]))
                models = one.get("models") or [""] * len(one["entities"])
                for (node, device, rank), model in zip(one["entities"], models, strict=True):
                    family.add_entity(node, device, rank, model)
                for metric in one["names"]:
                    family.add_metric(metric)
                size, width = len(family.entities), len(family.names)
                for part in (*CUBE, *BY_METRIC, *BY_ENTITY):
                    target = getattr(family, part)
                    target = target[:size] if part in BY_ENTITY else target[:size, :width]
                    target[...] = arrays[f"{number}/{part}"]
            self._samples, self.late, self.odd = int(plain["samples"]), int(plain["late"]), int(plain["odd"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DetectorError(f"state of the metric board is damaged: {error}") from error
        self._families, self._layouts = families, OrderedDict()


def _entities(record: MetricsRecord) -> list[tuple[str | None, str | None, int | None, str]]:
    """Node, device, rank and model of each device of a record."""
    size = len(record.devices)
    ranks = record.ranks if len(record.ranks) == size else (None,) * size
    models = record.models if len(record.models) == size else ("",) * size
    named = zip(record.devices, ranks, models, strict=True)
    return [(record.node or None, device or None, rank, model) for device, rank, model in named]


def _places(values: list[int]) -> Rows:
    return np.array(values, dtype=np.int64)
