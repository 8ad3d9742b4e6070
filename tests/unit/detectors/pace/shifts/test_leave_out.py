"""Every mechanism of the change points can be left out by its name, each decides something, and none is by default."""

from __future__ import annotations

from typing import Final

import numpy as np
import pytest

from tests.places import ROOT
from tests.unit.detectors.pace.shifts.constructed import CASES, shifts_of
from trainwarden.detectors.job.object_codec import ObjectCodec
from trainwarden.detectors.pace.change_point import ChangePoint
from trainwarden.detectors.pace.shifts.level_shifts import LevelShifts, ShiftConfig
from trainwarden.detectors.pace.shifts.shift import MECHANISMS, Mechanism
from trainwarden.errors import ConfigError, DetectorError
from trainwarden.settings import parse

Told = tuple[int, int, float, float, str]
# What is told of the constructed series with all mechanisms: onset, reported, before, after, basis.
BEFORE: Final[dict[Mechanism, list[Told]]] = {
    "bayes": [(200, 210, 0.9956031612749354, 1.0871013596455004, "segment")],
    "watch": [(200, 205, 0.998238939191451, 1.2229486431232859, "segment")],
    "periodic": [(250, 259, 1.0677386786329595, 1.2032156732264216, "segment")],
    "drift": [(222, 450, 1.0006220927532596, 1.100755889412415, "baseline")],
    "own_drift": [],
    "drift_wait": [
        (200, 212, 1.0024883123283235, 1.4232278637463422, "segment"),
        (213, 216, 1.4232278637463422, 0.9976364984554852, "segment"),
    ],
    "relief": [
        (150, 159, 1.0026378223003491, 1.157199723441603, "segment"),
        (355, 380, 1.1603464851570553, 1.0499341339511152, "baseline"),
    ],
    "trimmed_mean": [],
    "paired_noise": [(40, 43, 1.0778349595447925, 1.4627496216963278, "segment")],
    "separate": [(200, 209, 0.99998534344791, 1.265236486414219, "segment")],
    "wander": [],
    "gentle_gain": [(480, 489, 0.8757866044105637, 0.9982875333395825, "segment")],
    "cluster_wait": [],
    "restart_wait": [],
    "restart_drop": [],
    "faster_wait": [],
    "excursion_wait": [],
    "refine": [(200, 211, 0.998238939191451, 1.103315334997401, "segment")],
    "staircase": [(223, 275, 1.0001324137303782, 1.102629771184961, "baseline")],
    "late_onset": [(222, 450, 1.0006220927532596, 1.100755889412415, "baseline")],
    "continuation": [(200, 209, 0.998238939191451, 1.1147027035775439, "segment")],
}


def test_every_mechanism_has_a_case() -> None:
    assert set(CASES) == set(BEFORE) == set(MECHANISMS)


@pytest.mark.thorough
@pytest.mark.parametrize("name", MECHANISMS)
def test_a_mechanism_decides_and_nothing_is_left_out_by_default(name: Mechanism) -> None:
    values = CASES[name]()
    found = shifts_of(values)
    assert [(s.onset, s.reported, s.basis) for s in found] == [(one[0], one[1], one[4]) for one in BEFORE[name]]
    levels = [(s.before, s.after) for s in found]
    assert levels == [pytest.approx(one[2:4], rel=1e-12) for one in BEFORE[name]]
    assert shifts_of(values, leave_out=(name,)) != found


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["bayes", "periodic", "excursion_wait"])
def test_what_is_left_out_may_be_cut_anywhere_and_forgotten(name: Mechanism) -> None:
    values = CASES[name]()
    config = ShiftConfig(leave_out=(name,))
    first, second = LevelShifts(config), LevelShifts(config)
    found = [shift for seq, x in enumerate(values[:180]) for shift in first.update(seq, np.array([x]))]
    ObjectCodec().load(second, ObjectCodec().dump(first))
    found += [shift for seq, x in enumerate(values[180:], 180) for shift in second.update(seq, np.array([x]))]
    assert found == shifts_of(values, leave_out=(name,))
    second.forget(np.array([True]))
    assert second.update(len(values), np.array([0.0])) == []


def test_one_line_of_settings_leaves_mechanisms_out_of_the_job_and_of_its_ranks() -> None:
    config = parse(ChangePoint.Config, {"leave_out": ["drift", "periodic"], "job": {"leave_out": ["bayes"]}}, "it")
    detector = ChangePoint(config)
    assert detector._left_out() == [["bayes", "drift", "periodic"], ["drift", "periodic"]]
    for name in ("luck", "slope"):  # never known; deleted
        with pytest.raises(ConfigError, match=f"it: invalid enum value '{name}' at leave_out"):
            parse(ChangePoint.Config, {"leave_out": [name]}, "it")


def test_a_state_is_of_the_mechanisms_that_it_was_made_with() -> None:
    state = ChangePoint(ChangePoint.Config()).state()
    with pytest.raises(DetectorError, match="not the state of a ChangePoint without periodic"):
        ChangePoint(ChangePoint.Config(leave_out=("periodic",))).restore(state)


def test_the_documentation_names_every_mechanism() -> None:
    text = (ROOT / "docs" / "change_points.md").read_text()
    assert [name for name in MECHANISMS if f"`{name}`" not in text] == []
