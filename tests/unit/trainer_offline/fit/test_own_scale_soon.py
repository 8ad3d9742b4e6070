"""Jobs that are alike say little of a third one: where a scale of its own costs minutes, every entity gets one."""

from __future__ import annotations

import pytest

from tests import training_data
from tests.training_data import SMALL, job
from trainwarden.trainer_offline.data.grids import PrepareConfig
from trainwarden.trainer_offline.data.prepare import prepare
from trainwarden.trainer_offline.fit.fit import fit


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("every_s", "jobs", "rows", "nodes", "own"),
    [(1.0, 3, 600, 4, True), (2.5, 3, 600, 4, True), (2.6, 3, 600, 4, False), (60.0, 3, 600, 4, False),
     (1.0, 1, 900, 8, False), (1.0, 3, 400, 4, False), (1.0, 3, 600, 3, False)],
)  # fmt: skip
def test_what_is_sampled_fast_and_long_enough_is_judged_on_scales_of_its_own(
    tmp_path, monkeypatch, every_s, jobs, rows, nodes, own
):
    monkeypatch.setattr(training_data, "EVERY_S", every_s)
    for number in range(jobs):
        job(tmp_path / f"job{number}", number, rows=rows, nodes=nodes)
    data = prepare(tmp_path, PrepareConfig(), workers=1)
    bundle = fit(data, SMALL.models, 0)
    (vote,) = bundle.votes.values()
    assert vote.preparation.warm_up == (240 if own else 0)
    (said,) = data.card.scales.values()
    assert said.startswith("own scale for every entity: its own 240 samples" if own else "one scale")
