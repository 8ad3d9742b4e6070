"""What a `ResilientStep` refuses before it has met another rank."""

from __future__ import annotations

import pytest
import torch

from trainwarden.transition import ResilientStep, TransitionError


def made(total: int) -> ResilientStep:
    model = torch.nn.Linear(1, 1)
    return ResilientStep(total, model, torch.optim.SGD(model.parameters()))


def test_fewer_micro_batches_than_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="3 micro-batches leave some of 4 ranks without any"):
        made(3)


def test_a_store_that_dies_with_a_rank_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    with pytest.raises(TransitionError, match="outlives each of them"):
        made(2)
