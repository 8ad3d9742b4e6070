"""The suspect's metrics beside its peers', with the incident's time marked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.page_world import NOW_S, Told, incident, logs, metrics
from trainwarden.dashboards.page.charts import Series, Span, heat_map
from trainwarden.dashboards.page.panels import RANGES_S, Points, _binned, panels, wanted_span
from trainwarden.protocols import Message
from trainwarden.records import IncidentRecord, MetricsRecord, Suspect
from trainwarden.topics import topic_of

JOB = "llama-70b"
SLOW = incident("i", JOB, NOW_S - 490.0, closed=False)
SPAN = wanted_span(SLOW, RANGES_S[0], NOW_S)


def messages(told: Iterable[Told]) -> Iterator[Message]:
    for at, (time_s, job, record) in enumerate(told):
        yield Message(topic_of(record).name, 0, at, time_s, job, record)


def nothing(_from_s: float) -> Iterable[Message]:
    return ()


def drawn(told: Iterable[Told], one: IncidentRecord = SLOW) -> dict[str, dict[str, object]]:
    found = panels(one, SPAN, lambda _from_s: messages(told), nothing, None)
    return {panel["name"]: panel for panel in found["panels"]}


def test_blamed_metrics_come_first_and_the_suspect_stands_beside_its_peers() -> None:
    shown = drawn(metrics(JOB, 16, now_s=NOW_S, slow=5))
    assert list(shown)[:2] == ["gpu_sm_clock_hertz", "gpu_power_watts"]
    assert [one["blamed"] for one in shown.values()][:3] == [True, True, False]
    clock = shown["gpu_sm_clock_hertz"]
    (who, before, during), (others, peers_before, peers_during) = clock["numbers"]
    assert (who, before[:4], during[:4]) == ("suspect", "1.71", "1.11")
    assert (others, peers_before[:4], peers_during[:4]) == ("peers", "1.71", "1.71")
    assert all(clock[line] for line in ("own", "peers", "band"))  # drawn, too
    assert {"gpu_temperature_celsius", "rank_cpu_ratio", "gpu_memory_used_bytes", "nic_rdma_transmit_bytes"} <= set(
        shown
    )


def test_the_incident_is_marked_from_its_onset() -> None:
    mark = drawn(metrics(JOB, 16, now_s=NOW_S, slow=5))["gpu_sm_clock_hertz"]["mark"]
    share = RANGES_S[0] / (SPAN.until_s - SPAN.from_s)
    assert mark["x"] == pytest.approx(1000.0 * share, abs=0.2)
    assert mark["x"] + mark["width"] == pytest.approx(1000.0)


def test_a_counter_is_shown_by_its_growth() -> None:
    sent = drawn(metrics(JOB, 16, now_s=NOW_S, slow=5))["nic_rdma_transmit_bytes"]
    assert sent["numbers"][0][1:] == ("2.1 GB/s", "2.1 GB/s")


def test_a_suspect_node_is_known_by_its_hosts_metrics() -> None:
    of_node = IncidentRecord(
        **{name: getattr(SLOW, name) for name in SLOW.__struct_fields__ if name != "suspects"},
        suspects=(Suspect(score=1.0, reason="r", node="node-01"),),
    )
    shown = drawn(metrics(JOB, 24, now_s=NOW_S), of_node)
    assert [row[0] for row in shown["host_memory_available_bytes"]["numbers"]] == ["suspect", "peers"]


def test_other_jobs_and_times_are_not_drawn() -> None:
    assert drawn(metrics("another", 16, now_s=NOW_S)) == {}
    assert drawn(metrics(JOB, 16, now_s=NOW_S - 10_000.0)) == {}


def test_the_loss_is_the_one_that_was_printed() -> None:
    read = list(logs(JOB, SLOW.opened_at_s))
    found = panels(SLOW, SPAN, nothing, lambda _from_s: messages(read), None)
    (loss,) = found["job"]
    assert (loss["name"], loss["numbers"][0][0]) == ("loss", "suspect")
    assert 2.3 < float(loss["numbers"][0][1]) < 2.4


def test_with_two_ranks_the_slower_is_compared_with_the_faster() -> None:
    counts = np.ones((2, 10))
    heat = heat_map(Series([0, 1], np.array([[1.0] * 10, [2.0] * 10]), counts, 1.0, 10.0))
    assert heat["against"] == "the faster rank"
    assert [(one["rank"], one["now"]) for one in heat["slowest"]] == [(1, 2.0), (0, 1.0)]


SAMPLES = st.lists(st.tuples(st.floats(0.0, 100.0), st.floats(-1e6, 1e6)), min_size=1, max_size=60)


@given(st.lists(SAMPLES, min_size=1, max_size=3))
def test_columns_hold_means_of_what_falls_into_them(samples: list[list[tuple[float, float]]]) -> None:
    points = Points()
    for number, own in enumerate(samples):
        for time_s, value in own:
            points.add(("n", str(number), None), time_s, value)
    rows = _binned(points, list(points.values), Span(0.0, 100.0))
    for row, own in zip(rows, samples, strict=True):
        columns = len(row)
        for column, value in enumerate(row.tolist()):
            inside = [v for t, v in own if min(columns - 1, int(t / 100.0 * columns)) == column]
            if inside:
                assert value == pytest.approx(sum(inside) / len(inside), abs=1e-6)
            else:
                assert math.isnan(value)


def test_a_record_with_fewer_values_than_names_breaks_nothing() -> None:
    odd = MetricsRecord(
        job=JOB, node="node-00", time_s=NOW_S - 400.0, devices=("a", "b"),
        names=("gpu_power_watts", "gpu_sm_clock_hertz"), values=((1.0, None, 3.0),),
    )  # fmt: skip
    assert list(drawn([(NOW_S, JOB, odd)])) == ["gpu_power_watts"]
