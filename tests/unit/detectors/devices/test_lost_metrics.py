"""What was found in metrics ends with them: of what is not measured any more nothing is said."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pytest

from trainwarden import plugins
from trainwarden.detectors import CATALOG, ENTRY_POINTS
from trainwarden.detectors.job.last_seen import absent_after, interval_after
from trainwarden.detectors.job.state import JobState
from trainwarden.records import MetricsRecord

NAMES: Final = ("gpu_temperature_celsius", "gpu_power_watts", "gpu_pcie_replay_count")
USUAL: Final = np.array([60.0, 500.0, 0.0])
GPUS: Final = 6
SICK_S, LOST_S = 2_400.0, 4_200.0
LATER: Final = 30  # samples after they are lost


def rows(every_s: float, samples: int) -> Any:
    """Of GPU 2 all is odd from `SICK_S` on ``[gpus, metrics, samples]``."""
    random, first = np.random.default_rng(4), round(SICK_S / every_s)
    noise = random.normal(size=(GPUS, 3, samples)) * np.array([0.5, 5.0, 0.0])[:, None]
    values = USUAL[:, None] + noise
    values[2, 0, first:], values[2, 2, first:] = 97.0, 1.0 + np.arange(samples - first) // 3
    values[2, 1, first:] -= 200.0
    return values


def opinions(name: str, how: str, every_s: float, back: int = 10**9) -> dict[int, str]:
    """What a detector says after each sample, counted from the first that is lost; all come `back`, and are well."""
    plugin: Any = plugins.load(CATALOG, ENTRY_POINTS, name)
    detector, state, lost = plugin(plugin.Config()), JobState("j"), round(LOST_S / every_s)
    values, said = rows(every_s, lost + LATER + 15), {}
    for sample in range(values.shape[2]):
        time_s, away, again = 1e6 + sample * every_s, sample >= lost, sample - lost >= back
        for gpu in range(GPUS):
            names, row = NAMES, [(float(value),) for value in (USUAL if again else values[gpu, :, sample])]
            if away and not again and (how == "all" or (how == "gpu" and gpu == 2)):
                continue
            if away and not again and how == "metrics" and gpu == 2:
                names, row = ("gpu_memory_used_bytes",), [(1e9,)]
            state.feed(
                MetricsRecord(
                    job="j", node="n", time_s=time_s, devices=(f"GPU-{gpu}",), names=names, values=tuple(row),
                    ranks=(gpu,),
                )
            )  # fmt: skip
        window = state.window(time_s + 0.01)
        detector.update(window)
        said[sample - lost] = detector.score(window).opinion
    return said


@pytest.mark.thorough
@pytest.mark.parametrize("every_s", [2.0, 60.0])
@pytest.mark.parametrize("how", ["metrics", "gpu", "all"])
@pytest.mark.parametrize("name", ["device_limits", "metric_peers", "still_metrics"])
def test_what_was_found_ends_ten_samples_after_the_last_one_or_after_half_a_minute(
    name: str, how: str, every_s: float
) -> None:
    said = opinions(name, how, every_s)
    assert said[-1] == "anomalous"
    last = max(sample for sample, opinion in said.items() if opinion == "anomalous")
    assert 0 <= last <= max(10.0, 30.0 / every_s)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["metrics", "gpu", "all"])
def test_who_comes_back_well_is_not_away_for_what_was_found_before(how: str) -> None:
    said = opinions("metric_peers", how, 60.0, back=LATER)
    assert {opinion for sample, opinion in said.items() if sample > 11} == {"normal"}


def test_an_interval_forgets_an_outage_and_not_a_slow_metric() -> None:
    every_s = np.array([np.nan])
    for elapsed_s in (60.0, 60.0, 7_200.0, *[60.0] * 60):
        every_s = interval_after(every_s, np.array([elapsed_s]))
    assert every_s[0] == 60.0
    assert absent_after(every_s)[0] == 600.0
