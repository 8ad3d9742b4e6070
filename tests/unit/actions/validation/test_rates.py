"""Numbers of a validation on their way to who reads them: from the answer into the record, the log and the status."""

from __future__ import annotations

import statistics
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainwarden.actions.validation.question import answer
from trainwarden.cli.ask.status import measured
from trainwarden.dashboards.explain.action_log import ActionLog, entry_lines
from trainwarden.launching import Accused, DeviceRate, Findings, LinkRate, Rates, rates_in
from trainwarden.launching.rates import MOST_RATES, device_rates, link_rates
from trainwarden.records import ActionRecord, IncidentRecord

RATES: Final = Rates(
    devices=(
        *(DeviceRate(rank=r, node=f"n{r // 2}", gflop_s=82.0, peers_gflop_s=80.0) for r in (0, 1, 2)),
        DeviceRate(rank=3, node="n1", gflop_s=41.2, peers_gflop_s=82.0),
    ),
    links=(
        LinkRate(ranks=(1, 3), nodes=("n0", "n1"), gbit_s=0.1, peers_gbit_s=9.4),
        LinkRate(ranks=(0, 1), nodes=("n0", "n0"), gbit_s=40.0),
    ),
)
SLOW: Final = Accused(kind="slow_compute", text="rank 3 on n1 is slow", ranks=(3,), nodes=("n1",))


def asked(*checks: str, ranks: tuple[int, ...] = (3,)) -> dict[str, Any]:
    return {"nodes": ["n1"], "ranks": list(ranks), "checks": list(checks)}


def test_a_verdict_says_the_suspects_numbers_and_the_record_has_those_of_all_that_were_asked_about() -> None:
    findings = Findings(accused=(SLOW,), judged=("gemm",), nodes=("n0", "n1"), rates=RATES)
    found = answer(asked("gemm"), findings)
    assert found.said == "confirmed: rank 3 on n1 is slow (rank 3 on n1: 41.2 GFLOP/s, its peers 82)"
    assert rates_in(found.plan) == Rates(devices=RATES.devices)
    link = answer(asked("links"), msgspec.structs.replace(findings, accused=(), judged=("links",)))
    assert "cleared" in link.said
    assert "(rank 1 on n0 to rank 3 on n1: 0.1 Gbit/s, its peers 9.4)" in link.said
    assert rates_in(link.plan) == Rates(links=RATES.links)
    of_node = answer(asked("gemm", ranks=()), msgspec.structs.replace(findings, accused=()))
    assert "(rank 2 on n1: 82 GFLOP/s, its peers 80; rank 3 on n1: 41.2 GFLOP/s, its peers 82)" in of_node.said
    assert "rates" not in answer(asked("gemm"), Findings(judged=("gemm",), nodes=("n1",))).plan


@pytest.mark.parametrize("rates", [3, {"devices": 1}, {"devices": [{"rank": "x"}]}, {"links": [{"gbit_s": -1}]}])
def test_numbers_that_are_none_are_left_out(rates: object) -> None:
    assert rates_in({"rates": rates}) == rates_in({}) == Rates()


def test_of_many_those_furthest_behind_are_told() -> None:
    many = range(2000)
    devices = device_rates({r: 100.0 - (r == 777) for r in many}, dict.fromkeys(many, "n"), dict.fromkeys(many, "c"))
    assert (devices[0].rank, len(devices)) == (777, MOST_RATES)
    links = link_rates({(r, r + 1): 9.0 - (r == 777) for r in range(200)} | {(777, 778): 1.0}, dict.fromkeys(many, "n"))
    assert (links[0].ranks, len(links)) == ((777, 778), MOST_RATES)


def test_somebody_on_call_sees_the_numbers_in_log_and_status() -> None:
    findings = Findings(accused=(SLOW,), judged=("gemm",), nodes=("n0", "n1"), rates=RATES)
    found = answer(asked("gemm"), findings)
    record = ActionRecord(
        id="i1/validate/1", incident="i1", job="j", kind="validate", outcome="done", at_s=0.0, finished_at_s=9.0,
        why=f"slow_compute: rank 3; {found.said}", plan={**asked("gemm"), **found.plan},
    )  # fmt: skip
    log = ActionLog()
    log.apply(record)
    (entry,) = log.entries()
    told = list(entry_lines(entry))
    place = told.index("    measured: rank 0 on n0: 82 GFLOP/s, its peers 80")
    assert told[place + 3] == "        rank 3 on n1: 41.2 GFLOP/s, its peers 82"
    fields: dict[str, Any] = {"opened_at_s": 0.0, "updated_at_s": 0.0, "severity": "sev2", "state": "opened"}
    incident = IncidentRecord(id="i1", job="j", kind="slow_compute", revision=0, reason="slow", **fields)
    lines = measured([record], incident)
    assert lines[0] == "validated: confirmed"
    assert lines[-1] == "measured: rank 3 on n1: 41.2 GFLOP/s, its peers 82"
    assert measured([msgspec.structs.replace(record, incident="i2")], incident) == []
    assert measured([msgspec.structs.replace(record, outcome="started")], incident) == []


@given(st.lists(st.sampled_from([1.0, 2.0, 2.5, 4.0]), min_size=1, max_size=9), st.data())
def test_peers_are_all_of_the_kind_but_the_one_and_of_links_but_both_its_directions(
    rates: list[float], data: st.DataObject
) -> None:
    ranks = range(len(rates))
    kind = {rank: data.draw(st.sampled_from("ab")) for rank in ranks}
    for one in device_rates(dict(enumerate(rates)), dict.fromkeys(ranks, "n"), kind):
        peers = [rates[rank] for rank in ranks if rank != one.rank and kind[rank] == kind[one.rank]]
        assert one.peers_gflop_s == (statistics.median(peers) if peers else None)
    pairs = data.draw(st.dictionaries(st.permutations(range(4)).map(lambda p: (p[0], p[1])), st.sampled_from(rates)))
    node = {rank: data.draw(st.sampled_from("mn")) for rank in range(4)}
    for link in link_rates(pairs, node):
        within = link.nodes[0] == link.nodes[1]
        peers = [
            rate for (a, b), rate in pairs.items()
            if {a, b} != set(link.ranks) and (node[a] == node[b]) == within
        ]  # fmt: skip
        assert link.peers_gbit_s == (statistics.median(peers) if peers else None)
