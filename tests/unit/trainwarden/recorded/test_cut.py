"""A stretch of a recorded job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from trainwarden.recorded.cut import between
from trainwarden.recorded.job import IterationTable, LogTable, MetricTable, RecordedJob

TIMES_S = np.arange(6.0)
JOB = RecordedJob(
    "j",
    Path(),
    metrics=MetricTable(
        TIMES_S, np.array([0, 1, 2, 0, 1, 2]), ("a", "b", "c"), (None,) * 3, ("x",) * 3, ("m",), np.ones((6, 1))
    ),
    iterations=IterationTable(
        rank=np.array([0, 1, 0, 1, 1, 1]), ranks=(0, 1), nodes=("a", "b"), step=np.arange(6), end_s=TIMES_S,
        duration_s=np.ones(6), compute_s=np.ones(6), wait_s=np.ones(6), pause_s=np.ones(6), micro_batches=np.ones(6),
        steps=np.ones(6, dtype=np.int64), timed=True, incarnation=tuple("abcdef"), basis=("host",) * 6,
    ),
    logs=(LogTable("f", np.array([np.nan, 1.0, np.nan, 4.0, np.nan]), (None,) * 5, (None,) * 5, list("vwxyz")),),
)  # fmt: skip


def test_rows_within_and_who_they_are_of():
    cut = between(JOB, 3.0, 4.0)
    assert cut.metrics.times_s.tolist() == [3.0, 4.0]
    assert [cut.metrics.nodes[place] for place in cut.metrics.entity] == ["a", "b"]
    assert cut.iterations.step.tolist() == [3, 4]
    assert (cut.iterations.ranks, cut.iterations.rank.tolist()) == ((1,), [0, 0])
    assert (cut.iterations.incarnation, cut.iterations.basis) == (("d", "e"), ("host", "host"))
    assert cut.logs[0].lines == ["y", "z"]


def test_a_line_without_a_stamp_goes_with_the_one_before_it():
    assert between(JOB, 0.0, 2.0).logs[0].lines == ["w", "x"]


def test_everything_and_nothing():
    whole = between(JOB, 0.0, 9.0)
    assert whole.metrics.values.shape == (6, 1)
    assert whole.iterations.incarnation == JOB.iterations.incarnation
    assert between(JOB, 7.0, 9.0) == replace(JOB, metrics=None, iterations=None, logs=())
