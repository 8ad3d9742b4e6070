"""Connections and bandwidths between nodes: the node to which all are bad is named, what is usual accuses none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.trainwarden.formats.judging import filed, headed, judged, judged_text, labelled

HEADER = "State Recv-Q Send-Q Local Address:Port Peer Address:Port Process\n"
SOCKET = """ESTAB 0      {waiting:<6} 10.0.0.{own}:4718{peer}      10.0.0.{peer}:{port} users:(("python3",pid=7,fd=8))
\t cubic wscale:7,7 rto:204 {backoff}rtt:{rtt}/0.05 mss:8948 cwnd:10 bytes_sent:1 segs_out:{sent} segs_in:9 \
data_segs_out:{sent} data_segs_in:9 send 3.4Gbps lastsnd:4 retrans:0/{lost} rcv_space:57024 minrtt:0.11
"""


def socket(own: int, peer: int, **odd: Any) -> str:
    told = {"waiting": 0, "rtt": 0.21, "sent": 800_000, "lost": 40, "port": 29500, "backoff": "", **odd}
    return SOCKET.format(own=own, peer=peer, **told)


BAD = {"lost": 21_000, "rtt": 14.2}


def node(own: int, bad: int | None = 3, nodes: int = 6, **odd: Any) -> str:
    """Connections of a node to all others."""
    others = [peer for peer in range(1, nodes + 1) if peer != own]
    return HEADER + "".join(socket(own, peer, **((odd or BAD) if bad in (peer, own) else {})) for peer in others)


def test_the_peer_that_loses_packets_and_answers_late_is_named(tmp_path: Path):
    assert judged_text(tmp_path, node(1)) == ("incident", [("nic_error", "10.0.0.3", None)])
    assert judged_text(tmp_path, node(1, None)) == ("healthy", [])


@pytest.mark.parametrize(
    ("odd", "found"),
    [
        ({"lost": 21_000, "waiting": 4_000_000}, True),
        ({"waiting": 4_000_000, "backoff": "backoff:6 "}, True),
        ({"lost": 21_000}, False),  # one witness each
        ({"rtt": 14.2}, False),
        ({"waiting": 4_000_000}, False),
        ({"lost": 900, "rtt": 0.5}, False),
        ({"lost": 60, "sent": 5_000, "rtt": 14.2}, False),  # too few to tell
        ({"lost": 600, "sent": 900, "rtt": 14.2}, False),  # a connection that does not carry the job
        ({**BAD, "port": 22}, False),  # somebody's terminal
    ],
)
def test_two_witnesses_are_wanted(tmp_path: Path, odd: dict[str, Any], found: bool):
    told = judged_text(tmp_path, node(1, **odd))[1]
    assert told == ([("nic_error", "10.0.0.3", None)] if found else [])


def test_addresses_of_both_kinds_are_one(tmp_path: Path):
    text = node(1).replace("10.0.0.", "[::ffff:10.0.0.").replace(":47", "]:47").replace(":29500", "]:29500")
    assert judged_text(tmp_path, text) == ("incident", [("nic_error", "10.0.0.3", None)])


def test_the_world_outside_is_not_compared(tmp_path: Path):
    text = node(1, None) + socket(1, 9, **BAD).replace("10.0.0.9", "93.184.216.34")
    assert judged_text(tmp_path, text) == ("healthy", [])


def test_a_network_that_is_bad_to_several_accuses_none(tmp_path: Path):
    text = HEADER + "".join(socket(1, peer, **(BAD if peer > 3 else {})) for peer in range(2, 7))
    assert judged_text(tmp_path, text)[1] == []
    assert judged_text(tmp_path, HEADER + socket(1, 2) + socket(1, 3, **BAD))[0] == "not judged"


def test_addresses_are_named_after_the_nodes_that_have_them(tmp_path: Path):
    parts = {f"gpu0{own}": node(own) for own in range(1, 7)}
    for text in (headed(parts), labelled(parts)):
        assert judged_text(tmp_path, text)[1] == [("nic_error", "gpu03", None)]
    assert judged(filed(tmp_path / "files", parts))[1] == [("nic_error", "gpu03", None)]


def test_a_list_that_is_cut_is_read(tmp_path: Path):
    text = node(1)
    assert judged_text(tmp_path, text[: int(0.9 * len(text))])[1] == [("nic_error", "10.0.0.3", None)]


RUN = """# nThread 1 nGpus 1 minBytes 1024 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#
# Using devices
{ranks}#
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
        1024           256     float     sum      -1     9.10    0.11    0.20      0     9.00    0.11    0.20      0
  1073741824     268435456     float     sum      -1  8000.00   98.00  {busbw:.2f}   0  8000.00   98.00  {busbw:.2f}   0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : {average:.4f}
#
"""
RANK = "#  Rank {rank:2} Group  0 Pid  410{rank} on {node:>10} device  0 [0x1b] NVIDIA H100 80GB HBM3\n"
Pair = tuple[int, int]
PAIRS: list[Pair] = [(one, other) for one in range(1, 6) for other in range(one + 1, 6)]


def run(pair: Pair, busbw: float, ranks: bool = False) -> str:
    told = "".join(RANK.format(rank=rank, node=f"gpu0{node}") for rank, node in enumerate(pair)) if ranks else ""
    return RUN.format(ranks=told, busbw=busbw, average=busbw / 3.0)


def runs(slow: dict[Pair, float], pairs: list[Pair] | None = None, heading: str = "=== gpu0{} gpu0{} ===\n") -> str:
    return "".join(
        heading.format(*pair) + run(pair, slow.get(pair, 190.0 + pair[0]), ranks=not heading)
        for pair in (PAIRS if pairs is None else pairs)
    )


ALL_OF_4 = {pair: 60.0 for pair in PAIRS if 4 in pair}


@pytest.mark.parametrize("heading", ["=== gpu0{} gpu0{} ===\n", "# gpu0{} <-> gpu0{}\n", "pair: gpu0{}-gpu0{}\n", ""])
def test_the_node_whose_pairs_are_all_slow_is_named(tmp_path: Path, heading: str):
    told = judged_text(tmp_path, runs(ALL_OF_4, heading=heading))
    assert told == ("incident", [("slow_link", "gpu04", None)])
    assert judged_text(tmp_path, runs({}, heading=heading)) == ("healthy", [])


def test_a_single_slow_pair_is_a_link_of_both(tmp_path: Path):
    from trainwarden.formats.reading import read_job

    assert judged_text(tmp_path, runs({(2, 5): 60.0}))[1][0][0] == "slow_link"
    (log,) = read_job(tmp_path / "out.txt").logs
    failed = {node for node, line in zip(log.nodes, log.lines, strict=True) if "failed" in line}
    assert failed == {"gpu02", "gpu05"}


def test_pairs_without_a_node_in_common_tell_no_node(tmp_path: Path):
    from trainwarden.formats.reading import read_job

    judged_text(tmp_path, runs({(5, 6): 60.0}, [(1, 2), (3, 4), (5, 6), (7, 8)]))
    (log,) = read_job(tmp_path / "out.txt").logs
    assert {node for node, line in zip(log.nodes, log.lines, strict=True) if "failed" in line} == {"gpu05", "gpu06"}


def test_racks_between_which_all_is_slower_accuse_none(tmp_path: Path):
    assert judged_text(tmp_path, runs({pair: 60.0 for pair in PAIRS if pair[0] < 4 <= pair[1]}))[0] == "not judged"


def test_three_nodes_are_enough_where_one_pair_is_well(tmp_path: Path):
    pairs = [(1, 2), (1, 3), (2, 3)]
    assert judged_text(tmp_path, runs({(1, 3): 60.0, (2, 3): 60.0}, pairs))[1] == [("slow_link", "gpu03", None)]


def test_files_of_pairs_are_compared_and_one_alone_is_not(tmp_path: Path):
    parts = {f"gpu0{a}_gpu0{b}": run((a, b), ALL_OF_4.get((a, b), 190.0)) for a, b in PAIRS}
    assert judged(filed(tmp_path / "files", parts, "all_reduce_{}.out"))[1] == [("slow_link", "gpu04", None)]
    assert judged_text(tmp_path, run((1, 2), 60.0, ranks=True))[0] == "not judged"


def test_pairs_that_differ_by_a_little_or_by_half_of_the_nodes_accuse_none(tmp_path: Path):
    assert judged_text(tmp_path, runs({(2, 5): 170.0})) == ("healthy", [])
    halves = {pair: 60.0 for pair in PAIRS if pair[1] > 2}
    assert judged_text(tmp_path, runs(halves))[0] == "not judged"


def test_runs_that_are_cut_are_left_out(tmp_path: Path):
    text = runs(ALL_OF_4)
    assert judged_text(tmp_path, text[: int(0.95 * len(text))])[1] == [("slow_link", "gpu04", None)]
