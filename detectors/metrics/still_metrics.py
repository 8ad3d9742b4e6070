"""Vote: a metric moves that has never moved before: an error counter, a link's state, a table that fills.

Metrics of a few nodes whose error counters stand still for two hours: until one moves, or for good.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from trainwarden.catalogue import lookup
from trainwarden.detectors.job.object_codec import WholeMemory
from trainwarden.detectors.job.samples import Entity, name_of
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.metrics.bundle.calibration import squeeze
from trainwarden.detectors.metrics.stillness import StillFamily
from trainwarden.detectors.protocol import Role
from trainwarden.records import MetricsRecord, Suspect, Vote
from trainwarden.settings import Config

START_S = 1_000_000.0
NODES, EVERY_S, TICKS = 4, 60.0, 140
_NAMES = ("host_cpu_utilization_ratio", "nic_rdma_responder_cqe_errors_count", "gpu_retired_pages_correctable_count")


def still_records(sick: bool) -> list[tuple[float, MetricsRecord]]:
    """Pairs of (time sent, record); if `sick` the last node's counter grows from the 121st minute on."""
    rng = np.random.default_rng(0)
    records = []
    for tick in range(TICKS):
        time_s = START_S + EVERY_S * tick
        for node in range(NODES):
            grown = float(max(0, tick - 120)) if sick and node == NODES - 1 else 0.0
            row = (rng.uniform(0.4, 0.6), 7.0 + grown, 0.0)
            values = tuple((value,) for value in row)
            record = MetricsRecord(
                job="job", node=f"node{node}", time_s=time_s, devices=("GPU-0",), names=_NAMES, values=values
            )
            records.append((time_s, record))
    return records


MAX_SUSPECTS: Final = 16
MAX_METRICS: Final = 8
QUIET: Final = frozenset({"start", "restart", "exit", "ended"})  # phases in which all may move
WEEK: Final = 9.2  # nats: one minute in 10,000; what has stood for so long may open by itself
# Metrics that move when something breaks; the others measure work.
_TELLS: Final = re.compile(
    r"(?i)error|replay|retire|remap|ecc_|recover|downed|lost|carrier_down|inactive|active_links|link_state|physical_state"
    r"|fabric|link_width|oom_kill|readonly|timeouts|discards|pause_storm|health_state|peer_access|uncompleted|impaired"
)
Moved = tuple[float, str, int, int, bool]
"""Nats, family, metric and row of what moves, and whether that lasts and tells."""


class StillMetrics(WholeMemory):
    """Metrics that never moved in normal time move: graded by how long they had stood on all entities of a family.

    Such a vote supports those of the models. It opens an incident alone where the metric was away in three of five
    samples, has not come and gone before, and is one that moves when something breaks, by its name; one that the
    catalogue does not know does so, too, if it had stood for a week.

    Parameters
    ----------
    config : StillMetrics.Config

    References
    ----------
    Laplace, Essai philosophique sur les probabilites, 1814 (rule of succession).
    """

    class Config(Config, frozen=True, kw_only=True):
        """`leave_out` names metrics that are not looked at."""

        leave_out: tuple[str, ...] = ()

    role = Role(reads="samples", opens=("verified",), past=False)
    contract_stream = staticmethod(still_records)
    HELD = (Entity, StillFamily)
    NOT_KEPT = ("_leave_out", "_found")

    def __init__(self, config: Config) -> None:
        self._leave_out = frozenset(config.leave_out)
        self._families: dict[str, StillFamily] = {}
        self._found: list[Moved] = []
        self._now_s = 0.0

    @property
    def more(self) -> bool:
        """One finding holds all."""
        return False

    def update(self, window: Window) -> None:
        """Observe new samples."""
        self._now_s = window.now_s
        for samples in window.samples:
            family = self._families.setdefault(samples.family, StillFamily())
            family.observe(samples, window.now_s, quiet=samples.normal or window.phase in QUIET)
        if window.samples or self._found:
            self._found = self._look()

    def score(self, window: Window) -> Vote:
        """What moves, the rarest first; normal if nothing does."""
        if self._found:
            return self._vote()
        if not self._families:
            return Vote(opinion="abstain", reason="no metric was measured")
        return Vote(opinion="normal")

    def _restored(self) -> None:
        self._found = self._look()

    # -- internals -------------------------------------------------------------------------------------------

    def _look(self) -> list[Moved]:
        found: list[Moved] = []
        for name, family in self._families.items():
            asked = np.array([one not in self._leave_out for one in family.names], dtype=np.bool_)
            away, lasting = family.moving(self._now_s)
            for metric, row in np.argwhere(away & asked[:, None]).tolist():
                nats = float(family.nats[metric, row])
                opens = lasting[metric, row] and not family.told[metric] and tells(family.names[metric], nats)
                found.append((nats, name, metric, row, bool(opens)))
        return sorted(found, key=lambda one: (not one[4], -one[0]))

    def _vote(self) -> Vote:
        alone = self._found[0][4]
        shown = [one for one in self._found if one[4] or not alone]
        best: dict[tuple[str, int], Moved] = {}
        for one in shown:
            best.setdefault((one[1], one[3]), one)
        suspects = tuple(self._suspect(one) for one in list(best.values())[:MAX_SUSPECTS])
        _, name, _, row, _ = shown[0]
        first = f"{name_of(*self._families[name].entities[row])}: {suspects[0].reason}"
        metrics = dict.fromkeys(self._families[one[1]].names[one[2]] for one in shown)
        return Vote(
            opinion="anomalous", score=suspects[0].score, threshold=min(0.41, suspects[0].score),
            kind="metric_anomaly", severity="sev3", verified=alone, suspects=suspects,
            reason=first if len(best) == 1 else f"{first}, and {len(best) - 1} more",
            onset_s=min(float(self._families[one[1]].since_s[one[2], one[3]]) for one in shown),
            metrics=tuple(metrics)[:MAX_METRICS],
        )  # fmt: skip

    def _suspect(self, moved: Moved) -> Suspect:
        nats, name, metric, row, _ = moved
        family = self._families[name]
        who, level, value = family.entities[row], family.level[metric, row], family.value[metric, row]
        stood_s = float(family.since_s[metric, row] - family.level_s[metric, row])
        now = "and is back" if value == level else f"and is {value:g}"
        words = f"{family.names[metric]} stood at {level:g} for {_length(stood_s)} {now}"
        return who.suspect(float(squeeze(nats)), words)


def tells(name: str, nats: float) -> bool:
    """Whether a metric says by itself that something is wrong, when a movement of it is as rare as `nats`.

    Examples
    --------
    >>> [tells(name, 4.0) for name in ("gpu_pcie_replay_count", "gpu_power_watts", "our_own_errors", "our_own_queue")]
    [True, False, True, False]
    >>> [tells(name, 9.3) for name in ("gpu_power_watts", "our_own_queue")]
    [False, True]
    """
    known = lookup(name)
    return _TELLS.search(name if known is None else known.name) is not None or (known is None and nats >= WEEK)


def _length(seconds: float) -> str:
    """A time in words.

    Examples
    --------
    >>> _length(90.0), _length(7_200.0), _length(400_000.0)
    ('2 min', '2.0 h', '4.6 days')
    """
    if seconds < 3600.0:
        return f"{seconds / 60.0:.0f} min"
    return f"{seconds / 3600.0:.1f} h" if seconds < 172_800.0 else f"{seconds / 86_400.0:.1f} days"
