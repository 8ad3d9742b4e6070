"""Charts say what the arrays hold: gaps where nothing is known, groups by their slowest, long iterations whole."""

from __future__ import annotations

import base64

import numpy as np

from tests.page_world import NOW_S, verdicts
from trainwarden.dashboards.page.charts import Series, Span, heat_map, iteration_chart, votes_chart


def series(seconds: list[list[float | None]], *, counts: float = 10.0, bin_s: float = 5.0) -> Series:
    means = np.array([[np.nan if one is None else one for one in row] for row in seconds])
    known = np.where(np.isnan(means), 0.0, counts)
    return Series(list(range(len(means))), np.nan_to_num(means) * known, known, bin_s, NOW_S)


def test_a_gap_stays_a_gap_and_a_lone_point_is_seen() -> None:
    chart = iteration_chart(series([[1.0, 1.0, None, 1.0, None, 2.0]]), 1.0, [])
    assert chart["path"].count("M") == 3
    assert chart["path"].count("h0.01") == 3
    assert chart["readout"]["values"] == [1.0, 1.0, None, 1.0, None, 2.0]
    assert chart["top_s"] == 2.4


def test_marks_outside_the_time_shown_are_left_out() -> None:
    chart = iteration_chart(series([[1.0] * 4]), None, [(NOW_S - 10.0, "onset", "w"), (NOW_S - 99.0, "act", "w")])
    assert [mark["x"] for mark in chart["marks"]] == [500.0]
    assert chart["healthy_y"] is None


def test_an_iteration_longer_than_a_bin_makes_no_stripes() -> None:
    rows = [[30.0 if at % 6 == 0 else None for at in range(36)] for _ in range(4)]
    wide = series(rows, counts=1.0).wide()
    assert (wide.counts > 0).all()
    assert wide.bin_s >= 30.0
    assert wide.counts.sum() == 24.0


def test_each_row_stands_for_its_slowest_above_512_ranks() -> None:
    seconds = np.ones((1_100, 4))
    seconds[777, 2] = 2.0
    chart = heat_map(series(seconds.tolist()))
    cells = np.frombuffer(base64.b64decode(chart["cells"]["values"]), np.uint8).reshape(chart["cells"]["rows"], 4)
    assert (chart["per_row"], chart["cells"]["rows"]) == (3, 367)
    assert chart["cells"]["labels"][259] == "777-779"
    assert cells[259].tolist() == [128, 128, 192, 128]
    assert (np.delete(cells, 259, axis=0) == 128).all()


def test_unknown_is_zero_and_extremes_are_at_the_ends() -> None:
    chart = heat_map(series([[1.0, None], [1.0, None], [1.0, 1.0], [100.0, None], [0.001, None]], bin_s=100.0))
    cells = np.frombuffer(base64.b64decode(chart["cells"]["values"]), np.uint8).reshape(5, 2)
    assert cells[:, 0].tolist() == [128, 128, 128, 255, 1]
    assert cells[:, 1].tolist() == [0, 0, 128, 0, 0]


def test_the_slowest_now_comes_first_and_who_says_nothing_now_last() -> None:
    rows: list[list[float | None]] = [[1.0] * 12, [1.0] * 6 + [2.0] * 6, [3.0] * 6 + [None] * 6, [1.0] * 12]
    slowest = heat_map(series(rows))["slowest"]
    assert slowest[0]["rank"] == 1
    assert slowest[0]["now"] == 2.0
    assert (slowest[-1]["rank"], slowest[-1]["now"]) == (2, None)


def test_votes_are_bars_as_high_as_their_score() -> None:
    told = [record for _, _, record in verdicts("j", now_s=NOW_S)]
    chart = votes_chart(told, Span(NOW_S - 1_500.0, NOW_S))  # type: ignore[arg-type]
    assert chart is not None
    rows = {row["name"]: row for row in chart["rows"]}
    assert list(rows) == ["change_point", "iteration_threshold", "log_window", "peer_deviation"]
    assert rows["peer_deviation"]["anomalous"].startswith("M6")
    assert rows["log_window"]["anomalous"] == ""
    assert rows["log_window"]["normal"].count("M") == 1
    assert chart["silent"] == [("lof, pca", "no model is loaded")]
    assert votes_chart([], None) is None
