"""`save` and `restore` with real torch in one process: the same bytes come back, and training is never hurt."""

from __future__ import annotations

import logging
import os
import threading

import pytest

torch = pytest.importorskip("torch")

from trainwarden.checkpoint import restoring, saving, slots  # noqa: E402
from trainwarden.checkpoint.shard import CheckpointError, Id  # noqa: E402
from trainwarden.checkpoint.slots import Slots, TooSmall, job_folder  # noqa: E402


@pytest.fixture(autouse=True)
def _memory(tmp_path, monkeypatch):
    monkeypatch.setenv("TRAINWARDEN_CHECKPOINT_MEMORY", str(tmp_path / "memory"))
    monkeypatch.setenv("TRAINWARDEN_JOB", "j")
    for name in ("RANK", "WORLD_SIZE", "TRAINWARDEN_ATTEMPT", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    start(monkeypatch)
    yield
    saving.wait()


def start(monkeypatch) -> None:
    """As a new process would."""
    saving.wait()
    monkeypatch.setattr(saving, "_saver", saving.Saver())


def training(kind=torch.optim.AdamW):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2).double())
    model[2].bias.requires_grad_(False)
    return model, kind(model.parameters(), lr=0.01)


def step(model, optimizer) -> None:
    model[2](model[1](model[0](torch.randn(4, 6))).double()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def everything(model, optimizer) -> dict:
    found = {name: one.clone() for name, one in model.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        found |= {f"{index}/{name}": torch.as_tensor(one).clone() for name, one in state.items()}
    return found


def equal(one: dict, other: dict) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_training_goes_on_from_the_very_bytes(monkeypatch):
    model, optimizer = training()
    for _ in range(3):
        step(model, optimizer)
    extra = {
        "loss": float("inf"),
        "t": (1, [2.5, None]),
        7: "key",
        "rng": torch.get_rng_state(),
        "empty": torch.empty(0),
    }
    assert saving.save(3, model=model, optimizer=optimizer, extra=extra)
    saved = everything(model, optimizer)
    step(model, optimizer)  # waits for the copy first
    continued = everything(model, optimizer)
    start(monkeypatch)
    model, optimizer = training()
    restored = restoring.restore(model=model, optimizer=optimizer)
    assert (restored.step, restored.source) == (3, "step 3 is restored from memory")
    assert equal(everything(model, optimizer), saved)
    assert (restored.extra["loss"], restored.extra["t"], restored.extra[7]) == (float("inf"), (1, [2.5, None]), "key")
    torch.set_rng_state(restored.extra["rng"])
    step(model, optimizer)
    assert equal(everything(model, optimizer), continued)


def test_what_training_does_later_does_not_reach_the_slot(monkeypatch):
    model, optimizer = training()
    step(model, optimizer)
    saving.save(1, model=model, optimizer=optimizer)
    saved = everything(model, optimizer)
    for _ in range(2):
        start(monkeypatch)
        model, optimizer = training()
        restoring.restore(model=model, optimizer=optimizer)
        assert equal(everything(model, optimizer), saved)
        step(model, optimizer)


def test_a_step_waits_for_the_copy_and_buffers_do_not(monkeypatch):
    """Parameters change in the step alone; a forward pass changes the buffers of a batch norm at once."""
    gate, real = threading.Event(), saving._Filler.add
    model, optimizer = training()
    step(model, optimizer)

    def slow(self, tensor):
        if threading.current_thread() is not threading.main_thread():
            assert gate.wait(60)
        real(self, tensor)

    monkeypatch.setattr(saving._Filler, "add", slow)
    saved = everything(model, optimizer)
    assert saving.save(1, model=model, optimizer=optimizer)
    assert not saving.save(2, model=model, optimizer=optimizer)  # late: skipped
    model[1](torch.randn(4, 5))
    threading.Timer(0.01, gate.set).start()
    step(model, optimizer)
    start(monkeypatch)
    model, optimizer = training()
    assert restoring.restore(model=model, optimizer=optimizer).step == 1
    assert equal(everything(model, optimizer), saved)


class Schedule:
    pass


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"scheduler": Schedule()}, "extra/scheduler is a Schedule"),
        ([{1, 2}], "extra/0 is a set"),
        ({"z": torch.zeros(2, dtype=torch.complex64)}, "extra/z is a tensor of torch.complex64"),
        ({"s": torch.zeros(2, 2).to_sparse()}, "extra/s is a tensor of torch.float32 (torch.sparse_coo"),
    ],
)
def test_what_json_cannot_carry_is_refused_in_words_and_training_goes_on(caplog, extra, words):
    model, optimizer = training()
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            assert not saving.save(number, model=model, optimizer=optimizer, extra=extra)
    assert len(caplog.records) == 1
    assert words in caplog.text
    assert saving._saver._counts["refused"] == 3


def test_a_model_whose_state_is_a_copy_is_refused(caplog):
    class Copying(torch.nn.Linear):
        def state_dict(self, *args, **more):
            return {"w": self.weight.detach().clone()}

    assert not saving.save(1, model=Copying(2, 2))
    assert "'w', which is neither a parameter nor a buffer" in caplog.text


def test_too_small_a_memory_is_said_once_and_training_goes_on(monkeypatch, caplog):
    monkeypatch.setattr(Slots, "room_bytes", lambda self: 100)
    model, optimizer = training()
    assert not saving.save(1, model=model, optimizer=optimizer, extra=torch.zeros(10_000))
    assert "bytes a rank" in caplog.text


def test_any_failure_while_copying_leaves_the_checkpoint_before(monkeypatch, caplog):
    model, optimizer = training()
    step(model, optimizer)
    saving.save(1, model=model, optimizer=optimizer)
    step(model, optimizer)

    def fails(self, tensor):
        raise RuntimeError("boom")

    with monkeypatch.context() as patch:
        patch.setattr(saving._Filler, "add", fails)
        saving.save(2, model=model, optimizer=optimizer)
        step(model, optimizer)
    assert "RuntimeError: boom" in caplog.text
    start(monkeypatch)
    assert restoring.restore(model=model, optimizer=optimizer).step == 1


def test_a_corrupt_newest_slot_falls_to_the_one_before(monkeypatch):
    model, optimizer = training()
    for number in (1, 2):
        step(model, optimizer)
        saving.save(number, model=model, optimizer=optimizer)
    saving.wait()
    opened = Slots(job_folder("j"))
    newest = next(slot for slot, header in opened.sealed().items() if header.facts.id.step == 2)
    path = opened.path / newest.name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    start(monkeypatch)
    restored = restoring.restore(model=model, optimizer=optimizer)
    assert restored.step == 1
    assert "step 2 is passed over, as chunk 0 of 1 fails its CRC" in restored.source


def test_a_restart_is_another_attempt_and_an_unrestored_one_does_not_overwrite(monkeypatch, caplog):
    model, optimizer = training()
    step(model, optimizer)
    saving.save(5, model=model, optimizer=optimizer)
    start(monkeypatch)
    assert not saving.save(1, model=model, optimizer=optimizer)
    assert "call checkpoint.restore first" in caplog.text
    restoring.restore(model=model, optimizer=optimizer)
    saving.save(2, model=model, optimizer=optimizer)
    saving.wait()
    assert {header.facts.id for header in Slots(job_folder("j")).sealed().values()} == {Id(0, 5), Id(1, 2)}
    start(monkeypatch)
    assert restoring.restore(model=model, optimizer=optimizer).step == 2


def test_another_model_or_world_is_refused_before_anything_is_written(monkeypatch):
    model, optimizer = training()
    step(model, optimizer)
    saving.save(1, model=model, optimizer=optimizer)
    start(monkeypatch)
    other = torch.nn.Linear(6, 5)
    with pytest.raises(CheckpointError, match=r"the checkpoint has '0.bias' and the model has not"):
        restoring.restore(model=other)
    before = everything(*training())
    other, optimizer = training()
    other[0] = torch.nn.Linear(6, 7)
    with pytest.raises(CheckpointError, match=r"'0.weight' was torch.float32 \(5, 6\), is torch.float32 \(7, 6\)"):
        restoring.restore(model=other, optimizer=optimizer)
    assert torch.equal(other[2].weight, before["2.weight"])
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(CheckpointError, match="init_process_group"):
        restoring.restore(model=other)


def test_a_fork_after_save_neither_waits_nor_saves(monkeypatch):
    model, optimizer = training()
    step(model, optimizer)
    gate, real = threading.Event(), saving._Filler.add
    monkeypatch.setattr(saving._Filler, "add", lambda self, one: gate.wait(60) and real(self, one))
    thread = threading.Thread(target=saving.save, args=(1,), kwargs={"model": model, "optimizer": optimizer})
    thread.start()
    pid = os.fork()
    if pid == 0:
        saving._saver.wait()
        os._exit(int(saving._saver.save(2, model, optimizer, None)))
    gate.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_an_error_of_ours_is_counted_and_never_raised(monkeypatch, caplog):
    def broken(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(slots.Slots, "next_of", broken)
    model, optimizer = training()
    assert not saving.save(1, model=model, optimizer=optimizer)
    assert saving._saver._counts["failed"] == 1
    assert issubclass(TooSmall, CheckpointError)


def test_sharded_parameters_and_their_optimizer_state_come_back(tmp_path, monkeypatch):
    """FSDP2: each rank saves its own part, and it comes back as DTensors of the same mesh."""
    from torch.distributed.fsdp import fully_shard

    store = f"file://{tmp_path / 'rendezvous'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))

        def sharded():
            torch.manual_seed(2)
            model = fully_shard(torch.nn.Linear(6, 5), mesh=mesh)
            return model, torch.optim.AdamW(model.parameters(), lr=0.01)

        model, optimizer = sharded()
        for _ in range(2):
            model(torch.randn(4, 6)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        assert saving.save(2, model=model, optimizer=optimizer)
        saving.wait()
        saved = [one.to_local().clone() for one in model.parameters()]
        moments = [state["exp_avg"].to_local().clone() for state in optimizer.state.values()]
        start(monkeypatch)
        model, optimizer = sharded()
        assert restoring.restore(model=model, optimizer=optimizer).step == 2
        assert all(torch.equal(one.to_local(), was) for one, was in zip(model.parameters(), saved, strict=True))
        found = [state["exp_avg"] for state in optimizer.state.values()]
        assert all(torch.equal(one.to_local(), was) for one, was in zip(found, moments, strict=True))
        model(torch.randn(4, 6)).sum().backward()
        optimizer.step()
    finally:
        saving.wait()
        torch.distributed.destroy_process_group()
