"""The hook without torch: its file, what ends a step, plans, and that it never harms the process it lives in."""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trainwarden import hook
from trainwarden.hook import Hook, MicroBatchPlan

MILLISECOND = 1_000_000


class HandClock:
    """Monotonic nanoseconds that move only when told."""

    def __init__(self) -> None:
        self.now = 1_000_000_000

    def __call__(self) -> int:
        return self.now

    def pass_ms(self, milliseconds: float) -> None:
        self.now += int(milliseconds * MILLISECOND)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> HandClock:
    clock = HandClock()
    monkeypatch.setattr(hook, "_clock", clock)
    return clock


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: HandClock) -> Iterator[Callable[..., Hook]]:
    """Hooks that leave this very process alone once the test is over."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "exit", sys.exit)
    made: list[Hook] = []

    def build(rank: int = 0, world: int = 2) -> Hook:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        built = Hook(str(tmp_path))
        built.missing = []  # torch may be here by another test: it is not to be touched
        monkeypatch.setitem(vars(sys), "_trainwarden_hook", built)
        built.activate()
        # The time of day is the hand clock's, so that every number of a test is known.
        began = clock()
        built.mark = (began, 0, 0, 0)
        made.append(built)
        return built

    yield build
    for built in made:
        built.live, built.off = False, True
        if built.ask >= 0:
            os.write(built.ask, b"!")  # its thread sees that it is over


def backward(target: Hook, clock: HandClock, milliseconds: float = 0.0) -> None:
    handle = target.begin_backward(None)
    clock.pass_ms(milliseconds)
    target.end_backward(handle)


def wait(target: Hook, clock: HandClock, milliseconds: float, call: int = 8) -> None:
    """A collective call, through the very watch that torch's methods get."""
    hook._call_watch(target, lambda group: clock.pass_ms(milliseconds), call)(None)


def steps_of(target: Hook) -> list[hook.Step]:
    found = hook.read_steps(target.path + ".hook")
    assert found is not None
    return found


def header_of(target: Hook) -> hook.Header:
    found = hook.read_header(target.path + ".hook")
    assert found is not None
    return found


# -- what ends a step, and how it is split


def test_an_optimizer_step_after_a_backward_pass_ends_a_step(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make(rank=3, world=8)
    for _ in range(2):
        clock.pass_ms(30)
        backward(target, clock, 10)
        wait(target, clock, 5)
        target.optimizer_stepped()
        target.optimizer_stepped()  # a second optimizer of the same step
    first, second = steps_of(target)
    assert (first.step, second.step) == (0, 1)
    assert second.duration_s == pytest.approx(0.045)
    assert second.compute_s == pytest.approx(0.040)
    assert second.wait_s == pytest.approx(0.005)
    assert second.source == "optimizer"
    assert second.micro_batches == 1
    header = header_of(target)
    assert (header.rank, header.world_size, header.step, header.calls) == (3, 8, 2, 2)
    assert header.role == "collective"


def test_micro_batches_are_counted_or_declared(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    for _ in range(3):
        backward(target, clock)
    target.optimizer_stepped()
    hook.micro_batches(7)
    backward(target, clock)
    target.optimizer_stepped()
    assert [step.micro_batches for step in steps_of(target)] == [3, 7]


def test_an_optimizer_that_steps_inside_backward_ends_the_step_after_it(
    make: Callable[..., Hook], clock: HandClock
) -> None:
    target = make()
    handle = target.begin_backward(None)
    target.optimizer_stepped()
    target.optimizer_stepped()
    assert steps_of(target) == []
    target.end_backward(handle)
    assert len(steps_of(target)) == 1


def test_a_hand_written_update_is_recognised_and_no_step_is_lost(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    for step in range(8):
        clock.pass_ms(20)
        backward(target, clock, 10)
        wait(target, clock, 4)
        wait(target, clock, 6)
        found = len(steps_of(target))
        # Once believed, a step is written at its last wait and not at the next backward pass.
        assert found == (0 if step < 3 else step + 1)
    rows = steps_of(target)
    assert {row.source for row in rows} == {"by_hand"}
    assert [round(row.duration_s, 6) for row in rows] == [0.040] * 8
    assert [round(row.wait_s, 6) for row in rows] == [0.010] * 8


def test_accumulation_before_a_late_optimizer_step_is_not_taken_for_steps_by_hand(
    make: Callable[..., Hook], clock: HandClock
) -> None:
    target = make()
    target.optimizers = 1
    for _ in range(2):
        for _ in range(16):
            clock.pass_ms(1)
            wait(target, clock, 1)
            backward(target, clock, 1)
            wait(target, clock, 1)
        target.optimizer_stepped()
    assert [(row.source, row.micro_batches) for row in steps_of(target)] == [("optimizer", 16)] * 2


def test_waits_for_pipeline_neighbours_do_not_end_steps(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    for _ in range(6):
        wait(target, clock, 1, call=hook._RECEIVE)
        backward(target, clock)
        wait(target, clock, 1, call=hook._SEND)
    assert steps_of(target) == []


@pytest.mark.parametrize(
    ("before", "after", "role"),
    [
        ((hook._SEND, hook._SEND, hook._RECEIVE), (hook._RECEIVE,), "p2p:first"),
        ((hook._RECEIVE, hook._SEND), (hook._SEND,), "p2p:middle"),
        ((hook._RECEIVE, hook._RECEIVE), (hook._SEND,), "p2p:last"),
    ],
)
def test_the_stage_of_a_pipeline_is_told_by_its_calls(
    make: Callable[..., Hook], clock: HandClock, before: tuple[int, ...], after: tuple[int, ...], role: str
) -> None:
    target = make()
    for _ in range(2):
        for call in before:
            wait(target, clock, 1, call)
        backward(target, clock)
        for call in after:
            wait(target, clock, 1, call)
        target.optimizer_stepped()
    assert header_of(target).role == role


def test_a_lone_process_without_optimizer_steps_at_every_backward(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make(world=1)
    for _ in range(12):
        clock.pass_ms(5)
        backward(target, clock, 5)
    rows = steps_of(target)
    assert len(rows) == 12
    assert {round(row.duration_s, 6) for row in rows} == {0.010}
    assert rows[-1].source == "backward"


def test_without_backward_the_period_of_the_calls_ends_steps(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    for _ in range(30):
        clock.pass_ms(20)
        for call in (8, 9, 8, 10):
            wait(target, clock, 1, call)
    rows = steps_of(target)
    assert len(rows) == 30
    assert {round(row.duration_s, 6) for row in rows[1:]} == {0.024}
    assert {row.source for row in rows} == {"calls"}


def test_equal_calls_in_bursts_are_told_apart_by_the_gaps(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    noise = random.Random(0)
    for _ in range(30):
        clock.pass_ms(20 + noise.random() * 5)
        for _ in range(5):
            wait(target, clock, 1)
    rows = steps_of(target)
    assert len(rows) in (29, 30)
    assert all(0.024 <= row.duration_s <= 0.031 for row in rows[1:])


@given(
    pattern=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    repeats=st.integers(3, 8),
    junk=st.integers(0, 3),
)
def test_the_smallest_period_is_found(pattern: list[int], repeats: int, junk: int) -> None:
    symbols = pattern * max(repeats, -(-24 // len(pattern)))
    period = hook._smallest_period(symbols)
    assert 0 < period <= len(pattern)
    assert sum(a != b for a, b in zip(symbols, symbols[period:], strict=False)) <= len(symbols) // 20
    assert hook._smallest_period([object() for _ in range(10 + junk)]) == 0


class Engine:
    """Torch's engine as the hook sees it: a root that has hooks, and callbacks before the pass returns."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[], None]] = []
        self.prehooks: list[Callable[[object], None]] = []

    def queue_callback(self, callback: Callable[[], None]) -> None:
        self.callbacks.append(callback)

    def register_prehook(self, prehook: Callable[[object], None]) -> Engine:
        self.prehooks.append(prehook)
        return self

    def remove(self) -> None:
        self.prehooks.clear()


def engine_backward(target: Hook, clock: HandClock, ending: Callable[[], None]) -> None:
    """A pass of 10 ms whose last callback is `ending`."""
    engine = target.engine = Engine()
    handle = target.begin_backward((SimpleNamespace(grad_fn=engine),))
    for prehook in engine.prehooks:
        prehook(None)
    engine.queue_callback(ending)  # DDP queues its own later than the root's hook ran
    clock.pass_ms(10)
    for callback in engine.callbacks:
        callback()
    target.end_backward(handle)
    assert engine.prehooks == []


class Replica:
    require_backward_grad_sync = True


def test_the_last_part_of_ddps_backward_is_a_wait(make: Callable[..., Hook], clock: HandClock) -> None:
    target, replica = make(), Replica()
    target.replicas.add(replica)
    phases: list[str] = []

    def finalise() -> None:
        clock.pass_ms(7)
        phases.append(header_of(target).phase)

    engine_backward(target, clock, finalise)
    target.optimizer_stepped()
    (row,) = steps_of(target)
    assert (row.compute_s, row.wait_s) == (pytest.approx(0.010), pytest.approx(0.007))
    assert phases == ["wait"]
    assert header_of(target).phase == "compute"


def test_waits_that_were_seen_in_the_last_part_are_not_counted_twice(
    make: Callable[..., Hook], clock: HandClock
) -> None:
    target, replica = make(), Replica()
    target.replicas.add(replica)

    def finalise() -> None:
        wait(target, clock, 4)
        clock.pass_ms(3)

    engine_backward(target, clock, finalise)
    target.optimizer_stepped()
    (row,) = steps_of(target)
    assert (row.compute_s, row.wait_s) == (pytest.approx(0.013), pytest.approx(0.004))


def test_ddp_without_an_optimizer_steps_where_gradients_were_exchanged(
    make: Callable[..., Hook], clock: HandClock
) -> None:
    target, replica = make(), Replica()
    target.replicas.add(replica)
    target.called(8, (), 0)  # there are collectives, so this is no lone process
    target.calls = 1
    for _ in range(6):
        replica.require_backward_grad_sync = False
        engine_backward(target, clock, lambda: clock.pass_ms(0.1))
        replica.require_backward_grad_sync = True
        engine_backward(target, clock, lambda: clock.pass_ms(5))
    rows = steps_of(target)
    assert len(rows) >= 5
    assert {(row.micro_batches, row.source) for row in rows} == {(2, "by_hand")}


def test_marks_overrule_everything_else(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    hook.set_step(100)
    for _ in range(3):
        clock.pass_ms(10)
        backward(target, clock)
        hook.iteration()
        target.optimizer_stepped()
    clock.pass_ms(10)
    hook.iteration(500)
    assert [row.step for row in steps_of(target)] == [100, 101, 102, 500]
    assert {row.source for row in steps_of(target)} == {"marks"}
    assert header_of(target).step == 501


@given(data=st.data())
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_compute_wait_and_pause_add_up_whatever_happens(
    data: st.DataObject, make: Callable[..., Hook], clock: HandClock
) -> None:
    target = make()
    deeds = st.sampled_from(
        ["compute", "wait", "nested", "pause", "wait in pause", "step in pause", "backward", "step", "mark", "eval"]
    )
    module = SimpleModule()
    for deed in data.draw(st.lists(deeds, max_size=40)):
        clock.pass_ms(1)
        if deed == "wait":
            wait(target, clock, 2)
        elif deed == "nested":
            began = target.enter()
            assert target.enter() == 0
            target.leave(began)
        elif deed == "pause":
            with hook.phase("data"):
                clock.pass_ms(3)
        elif deed == "wait in pause":
            with hook.phase("checkpoint"):
                wait(target, clock, 3)
        elif deed == "step in pause":
            with hook.phase("data"):
                backward(target, clock, 2)
                target.optimizer_stepped()
                clock.pass_ms(1)
        elif deed == "backward":
            backward(target, clock, 2)
        elif deed == "step":
            target.optimizer_stepped()
        elif deed == "mark":
            hook.iteration()
        elif deed == "eval":
            target.mode_changed(module, not module.training)
            module.training = not module.training
    assert target.words[hook._ERRORS] == 0
    rows = steps_of(target)
    for row in rows:
        assert row.compute_s + row.wait_s + row.pause_s == pytest.approx(row.duration_s, abs=1e-9)
    ends = [row.end_s for row in rows]
    assert ends == sorted(ends)
    target.live = False


# -- phases and pauses


class SimpleModule:
    training = True


def test_the_header_says_what_the_rank_is_doing(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    assert header_of(target).phase == "start"
    backward(target, clock)
    assert header_of(target).phase == "compute"
    began = target.enter()
    clock.pass_ms(5)
    header = header_of(target)
    assert header.phase == "wait"
    target.leave(began)
    with hook.phase("checkpoint"):
        assert header_of(target).phase == "checkpoint"
        inner = target.enter()
        assert header_of(target).phase == "wait"
        target.leave(inner)
        assert header_of(target).phase == "checkpoint"
    assert header_of(target).phase == "compute"
    assert header_of(target).phase_since_s - header.phase_since_s == pytest.approx(0.005, abs=1e-4)
    target.at_exit()
    assert (header_of(target).phase, header_of(target).exit_code) == ("exit", 0)


def test_evaluation_lasts_from_eval_to_train(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    module = SimpleModule()
    backward(target, clock)
    target.optimizer_stepped()
    target.mode_changed(module, False)
    assert header_of(target).phase == "evaluation"
    clock.pass_ms(800)
    target.mode_changed(module, True)
    clock.pass_ms(10)
    backward(target, clock)
    target.optimizer_stepped()
    assert steps_of(target)[-1].pause_s == pytest.approx(0.8)
    assert steps_of(target)[-1].compute_s == pytest.approx(0.01)
    (pause,) = hook.read_pauses(target.path + ".hook") or []
    assert (pause.phase, pause.step, pause.duration_s) == ("evaluation", 1, pytest.approx(0.8))


def test_a_frozen_part_in_eval_mode_is_no_evaluation(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    module = SimpleModule()
    for _ in range(3):
        target.mode_changed(module, False)
        clock.pass_ms(10)
        backward(target, clock)
        target.optimizer_stepped()
        module.training = True  # train() of the whole model, which the hook also sees
        target.mode_changed(module, True)
    assert [row.pause_s for row in steps_of(target)] == [0.0] * 3
    assert header_of(target).phase == "compute"


def test_other_threads_do_not_count(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    backward(target, clock)
    seen: list[object] = []

    def elsewhere() -> None:
        seen.append(target.enter())
        seen.append(target.begin_backward(None))
        seen.append(target.begin_pause(hook._CHECKPOINT))
        target.optimizer_stepped()

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert seen == [0, None, None]
    assert steps_of(target) == []


def test_the_first_thread_with_a_backward_pass_is_the_training_thread(
    make: Callable[..., Hook], clock: HandClock
) -> None:
    target = make()
    wait(target, clock, 1)  # a barrier on the main thread

    def train() -> None:
        backward(target, clock)
        target.optimizer_stepped()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert len(steps_of(target)) == 1


# -- the file


def test_the_ring_keeps_the_newest_steps(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    for _ in range(hook.RING + 100):
        clock.pass_ms(1)
        hook.iteration()
    path = target.path + ".hook"
    rows = hook.read_steps(path)
    assert rows is not None
    assert [row.step for row in rows] == list(range(100, hook.RING + 100))
    assert [row.step for row in hook.read_steps(path, hook.RING + 98) or []] == [hook.RING + 98, hook.RING + 99]
    assert hook.read_steps(path, hook.RING + 100) == []
    assert hook.read_steps(path, 10**9) == []


def test_a_torn_record_is_left_out(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    for _ in range(5):
        clock.pass_ms(1)
        hook.iteration()
    path = Path(target.path + ".hook")
    data = bytearray(path.read_bytes())
    size = hook._STEP_WORDS.size
    struct.pack_into("@q", data, hook._HEADER_BYTES + 3 * size - 8, 0)  # the second serial number of the third
    torn = path.with_name("torn")
    torn.write_bytes(data)
    assert [row.serial for row in hook.read_steps(torn) or []] == [1, 2, 4, 5]
    torn.write_bytes(data[: hook._HEADER_BYTES + size + 7])
    assert [row.serial for row in hook.read_steps(torn) or []] == [1]
    torn.write_bytes(data[: hook._HEADER_BYTES - 1])
    assert hook.read_steps(torn) is None
    assert hook.read_header(torn) is None


def test_what_is_no_hook_file_is_none(tmp_path: Path) -> None:
    assert hook.read_header(tmp_path / "missing") is None
    assert hook.read_steps(tmp_path) is None
    (tmp_path / "zeros").write_bytes(bytes(hook.FILE_BYTES))
    assert hook.read_header(tmp_path / "zeros") is None


@given(words=st.dictionaries(st.integers(0, 63), st.integers(-(2**63), 2**63 - 1)), length=st.integers(0, 2000))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_readers_take_any_bytes(tmp_path: Path, words: dict[int, int], length: int) -> None:
    header = [0] * 64
    header[hook._MAGIC], header[hook._VERSION], header[hook._PID] = hook.MAGIC, hook.VERSION, 1
    for place, word in words.items():
        header[place] = word
    path = tmp_path / "any"
    path.write_bytes(hook._HEADER.pack(*header) + bytes(length))
    hook.read_header(path)
    hook.read_steps(path)
    hook.read_pauses(path)


# -- never in the way


def breakages() -> list[str]:
    return ["a file", "gone", "missing", "long", "zero"]


@pytest.mark.parametrize("breakage", breakages())
def test_nothing_raises_whatever_the_folder_is(
    breakage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: HandClock
) -> None:
    folder = tmp_path / "hook"
    folder.mkdir()
    value = {"long": "x" * 5000, "zero": "", "missing": str(tmp_path / "missing")}.get(breakage, str(folder))
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "exit", sys.exit)
    monkeypatch.setenv("TRAINWARDEN_HOOK_DIR", value)
    monkeypatch.setattr(hook, "_PATCHES", ())
    monkeypatch.setitem(vars(sys), "_trainwarden_hook", None)
    hook.autoload()
    if breakage in ("gone", "a file"):
        folder.rmdir()
    if breakage == "a file":
        folder.touch()
    hook.iteration()
    hook.iteration(-5)
    hook.set_step(3)
    hook.micro_batches(0)
    hook.micro_batches(2)
    with hook.phase("evaluation"), hook.phase("no such phase"):
        pass
    plan = MicroBatchPlan(0, 2, 4)
    assert plan.latest() == 0
    assert plan.adopt(5) == (2, 2)
    found = vars(sys)["_trainwarden_hook"]
    assert found is None or found.off


def test_calls_are_counted_when_they_begin(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    inside: list[hook.Header] = []
    hook._call_watch(target, lambda group: inside.append(header_of(target)), 8)(None)
    assert (inside[0].calls, inside[0].phase) == (1, "wait")


def test_an_error_of_our_own_is_counted_and_goes_no_further(
    make: Callable[..., Hook], clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make()

    def broken(*args: object) -> None:
        raise RuntimeError("ours")

    for name in ("close", "_listen", "_weigh_candidate", "_keep_pause", "note"):
        monkeypatch.setattr(Hook, name, broken)
    backward(target, clock)
    wait(target, clock, 1)
    backward(target, clock)
    target.optimizer_stepped()
    with hook.phase("checkpoint"):
        clock.pass_ms(900)
    target.exception(ValueError, ValueError("theirs"), None)
    hook.iteration()
    assert header_of(target).errors >= 4
    Hook(target.folder)._failed()  # not live yet: nothing to count in


def test_phase_lets_the_persons_own_exception_through(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    with pytest.raises(KeyError), hook.phase("data"):
        raise KeyError("mine")
    assert target.pauses == 0


def test_inert_without_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINWARDEN_HOOK_DIR", raising=False)
    monkeypatch.setitem(vars(sys), "_trainwarden_hook", None)
    hook.autoload()
    hook.iteration()
    assert vars(sys)["_trainwarden_hook"] is None


def test_off_in_the_forked_child_of_a_training_process(make: Callable[..., Hook], clock: HandClock) -> None:
    target = make()
    backward(target, clock)
    target.forked()
    assert target.enter() == 0
    assert target.begin_backward(None) is None
    target.optimizer_stepped()
    target.at_exit()
    target.exception(ValueError, ValueError("child"), None)
    assert steps_of(target) == []
    assert not Path(target.path + ".last").exists()


def test_a_copied_file_shares_the_one_hook(make: Callable[..., Hook], tmp_path: Path) -> None:
    import importlib.util

    target = make()
    copied = tmp_path / "trainwarden_hook.py"
    copied.write_bytes(Path(hook.__file__).read_bytes())
    spec = importlib.util.spec_from_file_location("trainwarden_hook", copied)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["trainwarden_hook"] = module
    try:
        spec.loader.exec_module(module)
        module.autoload()
        module.iteration()
    finally:
        del sys.modules["trainwarden_hook"]
    assert len(steps_of(target)) == 1
    assert len(list(tmp_path.glob("*.hook"))) == 1


def test_the_hook_imports_the_standard_library_alone() -> None:
    code = (
        "import sys, importlib.util as u; "
        f"s = u.spec_from_file_location('h', {str(hook.__file__)!r}); m = u.module_from_spec(s); sys.modules['h'] = m; "
        "s.loader.exec_module(m); m.iteration(); "
        "tops = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names); print(sorted(tops))"
    )
    found = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['__main__', 'h']"


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
    assert hook._who_am_i()[0] == rank


def test_the_rank_is_settled_once_torch_knows_it(
    make: Callable[..., Hook], clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make()
    target.rank_known = False
    distributed = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 4, get_world_size=lambda: 16
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", distributed)  # type: ignore[arg-type]
    wait(target, clock, 1)
    assert target.path.endswith(f"rank-4-{os.getpid()}")
    assert (header_of(target).rank, header_of(target).world_size) == (4, 16)


# -- last words


def test_an_exception_goes_out_by_datagram_and_file(
    make: Callable[..., Hook], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    previous: list[object] = []
    monkeypatch.setattr(sys, "excepthook", lambda *args: previous.append(args))
    target = make(rank=2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        folder = os.open(tmp_path, os.O_RDONLY)
        agent.bind(f"/proc/self/fd/{folder}/agent.sock")
        os.close(folder)
        agent.settimeout(5.0)
        try:
            raise ValueError("x" * 5000)
        except ValueError as error:
            sys.excepthook(type(error), error, error.__traceback__)
        told = json.loads(agent.recv(65536))
    assert told == json.loads(Path(target.path + ".last").read_bytes())
    assert told["type"] == "exception"
    assert told["exception"] == "ValueError"
    assert told["message"].startswith("ValueError: xxx")
    assert len(told["message"]) == 2000
    assert "test_hook.py" in told["frame"]
    assert told["incarnation"] == header_of(target).incarnation
    assert len(previous) == 1
    target.at_exit()
    assert header_of(target).exit_code == 1


def test_the_frame_is_the_innermost_one_of_the_person() -> None:
    try:
        json.loads("{")
    except ValueError as error:
        frame = hook._user_frame(error.__traceback__)
    assert frame.startswith("test_hook.py:")
    assert frame.endswith("in test_the_frame_is_the_innermost_one_of_the_person")


def test_sys_exit_keeps_its_code(make: Callable[..., Hook]) -> None:
    target = make()
    with pytest.raises(SystemExit) as ended:
        sys.exit(3)
    assert ended.value.code == 3
    target.at_exit()
    assert header_of(target).exit_code == 3


# -- plans


@pytest.fixture
def plan_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINWARDEN_RUN_DIR", str(tmp_path))
    return tmp_path / "plan.json"


def write_plan(path: Path, plan: object) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(plan))
    part.replace(path)


def test_plans_are_read_and_adopted(plan_file: Path, make: Callable[..., Hook], clock: HandClock) -> None:
    target = make(rank=1)
    plan = MicroBatchPlan(1, 2, 6)
    assert (plan.latest(), plan.adopt(0)) == (0, (3, 3))
    write_plan(plan_file, {"number": 1, "micro_batches": [4, 2], "why": "rank 1 is slow"})
    assert plan.latest() == 1
    write_plan(plan_file, {"number": 2, "micro_batches": [5, 1]})
    assert plan.latest() == 2
    assert plan.adopt(1) == (4, 2)  # another rank had not read the second one yet
    header = header_of(target)
    assert (header.plan, header.micro_batches) == (1, 2)
    told = json.loads(Path(target.path + ".last").read_text().splitlines()[-1])
    assert (told["type"], told["plan"], told["micro_batches"]) == ("plan", 1, "4,2")


def test_a_plan_that_was_missed_is_in_the_history(plan_file: Path) -> None:
    old = {"number": 1, "micro_batches": [4, 2]}
    write_plan(plan_file, {"number": 2, "micro_batches": [5, 1], "history": [old, "junk"]})
    plan = MicroBatchPlan(0, 2, 6)
    assert plan.latest() == 2
    assert plan.adopt(1) == (4, 2)


@pytest.mark.parametrize(
    "plan",
    [
        {"number": 1, "micro_batches": [6]},
        {"number": 1, "micro_batches": [6, 0]},
        {"number": 1, "micro_batches": [4, 3]},
        {"number": 1, "micro_batches": [4.0, 2.0]},
        {"number": 1, "micro_batches": [True, 5]},
        {"number": 1, "micro_batches": "42"},
        {"number": 0, "micro_batches": [4, 2]},
        {"number": "1", "micro_batches": [4, 2]},
        {"micro_batches": [4, 2]},
        [1, 2],
        7,
    ],
)
def test_impossible_plans_are_passed_over(plan: object, plan_file: Path) -> None:
    write_plan(plan_file, plan)
    reader = MicroBatchPlan(0, 2, 6)
    assert reader.latest() == 0
    assert reader.adopt(1) == (3, 3)


@given(text=st.binary(max_size=200))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_as_plan_are_survived(text: bytes, plan_file: Path) -> None:
    plan_file.write_bytes(text)
    assert MicroBatchPlan(0, 2, 6).latest() == 0


@given(world=st.integers(1, 50), extra=st.integers(0, 100))
def test_the_even_split_is_even(world: int, extra: int) -> None:
    shares = MicroBatchPlan(0, world, world + extra).adopt(0)
    assert sum(shares) == world + extra
    assert max(shares) - min(shares) <= 1


# -- the recorder of collective calls, on request


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What stands in for torch's module: `answer` is what its recorder says."""
    told = SimpleNamespace(answer=b'{"entries":[]}', asked=0)

    def dump() -> bytes:
        told.asked += 1
        if isinstance(told.answer, Exception):
            raise told.answer
        return told.answer

    told._dump_fr_trace_json = dump
    monkeypatch.setitem(sys.modules, "torch._C._distributed_c10d", told)
    return told


def ask(target: Hook, seconds: float = 5.0) -> bool:
    """Ask as the agent does; True if an answer comes."""
    answer = Path(target.path + ".calls")
    descriptor = os.open(target.path + ".ask", os.O_WRONLY | os.O_NONBLOCK)
    os.write(descriptor, b"?")
    os.close(descriptor)
    came = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if answer.exists():
            return True
        came.wait(0.01)
    return False


def test_a_request_is_answered_while_the_training_thread_waits(
    make: Callable[..., Hook], recorder: SimpleNamespace
) -> None:
    target = make()
    target.enter()  # stuck in a collective
    assert ask(target)
    assert Path(target.path + ".calls").read_bytes() == recorder.answer
    assert not Path(target.path + ".calls.tmp").exists()
    assert target.words[hook._ERRORS] == 0


def test_nothing_is_recorded_until_somebody_asks(make: Callable[..., Hook], recorder: SimpleNamespace) -> None:
    target = make()
    target.leave(target.enter())
    target.settle_rank()
    assert recorder.asked == 0
    assert {path.suffix for path in Path(target.folder).iterdir()} - {".fault"} == {".ask", ".hook"}


def test_a_recorder_that_fails_says_nothing_or_far_too_much_leaves_no_file_and_the_next_request_is_heard(
    make: Callable[..., Hook], recorder: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make()
    monkeypatch.setattr(hook, "_MAX_CALLS_BYTES", 1000)
    for answer in (RuntimeError("no"), b"{}", b'{"entries":[' + b"0," * 1000 + b"0]}"):
        recorder.answer = answer
        assert not ask(target, 0.1)
    assert target.words[hook._ERRORS] == 1
    recorder.answer = b'{"entries":[1]}'
    assert ask(target)


def test_a_rank_alone_has_no_pipe_and_no_thread(make: Callable[..., Hook], recorder: SimpleNamespace) -> None:
    target = make(world=1)
    assert target.ask == -1
    assert not Path(target.path + ".ask").exists()


def test_a_pipe_that_cannot_be_made_is_counted_and_harms_nothing(
    make: Callable[..., Hook], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "mkfifo", refuse)
    target = make()
    assert target.live
    assert target.ask == -1
    assert target.words[hook._ERRORS] == 1
