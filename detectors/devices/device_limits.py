"""Vote: a device is beyond a limit that is known for it: temperature, memory errors, replays, link errors."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from detectors.devices.contract_stream import device_records
from detectors.devices.limits import Limit, LimitMemory, shipped_limits
from detectors.devices.signs import AT_WORK, BUSY
from detectors.job.packed import pack, unpack
from detectors.job.samples import Entity, FamilySamples, name_of
from detectors.job.window import Window
from detectors.protocol import Role
from trainwarden.errors import DetectorError
from trainwarden.records import Suspect, Vote
from trainwarden.settings import Config

MAX_SUSPECTS: Final = 16
_KIND: Final = "device_limits"
Breach = tuple[Limit, Entity, float, float]
"""A limit, the device beyond it, its value, and since when."""


class DeviceLimits:
    """Limits on single devices, each with its source, in ``limits.toml``; they need no model and no peers.

    Parameters
    ----------
    config : DeviceLimits.Config
    """

    class Config(Config, frozen=True, kw_only=True):
        """`leave_out` names limits (`limits.toml`) that are not asked."""

        leave_out: tuple[str, ...] = ()

    metrics = tuple(dict.fromkeys([*(one.metric for one in shipped_limits()), *AT_WORK]))
    role = Role(reads="samples", opens=("hard",), metrics=metrics)
    contract_stream = staticmethod(device_records)

    def __init__(self, config: Config) -> None:
        self._limits = [one for one in shipped_limits() if one.id not in config.leave_out]
        self._memory: dict[tuple[str, str], LimitMemory] = {}  # by family and limit
        self._entities: dict[str, dict[int, Entity]] = {}
        self._now_s = 0.0
        self._shown, self._at_s = 0, -np.inf
        self._found: list[list[Breach]] = []
        self._seen = False

    @property
    def more(self) -> bool:
        """True while devices that are sick in another way wait behind those shown."""
        return self._shown + 1 < len(self._found)

    def update(self, window: Window) -> None:
        """Take in new samples; a further call for the same moment turns to the next finding, if there is ``more``."""
        self._shown = self._shown + 1 if window.now_s == self._at_s and self.more else 0
        self._at_s = window.now_s
        for samples in window.samples:
            self._take(samples)
        if window.samples:
            self._found = self._look()

    def score(self, window: Window) -> Vote:
        """The finding whose turn it is, the gravest first; normal if there is none."""
        if self._found:
            return _vote(self._found[min(self._shown, len(self._found) - 1)])
        if not self._seen:
            return Vote(opinion="abstain", reason="no metric of a device that has a limit")
        return Vote(opinion="normal")

    def state(self) -> bytes:
        """See `detectors.protocol.Detector`."""
        plain: dict[str, Any] = {"now_s": self._now_s, "seen": self._seen, "memory": list(self._memory)}
        plain["entities"] = {
            name: [[row, list(one)] for row, one in known.items()] for name, known in self._entities.items()
        }
        arrays: dict[str, npt.NDArray[Any]] = {}
        for number, memory in enumerate(self._memory.values()):
            arrays |= {f"{number}/{name}": array for name, array in memory.state().items()}
        return pack(_KIND, plain, arrays)

    def restore(self, state: bytes) -> None:
        """See `detectors.protocol.Detector`."""
        plain, arrays = unpack(_KIND, state)
        limits = {one.id: one for one in self._limits}
        try:
            memory: dict[tuple[str, str], LimitMemory] = {}
            for number, (family, name) in enumerate(plain["memory"]):
                if name in limits:
                    one = memory[family, name] = LimitMemory(limits[name])
                    one.restore({part: arrays[f"{number}/{part}"] for part in one.state()})
            known = msgspec.convert(plain["entities"], dict[str, list[tuple[int, Entity]]])
            self._now_s, self._seen = float(plain["now_s"]), bool(plain["seen"])
        except (KeyError, TypeError, ValueError, msgspec.ValidationError) as error:
            raise DetectorError(f"state of {_KIND} is damaged: {error}") from error
        self._memory = memory
        self._entities = {name: {row: Entity(*who) for row, who in rows} for name, rows in known.items()}
        self._shown, self._found = 0, self._look()

    # -- internals -------------------------------------------------------------------------------------------

    def _take(self, samples: FamilySamples) -> None:
        wanted = [limit for limit in self._limits if limit.metric in samples.names]
        if not wanted:
            return
        self._seen = True
        self._entities.setdefault(samples.family, {}).update(zip(samples.rows.tolist(), samples.entities, strict=True))
        past = samples.values.shape[2] - samples.fresh
        idle = _idle(samples)[:, past:]
        for limit in wanted:
            memory = self._memory.setdefault((samples.family, limit.id), LimitMemory(limit))
            values = samples.values[:, samples.names.index(limit.metric), past:]
            for place in range(samples.fresh):
                memory.take(samples.rows, values[:, place], samples.times_s[:, place], idle[:, place])
        self._now_s = float(np.fmax.reduce(samples.times_s, axis=None, initial=self._now_s))

    def _look(self) -> list[list[Breach]]:
        """What is broken by kind, each device once for a kind, the gravest kind first."""
        found: dict[str, dict[tuple[str, int], Breach]] = {}
        for (family, _), memory in self._memory.items():
            for row in memory.broken(self._now_s).tolist():
                limit, entity = memory.limit, self._entities[family][row]
                breach = (limit, entity, float(memory.value[row]), float(memory.since_s[row]))
                own = found.setdefault(limit.kind, {})
                known = own.get((family, row))
                if known is None or limit.severity < known[0].severity:
                    own[family, row] = breach
        groups = [sorted(own.values(), key=lambda one: (one[0].severity, one[3])) for own in found.values()]
        return sorted(groups, key=lambda group: (group[0][0].severity, group[0][0].kind))


def _idle(samples: FamilySamples) -> npt.NDArray[np.bool_]:
    """Which devices are known not to be at work [rows, samples]."""
    told = [samples.values[:, samples.names.index(name)] for name in AT_WORK if name in samples.names]
    if not told:
        return np.zeros((len(samples.rows), samples.values.shape[2]), dtype=np.bool_)
    return np.asarray(np.fmax.reduce(told) < BUSY)


def _vote(group: list[Breach]) -> Vote:
    limit, entity, value, _ = group[0]
    first = f"{name_of(*entity)}: {limit.words(value)}"
    suspects = tuple(
        Suspect(score=1.0, reason=one.words(size), rank=who.rank, node=who.node, device=who.device)
        for one, who, size, _ in group[:MAX_SUSPECTS]
    )
    return Vote(
        opinion="anomalous", score=1.0, kind=limit.kind, severity=limit.severity, hard=True, suspects=suspects,
        reason=first if len(group) == 1 else f"{first}, and {len(group) - 1} more",
        onset_s=min(since_s for *_, since_s in group),
        metrics=tuple(dict.fromkeys(one.metric for one, *_ in group)),
    )  # fmt: skip
