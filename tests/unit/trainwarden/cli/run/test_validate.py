"""`trainwarden validate`: which ranks a process starts, by its options or by the variables of a launcher."""

from __future__ import annotations

import pytest

from trainwarden.cli.run.validate import place_of, wanted_of
from trainwarden.errors import ConfigError
from trainwarden.settings import Settings

OPTIONS = {"port": 29_555, "join_s": 10.0}
TORCHRUN = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "node-0"}

pytestmark = pytest.mark.thorough  # torch is imported


def place(nproc=None, nnodes=1, node_rank=0, master=None, environ=None):
    return place_of((nproc, nnodes, node_rank, master), environ or {}, Settings(node="n"), OPTIONS)


def test_ranks_of_one_machine_meet_on_a_port_that_is_free():
    made = place(8)
    assert (made.ranks, made.world_size, made.port, made.address) == (8, 8, 0, "127.0.0.1")


def test_ranks_of_several_nodes():
    made = place(4, 3, 2, "node-0")
    assert (made.first_rank, made.ranks, made.world_size, made.number, made.processes) == (8, 4, 12, 2, 3)
    assert (made.address, made.port) == ("node-0", 29_555)


def test_the_variables_of_torchrun():
    made = place(environ=TORCHRUN)
    assert (made.first_rank, made.first_local_rank, made.ranks, made.world_size) == (9, 1, 1, 16)
    assert (made.number, made.nodes, made.processes, made.address) == (None, 2, 16, "node-0")
    assert place(environ=TORCHRUN | {"RANK": "8", "LOCAL_RANK": "0"}).number == 1


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({}, "--nproc"),
        ({"nproc": 2, "nnodes": 2}, "--master-addr"),
        ({"nproc": 2, "nnodes": 2, "node_rank": 2, "master": "m"}, "not below"),
        ({"environ": {**TORCHRUN, "RANK": "x"}}, "RANK"),
        ({"environ": {**TORCHRUN, "RANK": "16"}}, "none of"),
    ],
)
def test_what_does_not_fit_is_one_sentence(how, said):
    with pytest.raises(ConfigError, match=said):
        place(**how)


@pytest.mark.parametrize(
    ("checks", "ranks", "nodes", "said"),
    [
        ("gem,links", None, None, "not 'gem'"),
        ("gemm", "0,2", None, "numbers below 2, not '2'"),
        ("gemm", "-1", None, "not '-1'"),
        ("gemm", "1e9", None, "not '1e9'"),
        ("gemm", "9" * 5000, None, "numbers below 2"),
        ("gemm", None, " , ", "name at least one"),
    ],
)
def test_what_is_asked_wrongly_is_one_sentence(checks, ranks, nodes, said):
    with pytest.raises(ConfigError, match=said):
        wanted_of(place(2), checks, 0.1, ranks, nodes)


def test_whom_it_is_about():
    named = wanted_of(place(8), "gemm", 0.1, "5,3,5", "n7").named
    assert (named.ranks, named.nodes) == ((5, 3), ("n7",))
    assert not wanted_of(place(8), "gemm", 0.1, None, None).named
