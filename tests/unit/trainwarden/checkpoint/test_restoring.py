"""`restore` reads bytes to where they belong, whatever a tensor's layout, and touches few pages beside."""

from __future__ import annotations

import mmap
import resource
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from trainwarden.checkpoint import restoring, saving  # noqa: E402


@pytest.fixture(autouse=True)
def _memory(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINWARDEN_CHECKPOINT_MEMORY", str(tmp_path / "memory"))
    monkeypatch.setenv("TRAINWARDEN_JOB", "j")
    for name in ("RANK", "WORLD_SIZE", "TRAINWARDEN_ATTEMPT", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(saving, "_saver", saving.Saver())
    yield
    saving.wait()


def trained(*parameters: torch.Tensor):
    model = torch.nn.ParameterList(parameters)
    optimizer = torch.optim.AdamW(model.parameters())
    for one in model:
        one.grad = torch.ones_like(one)
    optimizer.step()
    return model, optimizer


def pages_touched(work: Callable[[], object]) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def huge_pages() -> bool:
    """Whether the machine has some just now."""
    memory = mmap.mmap(-1, 16 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return pages_touched(lambda: memory.write(bytes(16 << 20))) < 4096 + 1024


@pytest.mark.thorough
def test_a_restore_touches_few_pages_beside_the_models_own():
    """Clearing a page takes the kernel longer than copying 4 KiB, so this is most of a restore's time."""
    model, optimizer = trained(*(torch.full((1 << 20,), float(k)) for k in range(4)))
    assert saving.save(1, model=model, optimizer=optimizer)
    saving.wait()
    if not huge_pages():
        pytest.skip("this machine has no huge pages to give")
    state_pages = 3 * sum(one.nbytes for one in model) // mmap.PAGESIZE
    assert pages_touched(lambda: restoring.restore(model=model, optimizer=optimizer)) < state_pages / 6


def test_tensors_of_any_layout_come_back_to_where_they_were():
    """Bytes that follow an odd one, a transposed parameter, none at all; and the restored state is its own memory."""
    model, optimizer = trained(torch.randn(5, 7).t(), torch.randn(3).double(), torch.empty(0))
    extra = {"odd": torch.tensor([True, False, True]), "after": torch.arange(5.0, dtype=torch.float64)}
    assert saving.save(1, model=model, optimizer=optimizer, extra=extra)
    saving.wait()
    before = [one.detach().clone() for one in model]
    moments = [{k: one.clone() for k, one in state.items()} for state in optimizer.state.values()]
    other, fresh = trained(torch.zeros(5, 7).t(), torch.zeros(3).double(), torch.empty(0))
    versions = [one._version for one in other]
    restored = restoring.restore(model=other, optimizer=fresh)
    assert restored is not None
    assert [one.is_contiguous() for one in other] == [False, True, True]
    assert all(torch.equal(one, was) for one, was in zip(other, before, strict=True))
    assert all(one._version > was for one, was in zip(list(other)[:2], versions, strict=False))
    for state, was in zip(fresh.state.values(), moments, strict=True):
        assert all(torch.equal(state[name], one) for name, one in was.items())
        assert all(one.data_ptr() % one.element_size() == 0 for one in state.values())
    assert torch.equal(restored.extra["odd"], extra["odd"])
    assert torch.equal(restored.extra["after"], extra["after"])
    assert restored.extra["after"].data_ptr() % 64 == 0
