"""Vote: metrics of a rank, GPU, port or node that are unlike those of its role's peers; without any model.

Metrics of eight ranks as their agents would send them: alike up to noise, or with one that has changed.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from trainwarden.catalogue import CATALOGUE
from trainwarden.detectors.devices.rounds import PeerRounds
from trainwarden.detectors.devices.signs import BUSY
from trainwarden.detectors.job.last_seen import absent_after, interval_after
from trainwarden.detectors.job.object_codec import WholeMemory
from trainwarden.detectors.job.samples import Entity, name_of, value_in_words
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.protocol import Role
from trainwarden.records import IncidentKind, MetricsRecord, Suspect, Vote
from trainwarden.settings import Config

START_S = 1_000_000.0
NODES, RANKS, TICKS = 2, 4, 100
SICK_RANK, SICK_TICK = 6, 45
_NAMES = ("rank_cpu_ratio", "rank_run_queue_wait_ratio", "rank_resident_memory_bytes")


def peer_records(sick: bool) -> list[tuple[float, MetricsRecord]]:
    """Pairs of (time sent, record); if `sick` rank 6 loses half of its processor to others from the 46th second on.

    The second node's clock is 40 s behind, and rank 0 has always had more memory.
    """
    rng = np.random.default_rng(0)
    records = []
    for tick in range(TICKS):
        for node in range(NODES):
            ranks = tuple(range(RANKS * node, RANKS * (node + 1)))
            lost = np.array([0.5 if sick and rank == SICK_RANK and tick >= SICK_TICK else 0.0 for rank in ranks])
            rows = (
                1.6 * (1.0 - lost) + rng.normal(0.0, 0.03, RANKS),
                np.clip(0.1 + lost + rng.normal(0.0, 0.02, RANKS), 0.0, 1.0),
                1.2e9 + np.where(np.array(ranks) == 0, 2e9, 0.0) + rng.normal(0.0, 1e6, RANKS),
            )
            sent_s = START_S + tick + 0.1 * node
            record = MetricsRecord(
                job="job", node=f"node{node}", time_s=sent_s - 40.0 * node, names=_NAMES, ranks=ranks,
                devices=tuple(f"rank-{rank}" for rank in ranks),
                values=tuple(tuple(float(one) for one in row) for row in rows),
            )  # fmt: skip
            records.append((sent_s, record))
    return records


MAX_SUSPECTS: Final = 16
SHOWN: Final = 3  # metrics that a reason names
WITNESSES: Final = 2  # metrics of one entity that must be unlike before an incident rests on that
_CLOCK: Final = "gpu_sm_clock_hertz"
_USE: Final = "gpu_utilization_ratio"
_WITNESS_OF_CLOCK: Final = frozenset({"gpu_power_watts", "gpu_temperature_celsius"})
# Least distances by which the clock of a busy GPU tells where neither of its witnesses is known.
HELD_TIMES: Final = 3.0
ALONE_TIMES: Final = 4.0  # least distances away where a family has a single metric, as the export of one panel
Odd = tuple[str, int, list[tuple[float, int]]]
"""A family, a row of it, and its metrics with how often their least distance they are away, the worst first."""


class MetricPeers(WholeMemory):
    """Every metric of every entity beside the median of its role, from the first full window on.

    Away is what is farther from the peers' median than usual for it, by the catalogue's least distance, two robust
    deviations of the peers and 1.5 of its own mean distances, in 20 of 30 rounds on one side. What a few rounds of lag
    explain (dynamic time warping) is not, nor what more than a fifth of a role does. One metric supports others; two of
    one entity may open an incident, a family's only metric where it is four least distances away, and the low clock of
    a GPU that works where neither its power nor its heat is known.

    Parameters
    ----------
    config : MetricPeers.Config

    References
    ----------
    Iglewicz and Hoaglin, How to Detect and Handle Outliers, 1993 (robust z-scores); Sakoe and Chiba, IEEE Trans. ASSP
    26 (1978), section II.
    """

    class Config(Config, frozen=True, kw_only=True):
        """`leave_out` names metrics that are not compared."""

        leave_out: tuple[str, ...] = ()

    role = Role(
        reads="samples",
        opens=("verified",),
        metrics=tuple(one.name for one in CATALOGUE.values() if one.apart is not None or one.apart_share is not None),
    )
    contract_stream = staticmethod(peer_records)
    HELD = (Entity, PeerRounds)
    NOT_KEPT = ("_leave_out", "_found")

    def __init__(self, config: Config) -> None:
        self._leave_out = frozenset(config.leave_out)
        self._families: dict[str, PeerRounds] = {}
        self._restarts = 0
        self._found: list[Odd] = []
        self._heard: dict[str, tuple[float, float]] = {}  # by family: when, and how often

    @property
    def more(self) -> bool:
        """One finding holds all."""
        return False

    def update(self, window: Window) -> None:
        """Observe new samples; a phase in which ranks differ by what they do is neither judged nor learnt from."""
        if window.restarts != self._restarts:
            self._restarts = window.restarts
            for family in self._families.values():
                family.restart()
            self._found = []
        before = self._rounds()
        self._listen(window)
        for place in range(max((samples.fresh for samples in window.samples), default=0)):
            for samples in window.samples:
                if place < samples.fresh:
                    family = self._families.setdefault(samples.family, PeerRounds())
                    family.observe(samples, place, quiet=bool(window.phase))
        if self._rounds() != before:
            self._found = self._look()

    def score(self, window: Window) -> Vote:
        """Who is unlike, most of all first; normal if nobody is."""
        del window
        if self._found:
            return self._vote()
        compared = {name: one.why_not() for name, one in self._families.items() if one.names}
        why = "; ".join(
            f"{name or 'rows without device'}: {reason}" for name, reason in sorted(compared.items()) if reason
        )
        if all(compared.values()):
            return Vote(opinion="abstain", reason=why or "no metric by which peers are compared")
        return Vote(opinion="normal", threshold=0.5, reason=f"not compared: {why}" if why else "")

    def _restored(self) -> None:
        self._found = self._look()

    # -- internals -------------------------------------------------------------------------------------------

    def _listen(self, window: Window) -> None:
        """Whoever is silent makes no rounds: a family that is lost is forgotten by time."""
        speak = {samples.family for samples in window.samples if samples.fresh}
        for name, (heard_s, every_s) in self._heard.items():
            if name not in speak and window.now_s - heard_s > float(absent_after(np.array(every_s))):
                self._families[name].forget()
                self._found = self._look() if self._found else []
        for name in speak:
            heard_s, every_s = self._heard.get(name, (window.now_s, float("nan")))
            elapsed_s = window.now_s - heard_s if window.now_s > heard_s else float("nan")
            self._heard[name] = window.now_s, float(interval_after(np.array(every_s), np.array(elapsed_s)))

    def _rounds(self) -> int:
        return sum(family.number for family in self._families.values())

    def _look(self) -> list[Odd]:
        """Who is unlike its peers; of one with several metrics before those with one."""
        found: list[Odd] = []
        for name, family in self._families.items():
            by_row: dict[int, list[tuple[float, int]]] = {}
            cells = family.outlying()
            for (metric, row), times in zip(cells.tolist(), family.times_away(cells).tolist(), strict=True):
                if family.names[metric] not in self._leave_out:
                    by_row.setdefault(row, []).append((times, metric))
            found += [(name, row, sorted(metrics, reverse=True)) for row, metrics in by_row.items()]
        return sorted(found, key=lambda one: (-len(one[2]), -one[2][0][0], one[0], one[1]))

    def _vote(self) -> Vote:
        verified = any(map(self._opens, self._found))
        shown = [one for one in self._found if self._opens(one) or not verified]
        suspects = tuple(self._suspect(one) for one in shown[:MAX_SUSPECTS])
        name, row, _ = shown[0]
        first = f"{name_of(*self._families[name].entities[row])}: {suspects[0].reason}"
        metrics = dict.fromkeys(self._families[one].names[metric] for one, _, found in shown for _, metric in found)
        onsets = [self._families[one].cells["away_s"][metric, at] for one, at, found in shown for _, metric in found]
        return Vote(
            opinion="anomalous", score=suspects[0].score, threshold=0.5, kind=self._kind(shown[0]), severity="sev3",
            reason=first if len(shown) == 1 else f"{first}, and {len(shown) - 1} more", suspects=suspects,
            verified=verified, onset_s=float(np.nanmin(onsets)), metrics=tuple(metrics),
        )  # fmt: skip

    def _kind(self, odd: Odd) -> IncidentKind:
        """A GPU at a lower clock than its peers is held back where it is hotter, or as busy with less power."""
        name, row, metrics = odd
        family = self._families[name]
        above = {
            family.names[metric]: bool(family.newest(metric, row) > family.cells["middle"][metric, row])
            for _, metric in metrics
        }
        weak = above.get("gpu_power_watts") is False and self._busy(family, row)
        held = above.get(_CLOCK) is False and (above.get("gpu_temperature_celsius") or weak)
        return "gpu_throttle" if held or self._held_alone(odd) else "metric_anomaly"

    def _held_alone(self, odd: Odd) -> bool:
        """A busy GPU's clock far below its peers' is enough where nothing that could bear it out is measured."""
        name, row, metrics = odd
        family = self._families[name]
        if _WITNESS_OF_CLOCK & set(family.names) or not self._busy(family, row):
            return False
        return any(
            family.names[metric] == _CLOCK
            and times >= HELD_TIMES
            and family.newest(metric, row) < family.cells["middle"][metric, row]
            for times, metric in metrics
        )

    def _busy(self, family: PeerRounds, row: int) -> bool:
        return _USE in family.names and family.newest(family.names.index(_USE), row) >= BUSY

    def _opens(self, odd: Odd) -> bool:
        """Whether enough metrics are unlike, or the only one that there is, by far."""
        name, _, metrics = odd
        only = len(self._families[name].names) == 1 and metrics[0][0] >= ALONE_TIMES
        return only or len(metrics) >= WITNESSES or self._held_alone(odd)

    def _suspect(self, odd: Odd) -> Suspect:
        name, row, metrics = odd
        family = self._families[name]
        who = family.entities[row]
        words = [
            f"{(name := family.names[metric])} {value_in_words(name, family.newest(metric, row))} where its "
            f"{family.peers_of(row)} peers have {value_in_words(name, family.cells['middle'][metric, row])}"
            for _, metric in metrics[:SHOWN]
        ]
        times = metrics[0][0]
        score = max(0.5, times / (1.0 + times))
        return who.suspect(score, ", ".join(words))
