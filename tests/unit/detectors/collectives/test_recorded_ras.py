"""RAS answers of NCCL 2.28.9's own code, four processes on one node: recorded without a GPU (tests/data/nccl_host)."""

from __future__ import annotations

import pytest

from tests.places import DATA
from trainwarden.detectors.collectives.ras import analyse

FOLDER = DATA / "nccl_host" / "ras"
FORMS = ("verbose.txt", "verbose-json.json")


def answer(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


@pytest.mark.parametrize("form", FORMS)
def test_the_rank_that_left_a_collective_out_is_named(form: str) -> None:
    (found,) = analyse(answer(f"skip-later.{form}"), before=answer(f"skip.{form}"))
    assert (found.kind, found.ranks, found.op) == ("hang", (3,), "AllReduce")


@pytest.mark.parametrize("name", ["stopped.verbose.txt", "stopped.json", *(f"killed.{form}" for form in FORMS)])
def test_a_rank_that_does_not_answer_is_named_from_one_answer(name: str) -> None:
    (found,) = analyse(answer(name))
    assert found.ranks == (2,)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("case", ["healthy", "late_kernel"])
def test_where_all_have_begun_the_same_nobody_is_named(case: str, form: str) -> None:
    assert analyse(answer(f"{case}.{form}"), before=answer(f"{case}.{form}")) == []
