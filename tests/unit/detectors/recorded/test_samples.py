"""A detector that reads metrics as they were measured sees the same of a live job and of its recording."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.detectors import recordings
from tests.unit.detectors.detection_streams import Run
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.protocol import Role
from trainwarden.detectors.recorded.grids import RecordedSamples
from trainwarden.detectors.recorded.replay import replay
from trainwarden.records import MetricsRecord, Vote
from trainwarden.settings import Config, DetectionSettings


class Spy:
    """Remembers what it was shown."""

    class Config(Config, frozen=True, kw_only=True):
        """Nothing to set."""

    role = Role(reads="samples")
    more = False
    seen: list[tuple[str, str, float, float]]
    lengths: set[int]

    def __init__(self, config: Config) -> None:
        """Nothing is kept here."""

    def update(self, window: Window) -> None:
        for one in window.samples:
            Spy.lengths.add(one.values.shape[2])
            for row, entity in enumerate(one.entities):
                for place in range(one.fresh):
                    value = float(one.values[row, one.names.index("power"), place - one.fresh])
                    Spy.seen.append((one.family, str(entity.node), float(one.times_s[row, place]), value))

    def score(self, window: Window) -> Vote:
        return Vote(opinion="normal")

    def state(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        """Nothing to restore."""


@pytest.fixture(autouse=True)
def catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainwarden.detectors.configured_detectors.CATALOG", {"spy": f"{__name__}:Spy"})
    Spy.seen, Spy.lengths = [], set()


def live(job: Any) -> list[tuple[str, str, float, float]]:
    table = job.metrics
    records = [
        (
            float(table.times_s[row]),
            MetricsRecord(
                job="job", node=table.nodes[table.entity[row]], time_s=float(table.times_s[row]), devices=("",),
                names=table.names, values=tuple((float(value),) for value in table.values[row]),
            ),
        )
        for row in range(table.times_s.size)
    ]  # fmt: skip
    Spy.seen = []
    Run(DetectionSettings()).play(records, records[-1][0] + 1.0)
    return Spy.seen


def test_live_and_recorded_are_alike() -> None:
    job = recordings.job(metrics=recordings.metrics(rows=90, entities=3, every_s=2.0))
    assert replay(job, DetectionSettings()).abstained == {}
    recorded = sorted(Spy.seen)
    assert len(recorded) == 90 * 3
    assert max(Spy.lengths) == 65  # the newest and 64 before it, as in a live job
    assert recorded == sorted(live(job))


def test_without_metrics_it_abstains() -> None:
    job = recordings.job(iterations=recordings.iterations(steps=20))
    assert replay(job, DetectionSettings()).detectors.keys() == {"spy"}
    assert Spy.seen == []


def test_nothing_is_shown_before_its_time_or_twice() -> None:
    samples = RecordedSamples.of(recordings.job(metrics=recordings.metrics(rows=10, entities=2)))
    assert samples.pop_new() == ()
    samples.until_s = float(samples.times_s[3])
    (first,) = samples.pop_new()
    assert first.fresh == 4
    assert samples.pop_new() == ()
    samples.until_s = np.inf
    (rest,) = samples.pop_new()
    assert (rest.fresh, rest.values.shape[2]) == (6, 10)
    np.testing.assert_array_equal(rest.times_s[0], samples.times_s[4:])
