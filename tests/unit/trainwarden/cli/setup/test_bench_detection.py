"""The scoring protocol of ``trainwarden bench detection`` on cases small enough to be counted by hand."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest

from tests.benchmarks import bench_detection
from tests.benchmarks.detection import metrics as detection_metrics
from tests.benchmarks.detection import mixed as detection_mixed
from tests.benchmarks.detection.baselines import BASELINES, baselines
from tests.benchmarks.detection.metrics import Judged
from tests.benchmarks.detection.mixed import Outcome, figures, leave_out, right_kind
from tests.benchmarks.detection.protocol import (
    Series,
    blamed_by_chance,
    counts,
    curve,
    intervals,
    quality,
    spans_quality,
    summary,
)
from tests.benchmarks.detection.servers import interpretation, listed, load
from tests.benchmarks.detection.tables import markdown, text
from trainwarden.cli.setup.bench import bench
from trainwarden.errors import ConfigError

DAY = 100.0  # samples a day in these cases


def flags(size: int, *spans: tuple[int, int]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    out = np.zeros(size, dtype=np.bool_)
    for first, last in spans:
        out[first : last + 1] = True
    return out


def test_alerts_less_than_five_samples_apart_are_one_episode() -> None:
    quiet = flags(100, (90, 95))
    assert counts(quiet, flags(100, (10, 10), (14, 14)), DAY).episodes == 1  # three samples between them
    assert counts(quiet, flags(100, (10, 10), (15, 15)), DAY).episodes == 2


def test_an_event_is_found_only_by_an_alert_that_starts_within_it() -> None:
    labels = flags(100, (40, 49))
    assert counts(labels, flags(100, (49, 60)), DAY).found == 1
    early = counts(labels, flags(100, (38, 45)), DAY)
    assert (early.found, early.false) == (0, 0)  # touches the event, so it is not false either


@pytest.mark.parametrize(("alert", "false"), [((30, 35), 0), ((30, 34), 1), ((54, 60), 0), ((55, 60), 1)])
def test_an_episode_is_false_beyond_the_margin_of_five_samples(alert: tuple[int, int], false: int) -> None:
    assert counts(flags(100, (40, 49)), flags(100, alert), DAY).false == false


def test_false_alarms_are_counted_per_day_of_normal_time_over_all_machines() -> None:
    one = counts(flags(150, (0, 49)), flags(150, (100, 101), (120, 120)), DAY)  # 1 normal day, 2 false
    other = counts(flags(350, (0, 49)), flags(350, (3, 3)), DAY)  # 3 normal days, none false
    pooled = quality([one, other])
    assert pooled["false_per_day"] == pytest.approx(2 / 4)
    assert pooled["precision"] == pytest.approx(1 / 3)
    assert pooled["recall"] == pytest.approx(1 / 2)
    assert pooled["f1"] == pytest.approx(2 * (1 / 3) * (1 / 2) / (1 / 3 + 1 / 2))


def test_always_off_has_no_precision_and_no_f1() -> None:
    pooled = quality([counts(flags(50, (10, 20)), flags(50), DAY)])
    assert pooled == {"precision": None, "recall": 0.0, "f1": 0.0, "false_per_day": 0.0}


def test_the_delay_is_the_median_over_found_events() -> None:
    labels, alerts = flags(300, (10, 40), (100, 130), (200, 230)), flags(300, (12, 12), (120, 121))
    assert summary([counts(labels, alerts, DAY)], minutes=5.0)["delay_median_minutes"] == pytest.approx(5.0 * 11)


def test_intervals_are_drawn_over_machines_not_over_points() -> None:
    same = [counts(flags(100, (10, 20)), flags(100, (12, 13)), DAY)] * 3
    assert intervals(same)["recall_ci"] == [1.0, 1.0]
    mixed = [same[0], counts(flags(100, (10, 20)), flags(100), DAY)]
    assert intervals(mixed)["recall_ci"] == [0.0, 1.0]


def test_one_threshold_serves_all_machines_and_keeps_to_the_allowed_alarms() -> None:
    labels = flags(200, (100, 109))
    good, bad = np.zeros(200), np.zeros(200)
    good[105], bad[50], bad[105] = 2.0, 3.0, 1.0
    swept = curve([Series(labels, good, DAY), Series(labels, bad, DAY)])
    assert swept.at(0.0) == (0.0, pytest.approx(np.nextafter(3.0, np.inf)))
    assert swept.at(1.0)[0] == 1.0
    assert swept.at(1.0)[1] <= 1.0
    assert curve([Series(labels, good, DAY)]).at(0.0)[0] == 1.0


def test_spans_in_seconds_follow_the_same_rules() -> None:
    said = spans_quality([(100.0, 160.0)], [(95.0, 99.0), (155.0, 400.0), (171.0, 180.0)], margin_s=10.0)
    assert (said["found"], said["false"], said["delays_s"]) == (1, 1, [55.0])


def test_blame_by_chance_and_labels_of_events() -> None:
    (event,) = interpretation("3-9:2")
    assert event == (3, 9, frozenset({1}))
    assert blamed_by_chance([event], width=2) == 1.0
    assert blamed_by_chance([(0, 1, frozenset({0, 1}))], width=5, first=1) == pytest.approx(0.4)


def test_every_baseline_rises_where_something_is_strange_and_sees_no_future() -> None:
    random = np.random.default_rng(0)
    train, test = random.normal(size=(300, 3)), random.normal(size=(120, 3))
    test[80:90] += 8.0
    found = baselines(train, test)
    assert set(found) == set(BASELINES)
    for name, one in found.items():
        if name != "always_off":
            assert one.scores[80:83].mean() > one.scores[:80].max(), name
            assert ((one.scores >= 0.0) & (one.scores <= 1.0)).all(), name
    before = baselines(train, test[:60])
    for name, one in before.items():
        np.testing.assert_allclose(one.scores, found[name].scores[:60], err_msg=name)


def test_the_threshold_of_a_score_comes_from_the_choosing_half() -> None:
    labels = flags(400, (100, 120))
    machines = []
    for half, level in (("choose", 0.8), ("report", 0.6)):
        one = Judged(half, "smd", half, 864.0, labels)  # type: ignore[arg-type]  # 100 samples a day
        names = {"ensemble", *BASELINES} - {"always_off"}
        one.scores = {name: np.where(labels, level, 0.1) for name in names} | {"always_off": np.zeros(400)}
        one.alerts = {"incidents": labels, "always_off": flags(400)}
        one.vus = one.precision = dict.fromkeys(one.scores, 0.5)
        machines.append(one)
    rows = {row["row"]: row for row in detection_metrics.table(machines, "nab")}
    assert rows["ensemble"]["threshold"] == pytest.approx(0.8)
    assert rows["ensemble"]["recall"] == 0.0  # 0.6 stays below what was chosen elsewhere
    assert rows["ensemble"]["recall_at_0.1"] == 1.0  # the curve is read off the report half
    assert rows["incidents"]["recall"] == 1.0
    assert "skipped" in rows["dtw"]


def test_a_vote_that_learnt_less_has_a_row_where_it_was_judged() -> None:
    labels = flags(400, (100, 120))
    machines = [Judged(half, "smd", half, 864.0, labels) for half in ("choose", "report")]  # type: ignore[arg-type]
    for one in machines:
        names = {"ensemble", "incidents", *BASELINES}
        one.alerts = dict.fromkeys(names, labels)
        one.scores = dict.fromkeys(BASELINES, np.zeros(400))
        one.vus = one.precision = dict.fromkeys(one.scores, 0.5)
    machines[1].vus = machines[1].precision = {**machines[1].vus, "ensemble of the first 500 rows": 0.25}
    rows = {row["row"]: row for row in detection_metrics.table(machines, "nab")}
    assert rows["ensemble of the first 500 rows"]["vus_pr"] == 0.25
    machines[1].vus = machines[0].vus
    assert not any("first" in row["row"] for row in detection_metrics.table(machines, "nab"))


def test_a_detector_left_out_is_scored_by_what_is_said_without_it() -> None:
    whole = [(105.0, 110.0, "metric_anomaly"), (500.0, 501.0, "log_storm")]
    one = Outcome("job", "metric", (100.0, 200.0), 3700.0, {"all_detectors": whole, "without pca": whole[1:]})
    two = Outcome("none", "none", None, 3600.0, {"all_detectors": [], "without pca": []})
    full, less = (figures([one, two], variant, "all") for variant in ("all_detectors", "without pca"))
    assert (full["found"], full["false"], full["right_kind"], full["delay_median_s"]) == (1, 1, 1.0, 5.0)
    assert full["false_per_hour"] == pytest.approx(0.5)
    assert (less["found"], less["f1"]) == (0, 0.0)


def test_the_mixed_table_has_the_whole_each_left_out_and_each_kind_of_anomaly() -> None:
    spans = {"all_detectors": [], "without pca": [], "simple_rules": [], "always_off": []}
    jobs = [Outcome("a", "log", (5.0, 9.0), 60.0, dict(spans)), Outcome("b", "none", None, 60.0, dict(spans))]
    rows = detection_mixed.table(jobs)
    assert [(row["row"], row["set"]) for row in rows[:4]] == [(name, "all") for name in spans]
    assert {row["set"] for row in rows[4:]} == {"log", "none"}
    assert rows[1]["vote_weight"] == 0.5
    assert "CONSTRUCTED" in text(rows)


def test_only_detectors_that_have_a_vote_are_left_out() -> None:
    names = leave_out()
    assert "change_point" in names
    assert "log_window" in names
    assert not {"lof", "zlength"} & set(names)


@pytest.mark.parametrize(
    ("anomaly", "kind", "right"),
    [
        ("metric", "metric_anomaly", True),
        ("metric", "slow_job", False),
        ("steps", "slow_job", True),
        ("steps", "metric_anomaly", False),
        ("log", "gpu_memory_error", True),
        ("log", "metric_anomaly", False),
        ("log", "slow_job", False),
    ],
)
def test_the_kind_of_an_incident_has_to_fit_what_was_put_in(anomaly: Any, kind: str, right: bool) -> None:
    assert right_kind(anomaly, kind) is right


def test_without_shared_data_every_figure_is_skipped_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("TRAINWARDEN_SHARED", str(tmp_path))
    assert listed("smd") == []
    rows = [*detection_metrics.rows(("smd",)), *detection_metrics.rows(("nab",))]
    assert all("TRAINWARDEN_SHARED" in row["skipped"] for row in rows)
    detection_mixed.mixed_jobs.cache_clear()
    rows = detection_mixed.rows()
    detection_mixed.mixed_jobs.cache_clear()
    figure = bench_detection.figure("detection_mixed_f1", rows)
    assert (figure["value"], figure["holds"]) == (None, None)
    assert "TRAINWARDEN_SHARED" in figure["skipped"]
    assert "TRAINWARDEN_SHARED" in text(rows)


def test_the_command_writes_tables_and_skips_what_has_no_data(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINWARDEN_SHARED", str(tmp_path))
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setattr("sys.path", list(sys.path))
    target, table = tmp_path / "all.json", tmp_path / "tables.md"
    assert bench(["detection_smd_vus"], json=str(target), table=table) == 0
    answer = json.loads(target.read_text())
    assert [(row["name"], row["value"]) for row in answer["benchmarks"]] == [("detection_smd_vus_pr", None)]
    assert [row["table"] for row in answer["tables"]] == ["metrics"]
    assert set(answer["benchmarks"][0]) >= {"unit", "rounds", "spread", "peer", "ratio", "bar", "holds"}
    assert "TRAINWARDEN_SHARED" in table.read_text()
    assert "skipped" in capsys.readouterr().out
    with pytest.raises(ConfigError, match="--table"):
        bench(["detection_smd_vus"], table=tmp_path / "nowhere" / "tables.md")


def test_every_name_belongs_to_a_part_that_has_a_table() -> None:
    assert len(set(bench_detection.NAMES)) == len(bench_detection.NAMES)
    assert all(name.startswith("detection_") for name in bench_detection.NAMES)
    assert {bench_detection.part_of(name) for name in bench_detection.NAMES} == set(bench_detection.TABLES)


def test_tables_show_intervals_and_leave_empty_columns_out() -> None:
    rows = [{"table": "metrics", "set": "smd", "row": "pca", "weight": 1.0, "vus_pr": 0.5, "vus_pr_ci": [0.25, 0.75]}]
    assert "pca  1       0.5 [0.25, 0.75]" in text(rows)
    assert "| pca | 1 | 0.5 [0.25, 0.75] |" in markdown(rows)
    assert "auprc" not in markdown(rows)


@pytest.mark.skipif(not listed("asd"), reason="no shared data on this machine: set TRAINWARDEN_SHARED")
def test_real_machines_load_with_labels_that_fit_the_published_events() -> None:
    case = load("asd", "omi-2")
    assert case.test.shape == (4320, 19)
    assert int(case.labels.sum()) == 55
    assert all(case.labels[first : last + 1].any() for first, last, _ in case.blamed)
    assert case.per_day == 288.0
    assert case.half == "report"
    job = detection_metrics.recorded(case)
    assert job.metrics is not None
    assert int((job.metrics.times_s < job.normal_until_s).sum()) == len(case.train)


@pytest.mark.skipif(not listed("nab"), reason="no shared data on this machine: set TRAINWARDEN_SHARED")
def test_the_probation_of_a_nab_series_is_its_first_15_percent() -> None:
    name = next(name for name, half in listed("nab") if half == "report")
    case = load("nab", name)
    assert len(case.train) == int(0.15 * (len(case.train) + len(case.test)))
    assert case.labels.any()
