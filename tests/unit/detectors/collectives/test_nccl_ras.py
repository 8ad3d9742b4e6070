"""RAS answers in the forms that NCCL writes, and what is made of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trainwarden.detectors.collectives.ras import analyse
from trainwarden.detectors.collectives.ras_report import parse
from trainwarden.errors import DataError

TEXT = """NCCL version 2.27.3 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12090

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      1          8            1          8        8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         8         8         8   RUNNING  MISMATCH

Errors
======

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  6 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 3 -- GPU 3 managed by process 483072 on node 172.16.64.210
  Rank 5 -- GPU 5 managed by process 483074 on node 172.16.64.210
"""
ONE = TEXT[: TEXT.index("  6 ranks have")] + (
    "  7 ranks have launched up to operation 64\n"
    "  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1650386 on node node1\n"
)
LOST = """Errors
======

#0-0 (cf264af53edbe986) INCOMPLETE
  Missing communicator data from 1 job process
  Process 3487984 on node 172.16.64.213 managing GPU 5
"""


def rank(number: int, counts: dict[str, int] | None = None, **status: Any) -> dict[str, Any]:
    return {
        "rank": number, "host": f"10.0.0.{number // 2}", "pid": 100 + number, "cuda_dev": number % 2, "nvml_dev": 0,
        "status": {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False,
                   "abort_flag": False} | status,
        "collective_counts": {"Broadcast": 1, "AllReduce": 9} if counts is None else counts,
    }  # fmt: skip


def missing(number: int, *, dead: bool = False) -> dict[str, Any]:
    plain = rank(number) | {"status": {"unresponsive": True, "considered_dead": dead}}
    del plain["collective_counts"]
    return plain


def ras(
    ranks: list[Any], gone: list[Any] | None = None, *, hash_: str = "0xae94", more: list[Any] | None = None
) -> Any:
    comm = {
        "hash": hash_, "secondary_hash": "0xb7:0xb8", "size": len(ranks) + len(gone or []), "ranks_count": len(ranks),
        "missing_ranks_count": len(gone or []), "ranks": ranks, "missing_ranks": gone or [],
    }  # fmt: skip
    return {
        "nccl_version": "2.28.9", "cuda_runtime_version": 13000, "timestamp": "2026-01-01 00:00:00",
        "communicators_count": 1, "communicators": [comm, *(more or [])],
        "ras": {"collection_time_sec": 0.1, "timeouts_count": 0},
    }  # fmt: skip


def test_a_rank_that_does_not_answer_is_named_with_its_process() -> None:
    (found,) = analyse(json.dumps(ras([rank(0), rank(1), rank(3)], [missing(2)])))
    assert (found.kind, found.ranks, found.waiting) == ("hang", (2,), (0, 1, 3))
    assert "process 102 on 10.0.0.1 does not answer" in found.reason.replace("(", "").replace(")", "")


def test_a_dead_rank_comes_before_a_silent_one() -> None:
    (found,) = analyse(ras([rank(0), rank(1)], [missing(2), missing(3, dead=True)]))
    assert found.ranks == (3, 2)
    assert found.scores[0] > found.scores[1]


def test_a_rank_behind_is_told_only_once_nothing_moves() -> None:
    def at(*counts: int) -> Any:
        return ras([rank(number, {"AllReduce": count}) for number, count in enumerate(counts)])

    assert analyse(at(7, 7, 6, 7)) == []
    assert analyse(at(9, 9, 8, 9), before=at(7, 7, 6, 7)) == []
    assert analyse(at(7, 7, 7, 7), before=at(7, 7, 7, 7)) == []
    (found,) = analyse(at(7, 7, 6, 7), before=at(7, 7, 6, 7))
    assert (found.kind, found.ranks, found.op, found.seq) == ("hang", (2,), "AllReduce", 7)


def test_another_collective_is_a_mismatch() -> None:
    answer = ras([rank(number, {"AllReduce": 8, "Broadcast": 1}) for number in range(3)]
                 + [rank(3, {"AllReduce": 7, "Broadcast": 2})])  # fmt: skip
    (found,) = analyse(answer, before=answer)
    assert (found.kind, found.ranks) == ("collective_mismatch", (3,))


def test_places_of_a_small_communicator_become_global_ranks() -> None:
    small = ras([rank(4) | {"rank": 0}], [missing(6) | {"rank": 1}], hash_="0xbb")["communicators"]
    (found,) = analyse(ras([rank(number) for number in range(8)], more=small))
    assert found.ranks == (6,)


def test_an_error_or_abort_is_told() -> None:
    (found,) = analyse(ras([rank(0), rank(1, async_error=6)]))
    assert found.ranks == (1,)
    assert analyse(ras([rank(0), rank(1, async_error=7)])) == []


def test_a_missing_comma_of_nccl_2_28_9_is_put_back() -> None:
    text = json.dumps(ras([rank(0)], [missing(1)]), indent=2)
    broken = text.replace('"nvml_dev": 0,\n          "status": {\n            "unresponsive"',
                          '"nvml_dev": 0\n          "status": {\n            "unresponsive"')  # fmt: skip
    assert broken != text
    assert analyse(broken)[0].ranks == (1,)


def test_the_text_form_names_who_is_behind() -> None:
    (found,) = analyse(TEXT, before=TEXT)
    assert (found.ranks, found.op, found.seq) == ((3, 5), "AllReduce", 6650)
    assert analyse(ONE, before=ONE)[0].ranks == (7,)
    assert analyse(TEXT) == []


def test_the_text_form_names_lost_processes() -> None:
    (found,) = analyse(LOST)
    assert found.ranks == ()
    assert "process 3487984 on 172.16.64.213 does not answer" in found.reason


@pytest.mark.parametrize(
    "answer",
    ["", "hello", "{", '{"communicators": 3}', '{"communicators": [3]}', '{"communicators": [{"ranks": 3}]}',
     '{"communicators": [{"ranks": [{"rank": "x"}]}]}', '{"communicators": [{"ranks": [{}]}]}', b"\xff\xfe", "[]",
     '{"communicators": [{"ranks": [{"rank": 1, "collective_counts": {"a": -1}}]}]}', "{" * 10_000],
)  # fmt: skip
def test_what_is_no_answer_is_one_sentence(answer: Any) -> None:
    with pytest.raises(DataError, match="RAS answer"):
        parse(answer)


def test_hostile_text_takes_linear_time() -> None:
    for text in (
        "#0-0 (a) " * 100_000,
        "NCCL\n#0-0 (a) OK\n" + "Rank 1 -- " * 100_000,
        " " * 1_000_000 + "#",
        "9 ranks have\n" * 50_000 + "#",
    ):
        parse(text)


def brief(missing: str, *, state: str = "INCOMPLETE", processes: int = 1) -> str:
    """The answer without -v, of which ranks are listed by their numbers alone."""
    lost = "".join(f"  Process {700 + n} on node b{n} managing GPU 5\n" for n in range(processes))
    return (
        f"{TEXT[: TEXT.index('Errors')]}Errors\n======\n\n{state}\n  {processes} processes do not answer\n{lost}\n"
        f"#0-0 (cf26) INCOMPLETE\n  Missing communicator data from ranks\n  The missing {missing}\n\nWarnings\n"
    )


def test_a_missing_rank_of_the_brief_form_is_named_with_the_one_process_that_is_lost() -> None:
    (found,) = analyse(brief("rank: 21", state="DEAD"))
    assert (found.ranks, found.scores) == ((21,), (1.0,))
    assert "rank 21 (process 700 on b0) is considered dead" in found.reason
    (silent,) = analyse(brief("rank: 21"))
    assert silent.scores == (0.8,)


def test_missing_ranks_of_the_brief_form_are_numbers_and_ranges() -> None:
    (found,) = analyse(brief("ranks: 3, 8-10", processes=4))
    assert found.ranks == (3, 8, 9, 10)
    assert "process" not in found.reason
