"""Vote: a device differs from its peers, by two signs at least where signs are statistical, and for a while."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from trainwarden.detectors.devices.contract_stream import device_records
from trainwarden.detectors.devices.peer_memory import PeerFamily
from trainwarden.detectors.devices.signs import (
    CAP,
    GPU_METRICS,
    GPU_SIGNS,
    NIC_METRICS,
    NIC_SIGNS,
    gpu_signs,
    nic_signs,
)
from trainwarden.detectors.job.object_codec import WholeMemory
from trainwarden.detectors.job.samples import Entity, name_of
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.protocol import Role
from trainwarden.errors import DetectorError
from trainwarden.records import IncidentKind, Vote
from trainwarden.settings import Config

MAX_SUSPECTS: Final = 16
EVERY_S: Final = 14.0  # between two comparisons: exporters are scraped every 15 s or so
_WORKS_LESS: Final = ("clock_low", "memory_clock_low", "power_low")  # one of these two signs must be
_SAYS: Final = {
    "clock_low": "SM clock {size:.0f} MHz where its busy peers have {middle:.0f}",
    "memory_clock_low": "memory clock {size:.0f} MHz where its busy peers have {middle:.0f}",
    "power_low": "{size:.0f} W where its busy peers draw {middle:.0f}",
    "hot": "{size:.0f} °C where its busy peers have {middle:.0f}",
    "throttled": "its clocks are held down",
    "narrow": "{size:.0f} PCIe lanes where its peers have {middle:.0f}",
    "old_link": "PCIe generation {size:.0f} under load where its busy peers have {middle:.0f}",
    "capped": "its power limit is {size:.0f} W where its peers have {middle:.0f}",
    "down": "not active (state {size:.0f}) while the ports of this name on like nodes are",
    "slow_link": "runs at {size:.0f} Gb/s where the ports of this name on like nodes have {middle:.0f}",
}
_UNIT: Final = {"clock_low": 1e6, "memory_clock_low": 1e6, "slow_link": 1.25e8}
_METRIC: Final = {
    "clock_low": "gpu_sm_clock_hertz", "memory_clock_low": "gpu_memory_clock_hertz", "power_low": "gpu_power_watts",
    "hot": "gpu_temperature_celsius", "throttled": "gpu_throttle_hardware_state",
    "narrow": "gpu_pcie_link_width_count", "old_link": "gpu_pcie_link_generation_version", "capped": CAP,
    "down": NIC_METRICS[0], "slow_link": NIC_METRICS[1],
}  # fmt: skip
Accused = tuple[str, int, tuple[str, ...]]
"""A family, a row of it, and the signs."""


class DevicePeers(WholeMemory):
    """GPUs that work less than their busy peers and show why; links that are down or slow where their likes are not.

    Signs are distances from the median of the peers of the same role (of a Prometheus: the same model), in robust
    standard deviations; one statistical sign alone accuses nobody.

    Parameters
    ----------
    config : DevicePeers.Config
    """

    class Config(Config, frozen=True, kw_only=True):
        """There is nothing to be set."""

    role = Role(reads="samples", opens=("verified",), metrics=(*GPU_METRICS, *NIC_METRICS))
    contract_stream = staticmethod(device_records)
    HELD = (Entity, PeerFamily)
    NOT_KEPT = ("_shown", "_at_s", "_found")

    def __init__(self, config: Config) -> None:
        del config
        self._families = {"gpu": PeerFamily(GPU_METRICS, GPU_SIGNS), "nic": PeerFamily(NIC_METRICS, NIC_SIGNS)}
        self._shown, self._at_s = 0, -np.inf
        self._found: dict[IncidentKind, list[Accused]] = {}

    @property
    def more(self) -> bool:
        """True while devices that differ in another way wait behind those shown."""
        return self._shown + 1 < len(self._found)

    def update(self, window: Window) -> None:
        """Observe new samples; a further call for the same moment turns to the next finding, if there is ``more``."""
        self._shown = self._shown + 1 if window.now_s == self._at_s and self.more else 0
        self._at_s = window.now_s
        for place in range(max((samples.fresh for samples in window.samples), default=0)):
            for samples in window.samples:
                if samples.family in self._families and place < samples.fresh:
                    self._families[samples.family].observe(samples, place)
            self._compare()
        if window.samples:
            self._found = self._look()

    def score(self, window: Window) -> Vote:
        """The finding whose turn it is; normal if there is none."""
        if self._found:
            kind = list(self._found)[min(self._shown, len(self._found) - 1)]
            return self._vote(kind, self._found[kind])
        if all(np.isnan(family.times_s[-1]) for family in self._families.values()):
            return Vote(opinion="abstain", reason="no metric by which devices are compared")
        return Vote(opinion="normal")

    def _restored(self) -> None:
        for name, own in (("gpu", (GPU_METRICS, GPU_SIGNS)), ("nic", (NIC_METRICS, NIC_SIGNS))):
            if name not in self._families or (self._families[name].metrics, self._families[name].signs) != own:
                raise DetectorError(f"the snapshot is of another version, which looks at other metrics of the {name}")
        self._found = self._look()

    # -- internals -------------------------------------------------------------------------------------------

    def _compare(self) -> None:
        for name, family in self._families.items():
            now_s = float(np.nanmax(family.latest_s, initial=-np.inf))
            if not np.isfinite(now_s) or now_s - family.times_s[-1] < EVERY_S:
                continue
            now = family.now(now_s)
            found = gpu_signs(now, family.roles) if name == "gpu" else nic_signs(now, self._kinds_of_ports())
            family.note(now_s, found)

    def _kinds_of_ports(self) -> list[str]:
        """Name of each port, and what GPUs its node has: a login node's ports are not those of a node with eight."""
        gpus, fitted = self._families["gpu"], dict[str | None, Counter[str]]()
        for one, role in zip(gpus.entities, gpus.roles, strict=True):
            fitted.setdefault(one.node, Counter())[role if one.rank is None else ""] += 1
        return [f"{one.device} {sorted(fitted.get(one.node, {}).items())}" for one in self._families["nic"].entities]

    def _look(self) -> dict[IncidentKind, list[Accused]]:
        """Who is accused, by kind."""
        groups: dict[IncidentKind, list[Accused]] = {}
        for name, family in self._families.items():
            lasting = family.lasting()
            for row in np.flatnonzero(lasting.any(axis=1)).tolist():
                signs = tuple(sign for sign, there in zip(family.signs, lasting[row].tolist(), strict=True) if there)
                for kind, own in _kinds(signs):
                    groups.setdefault(kind, []).append((name, row, own))
        return groups

    def _vote(self, kind: IncidentKind, accused: list[Accused]) -> Vote:
        suspects = []
        ordered = sorted(accused, key=lambda one: -len(one[2]))
        for name, row, signs in ordered[:MAX_SUSPECTS]:
            who = self._families[name].entities[row]
            reason = ", ".join(self._says(name, row, sign) for sign in signs)
            suspects.append(who.suspect(1.0, reason))
        name, row, _ = ordered[0]
        first = f"{name_of(*self._families[name].entities[row])}: {suspects[0].reason}"
        return Vote(
            opinion="anomalous", score=1.0, kind=kind, severity="sev2" if kind == "nic_down" else "sev3", verified=True,
            reason=first if len(accused) == 1 else f"{first}, and {len(accused) - 1} more", suspects=tuple(suspects),
            onset_s=min(self._since_s(*one) for one in accused),
            metrics=tuple(dict.fromkeys(_METRIC[sign] for *_, signs in ordered for sign in signs)),
        )  # fmt: skip

    def _since_s(self, name: str, row: int, signs: tuple[str, ...]) -> float:
        family = self._families[name]
        return float(np.nanmin([family.since_s[row, family.signs.index(sign)] for sign in signs]))

    def _says(self, name: str, row: int, sign: str) -> str:
        family, place = self._families[name], self._families[name].signs.index(sign)
        unit = _UNIT.get(sign, 1.0)
        return _SAYS[sign].format(size=family.size[row, place] / unit, middle=family.middle[row, place] / unit)


def _kinds(signs: tuple[str, ...]) -> list[tuple[IncidentKind, tuple[str, ...]]]:
    """Of what `signs` accuse, and by which of them.

    Examples
    --------
    >>> _kinds(("clock_low", "hot")), _kinds(("hot",)), _kinds(("narrow",))
    ([('gpu_throttle', ('clock_low', 'hot'))], [], [('pcie_error', ('narrow',))])
    """
    found: list[tuple[IncidentKind, tuple[str, ...]]] = []
    statistical = tuple(sign for sign in signs if sign in {*_WORKS_LESS, "hot", "throttled"})
    set_low = tuple(sign for sign in signs if sign == "capped")  # a setting, and no statistics
    if set_low or (len(statistical) >= 2 and set(statistical) & set(_WORKS_LESS)):
        found.append(("gpu_throttle", (*set_low, *statistical)))
    if links := tuple(sign for sign in signs if sign in ("narrow", "old_link")):
        found.append(("pcie_error", links))
    kinds: tuple[tuple[str, IncidentKind], ...] = (("down", "nic_down"), ("slow_link", "nic_error"))
    return found + [(kind, (sign,)) for sign, kind in kinds if sign in signs]
