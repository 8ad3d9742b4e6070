"""Who this rank is, by its launcher or by torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from tests.hook_doubles import HandClock, header_of, wait
from trainwarden.hook import Hook
from trainwarden.hook.memory import who_am_i


@pytest.mark.parametrize(
    ("environ", "rank"),
    [
        ({"RANK": "5"}, 5),
        ({"OMPI_COMM_WORLD_RANK": "6", "SLURM_PROCID": "1"}, 6),
        ({"PMI_RANK": "7"}, 7),
        ({"SLURM_PROCID": "8"}, 8),
        ({"RANK": "-1"}, 0),
        ({"RANK": "9999999"}, 0),
        ({}, 0),
    ],
)
def test_rank_from_any_launcher(environ: dict[str, str], rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delitem(sys.modules, "torch.distributed", raising=False)
    assert who_am_i()[0] == rank


def test_the_rank_is_settled_once_torch_knows_it(
    make: Callable[..., Hook], clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make()
    target.memory.rank_known = False
    distributed = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 4, get_world_size=lambda: 16
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)  # type: ignore[arg-type]
    wait(target, clock, 1)
    assert target.memory.path.endswith(f"rank-4-{os.getpid()}")
    assert (header_of(target).rank, header_of(target).world_size) == (4, 16)
