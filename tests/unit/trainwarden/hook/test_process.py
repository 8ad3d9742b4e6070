"""The hook as a whole is never in the way of the process it lives in."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.hook_doubles import HandClock, backward, header_of, steps_of, wait
from trainwarden import hook
from trainwarden.cli.setup import hook_file
from trainwarden.hook import Hook, MicroBatchPlan
from trainwarden.hook.ends import ByHand, Ends
from trainwarden.hook.last_words import LastWords
from trainwarden.hook.layout import AT_MICRO, CHECKPOINT
from trainwarden.hook.pauses import Pauses
from trainwarden.hook.steps import Steps


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
    monkeypatch.setattr(Hook, "_watches", lambda hook: [])
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
    assert found is None or found.memory.off


def test_an_error_of_our_own_is_counted_and_goes_no_further(
    make: Callable[..., Hook], clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make()

    def broken(*args: object) -> None:
        raise RuntimeError("ours")

    broken_methods = ((Steps, "close"), (Ends, "listen"), (ByHand, "weigh"), (Pauses, "_keep"), (LastWords, "note"))
    for part, name in broken_methods:
        monkeypatch.setattr(part, name, broken)
    backward(target, clock)
    wait(target, clock, 1)
    backward(target, clock)
    target.ends.optimizer_stepped()
    with hook.phase("checkpoint"):
        clock.pass_ms(900)
    target.last_words.exception(ValueError, ValueError("theirs"), None)
    hook.iteration()
    assert header_of(target).errors >= 4
    Hook(target.memory.folder).memory.failed()  # not live yet: nothing to count in


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
    assert target.waits.enter() == 0
    assert target.backward.begin(None) is None
    target.ends.optimizer_stepped()
    target.last_words.at_exit()
    target.last_words.exception(ValueError, ValueError("child"), None)
    assert steps_of(target) == []
    assert not Path(target.memory.path + ".last").exists()


def test_a_copied_file_shares_the_one_hook(make: Callable[..., Hook], tmp_path: Path) -> None:

    target = make()
    copied = tmp_path / "trainwarden_hook.py"
    copied.write_text(hook_file.text())
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
    folder = [str(Path(hook.__file__).parent)] if hasattr(hook, "__path__") else None
    code = (
        "import sys, importlib.util as u; "
        f"s = u.spec_from_file_location('h', {str(hook.__file__)!r}, submodule_search_locations={folder}); "
        "m = u.module_from_spec(s); sys.modules['h'] = m; s.loader.exec_module(m); m.iteration(); "
        "tops = {name.partition('.')[0] for name in sys.modules} - set(sys.stdlib_module_names); print(sorted(tops))"
    )
    found = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "['__main__', 'h']"


def test_a_copy_of_another_age_finds_what_it_needs(make: Callable[..., Hook], clock: HandClock) -> None:
    """What the functions of every edition so far ask of the `Hook` they find in the process."""
    target: Any = make()
    target.install()
    assert target.live
    assert not target.activate()
    target.micro = 3
    target.words[AT_MICRO] = target.micro
    target.number(7)
    assert target.step == 7
    target.end_pause(target.begin_pause(CHECKPOINT), CHECKPOINT)
    target.marked(None)
    target.note({"type": "plan"})
    assert (header_of(target).step, header_of(target).micro_batches, header_of(target).errors) == (8, 3, 0)
    target.forked()
    assert not target.live
