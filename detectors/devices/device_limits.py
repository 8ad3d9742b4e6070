"""Vote: a GPU, port or host is beyond a limit that is known for it: heat, memory errors, link errors, stalls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.devices.clock_cost import METRICS as CLOCKS
from trainwarden.detectors.devices.clock_cost import ClockCost
from trainwarden.detectors.devices.contract_stream import device_records
from trainwarden.detectors.devices.limit_memory import LimitMemory
from trainwarden.detectors.devices.limits import Limit, limits_in_force
from trainwarden.detectors.devices.signs import AT_WORK, BUSY
from trainwarden.detectors.job.packed import pack, unpack
from trainwarden.detectors.job.samples import Entity, FamilySamples, name_of
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.protocol import Role
from trainwarden.errors import DetectorError
from trainwarden.records import Vote
from trainwarden.settings import Config

MAX_SUSPECTS: Final = 16
_KIND: Final = "device_limits"
_LINK: Final = ("gpu_pcie_link_generation_max_version", "gpu_pcie_link_width_max_count")
_GIGATRANSFERS: Final = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}  # a second and lane, by PCIe generation
_REFERENCE: Final = 8.0 * 16  # of the link that a limit per lane is told for
Breach = tuple[Limit, Entity, float, float, int]
"""A limit, the device beyond it, its value, since when, and its row in the family."""


def _metrics(limits: Iterable[Limit]) -> tuple[str, ...]:
    """Every metric that is looked at for `limits`."""
    return tuple(dict.fromkeys([*(name for one in limits for name in one.metrics), *AT_WORK, *CLOCKS, *_LINK]))


class DeviceLimits:
    """Limits on GPUs, ports and hosts, each with its source, in ``limits.toml``; they need no model.

    Parameters
    ----------
    config : DeviceLimits.Config
    """

    class Config(Config, frozen=True, kw_only=True):
        """`leave_out` names limits that are not asked, `table` a file like `limits.toml` that is laid over it."""

        leave_out: tuple[str, ...] = ()
        table: str | None = None

    role = Role(reads="samples", opens=("hard",), metrics=_metrics(limits_in_force()))
    contract_stream = staticmethod(device_records)

    def __init__(self, config: Config) -> None:
        self._limits = [one for one in limits_in_force(config.table) if one.id not in config.leave_out]
        self.role = msgspec.structs.replace(type(self).role, metrics=_metrics(self._limits))
        self._clocks = ClockCost()
        self._memory: dict[tuple[str, str], LimitMemory] = {}  # by family and limit
        self._entities: dict[str, dict[int, Entity]] = {}
        self._links: dict[tuple[str, int], float] = {}  # rates of PCIe links as shares of the reference
        self._now_s = 0.0
        self._shown, self._at_s = 0, -np.inf
        self._found: list[list[Breach]] = []
        self._seen = False

    @property
    def more(self) -> bool:
        """True while devices that are sick in another way wait behind those shown."""
        return self._shown + 1 < len(self._found)

    def update(self, window: Window) -> None:
        """Observe new samples; a further call for the same moment turns to the next finding, if there is ``more``."""
        self._shown = self._shown + 1 if window.now_s == self._at_s and self.more else 0
        self._at_s = window.now_s
        for samples in window.samples:
            self._observe(samples, window)
        if window.samples or self._found:
            self._now_s = window.now_s
            self._found = self._look()

    def score(self, window: Window) -> Vote:
        """The finding whose turn it is, the gravest first; normal if there is none."""
        if self._found:
            return self._vote(self._found[min(self._shown, len(self._found) - 1)])
        if not self._seen:
            return Vote(opinion="abstain", reason="no metric of a device that has a limit")
        return Vote(opinion="normal")

    def state(self) -> bytes:
        """See `trainwarden.detectors.protocol.Detector`."""
        plain: dict[str, Any] = {"now_s": self._now_s, "seen": self._seen, "memory": list(self._memory)}
        plain["entities"] = {
            name: [[row, list(one)] for row, one in known.items()] for name, known in self._entities.items()
        }
        arrays: dict[str, npt.NDArray[Any]] = {}
        for number, memory in enumerate(self._memory.values()):
            arrays |= {f"{number}/{name}": array for name, array in memory.state().items()}
        plain["roles"] = self._clocks.roles
        plain["links"] = [[family, row, share] for (family, row), share in self._links.items()]
        arrays |= {f"clocks/{name}": array for name, array in self._clocks.state().items()}
        return pack(_KIND, plain, arrays)

    def restore(self, state: bytes) -> None:
        """See `trainwarden.detectors.protocol.Detector`."""
        plain, arrays = unpack(_KIND, state)
        limits, clocks = {one.id: one for one in self._limits}, ClockCost()
        try:
            memory: dict[tuple[str, str], LimitMemory] = {}
            for number, (family, name) in enumerate(plain["memory"]):
                if name in limits:
                    one = memory[family, name] = LimitMemory(limits[name])
                    one.restore({part: arrays[f"{number}/{part}"] for part in one.state()})
            roles = msgspec.convert(plain["roles"], dict[str, int])
            clocks.restore({name: arrays[f"clocks/{name}"] for name in clocks.state()}, roles)
            known = msgspec.convert(plain["entities"], dict[str, list[tuple[int, Entity]]])
            links = msgspec.convert(plain.get("links", []), list[tuple[str, int, float]])
            self._links = {(family, row): share for family, row, share in links}
            self._now_s, self._seen = float(plain["now_s"]), bool(plain["seen"])
        except (KeyError, IndexError, TypeError, ValueError, msgspec.ValidationError) as error:
            raise DetectorError(f"state of {_KIND} is damaged: {error}") from error
        self._memory, self._clocks = memory, clocks
        self._entities = {name: {row: Entity(*who) for row, who in rows} for name, rows in known.items()}
        self._shown, self._found = 0, self._look()

    # -- internals -------------------------------------------------------------------------------------------

    def _observe(self, samples: FamilySamples, window: Window) -> None:
        wanted = [limit for limit in self._limits if set(limit.metrics) <= set(samples.names)]
        if not wanted:
            return
        self._seen = True
        self._entities.setdefault(samples.family, {}).update(zip(samples.rows.tolist(), samples.entities, strict=True))
        past = samples.values.shape[2] - samples.fresh
        idle = _idle(samples)[:, past:]
        if samples.family == "gpu":
            self._clocks.observe(samples, idle)
        self._links |= {(samples.family, row): share for row, share in _link_shares(samples)}
        for limit in wanted:
            memory = self._memory.setdefault((samples.family, limit.id), LimitMemory(limit))
            values, void = _judged(limit, samples, past, idle)
            void |= window.phase in limit.not_in
            for place in range(samples.fresh):
                memory.observe(
                    samples.rows, values[:, place], samples.times_s[:, place],
                    heard_s=window.now_s, idle=idle[:, place], void=void[:, place],
                )  # fmt: skip

    def _look(self) -> list[list[Breach]]:
        """What is broken by kind, each device once for a kind, the gravest kind first."""
        found: dict[str, dict[tuple[str, int], Breach]] = {}
        for (family, _), memory in self._memory.items():
            for row in memory.broken(self._now_s).tolist():
                limit, entity = memory.limit, self._entities[family][row]
                breach = (limit, entity, float(memory.value[row]), float(memory.since_s[row]), row)
                if limit.per_lane and breach[2] <= limit.bar * self._links.get((family, row), 1.0):
                    continue
                own = found.setdefault(limit.kind, {})
                known = own.get((family, row))
                if known is None or limit.severity < known[0].severity:
                    own[family, row] = breach
        groups = [sorted(own.values(), key=lambda one: (one[0].severity, one[3])) for own in found.values()]
        return sorted(groups, key=lambda group: (group[0][0].severity, group[0][0].kind))

    def _vote(self, group: list[Breach]) -> Vote:
        said = [self._says(one) for one in group[:MAX_SUSPECTS]]
        limit, entity, *_ = group[0]
        first = f"{name_of(*entity)}: {said[0]}"
        suspects = tuple(who.suspect(1.0, words) for (_, who, *_), words in zip(group, said, strict=False))
        return Vote(
            opinion="anomalous", score=1.0, kind=limit.kind, severity=limit.severity, hard=True, suspects=suspects,
            reason=first if len(group) == 1 else f"{first}, and {len(group) - 1} more",
            onset_s=min(since_s for *_, since_s, _ in group),
            metrics=tuple(dict.fromkeys(one.metric for one, *_ in group)),
        )  # fmt: skip

    def _says(self, breach: Breach) -> str:
        """The limit's own words, and what it costs where clocks are held down."""
        limit, _, value, _, row = breach
        words, cost = limit.words(value), ""
        if limit.kind == "gpu_throttle" and limit.metric not in CLOCKS:
            cost = self._clocks.words(row)
        return f"{words}; {cost}" if cost else words


def _judged(
    limit: Limit, samples: FamilySamples, past: int, idle: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """The values that `limit` is about [rows, new samples], and which of them are well whatever they are."""
    values, *others = (samples.values[:, samples.names.index(name), past:] for name in limit.metrics)
    void = np.zeros(values.shape, dtype=np.bool_)
    if limit.when is not None:
        when = others.pop()
        void |= when <= 0.5
        values = np.where(np.isnan(when), np.nan, values)
    if limit.at_work:
        void |= idle
    if limit.of is not None:
        values = np.divide(values, others[0], out=np.full(values.shape, np.nan), where=others[0] > 0.0)
    elif limit.than is not None:
        values = values - others[0]
    return values, void


def _link_shares(samples: FamilySamples) -> list[tuple[int, float]]:
    """Rows of devices of which the samples tell what their link can do at most, and its share of the reference."""
    if not set(_LINK) <= set(samples.names) or not samples.values.shape[2]:
        return []
    generation, width = (np.fmax.reduce(samples.values[:, samples.names.index(name)], axis=1) for name in _LINK)
    return [
        (row, _GIGATRANSFERS[int(which)] * lanes / _REFERENCE)
        for row, which, lanes in zip(samples.rows.tolist(), generation.tolist(), width.tolist(), strict=True)
        if which in _GIGATRANSFERS and lanes > 0.0
    ]


def _idle(samples: FamilySamples) -> npt.NDArray[np.bool_]:
    """Which devices are known not to be at work [rows, samples]."""
    told = [samples.values[:, samples.names.index(name)] for name in AT_WORK if name in samples.names]
    if not told:
        return np.zeros((len(samples.rows), samples.values.shape[2]), dtype=np.bool_)
    return np.asarray(np.fmax.reduce(told) < BUSY)
