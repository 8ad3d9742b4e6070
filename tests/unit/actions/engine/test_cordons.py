"""People's words on nodes: carried out once by who owns them, whatever is killed, and never late."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.engine_doubles import Killed, Rig
from tests.memory_launcher import MemoryLauncher
from trainwarden.commands.builders import NodeWord, on_job, on_node
from trainwarden.errors import LauncherError
from trainwarden.launching import Capabilities, LauncherState, NodeState, Operation, Targets, refused
from trainwarden.records import ActionRecord, CommandRecord, Suspect
from trainwarden.topics import ACTIONS, COMMANDS

ALL = Capabilities(can=frozenset({"restart", "stop", "evict", "cordon", "uncordon"}))


def rig(able: Capabilities = ALL, **settings: Any) -> Rig:
    made = Rig(**{"mode": "confirm", **settings})
    made.launcher.able, made.launcher.phase = able, "running"
    return made


def word(one: Rig, said: NodeWord = "cordon", name: str = "c1", node: str = "n0", job: str = "job") -> CommandRecord:
    command = on_node(said, node, job, "ann", at_s=one.clock.now_s(), why="its fan is loud")
    return msgspec.structs.replace(command, id=f"command/{name}")


def last(one: Rig) -> ActionRecord:
    return one.bus.actions()[-1]


def test_a_word_is_carried_out_and_recorded_with_who_when_and_why() -> None:
    one = rig()
    one.tell(word(one))
    assert one.story() == [("command/c1/cordon/1", "started"), ("command/c1/cordon/1", "done")]
    assert one.launcher.cordoned == {"n0"}
    action = last(one)
    assert (action.incident, action.command, action.kind) == (None, "command/c1", "cordon_node")
    assert (action.by, action.why, action.plan) == ("ann", "its fan is loud", {"nodes": ["n0"]})
    assert (action.at_s, action.finished_at_s) == (1000.0, 1000.0)
    (operation,) = one.launcher.operations
    assert (operation.by, operation.why, operation.expected_generation) == ("ann", "its fan is loud", 1)
    one.tick(100.0)
    one.tell(word(one, "uncordon", "c2"))
    assert one.launcher.cordoned == set()
    assert last(one).kind == "uncordon_node"
    one.restart_engine()
    one.tick(100.0)
    assert len(one.launcher.asked) == 2


def test_what_the_launcher_cannot_do_is_said_in_its_words() -> None:
    one = rig(Capabilities(can=frozenset(), cannot={"cordon": "a desk has one node"}))
    one.tell(word(one))
    one.tick(10.0)
    assert one.story() == [("command/c1/cordon/1", "skipped")]
    assert last(one).why == "a desk has one node"
    assert one.launcher.asked == []


def test_what_the_launcher_refuses_is_the_end_of_it() -> None:
    one = rig()
    one.tell(word(one, node="n9"))
    one.tick(10.0)
    assert one.story() == [("command/c1/cordon/1", "started"), ("command/c1/cordon/1", "failed")]
    assert last(one).why == "its fan is loud; the launcher refused: no node of its own was named"


def test_an_engine_that_only_observes_does_nothing() -> None:
    for settings in ({"mode": "observe"}, {"mode": "auto", "policy": {"modes": {"cordon_node": "observe"}}}):
        one = rig(**settings)
        one.tell(word(one))
        assert (one.story(), one.launcher.asked) == ([("command/c1/cordon/1", "skipped")], [])
        assert last(one).why == "the engine was told to observe only"


def test_a_stop_holds_it_until_the_resume() -> None:
    one = rig()
    one.tell(on_job("stop", None, "bob", 0.0))
    one.tell(word(one))
    one.tick(5.0)
    assert one.story() == [("command/c1/cordon/1", "skipped")]
    assert last(one).why == "all acting was stopped by bob; it may go ahead once a person resumes"
    one.tell(on_job("resume", None, "bob", 0.0))
    assert one.launcher.done == ["command/c1/cordon/1"]


def test_a_stop_that_is_said_while_started_is_written_is_obeyed() -> None:
    one = rig()
    stop = on_job("stop", None, "bob", 0.0)
    one.bus.before_flush = None
    one.launcher.before = lambda: pytest.fail("the launcher heard of it")
    one.bus.publish(*_at(word(one)))
    one.bus.flush()
    list(one.engine.handle(one.consumer.poll(0.0)))
    one.bus.before_flush = lambda: one.bus.publish(*_at(stop))
    one.tick()
    assert one.story()[-1] == ("command/c1/cordon/1", "failed")
    assert last(one).why == (
        "its fan is loud; all acting was stopped by bob; it may go ahead once a person resumes"
        " before the launcher heard of it"
    )
    one.launcher.before = lambda: None
    one.tick(5.0)
    assert one.story()[-1] == ("command/c1/cordon/2", "skipped")
    one.tell(on_job("resume", None, "bob", 0.0))
    assert one.launcher.done == ["command/c1/cordon/2"]


def _at(command: CommandRecord) -> tuple[Any, str, CommandRecord]:
    return COMMANDS, command.job, command


def test_no_budget_window_or_latch_holds_it_and_it_uses_none_up() -> None:
    window = {"from_utc": "00:00", "to_utc": "24:00"}
    one = rig(
        mode="auto", actions_per_hour=1, cool_down_s=3600.0, policy={"maintenance": [window], "nodes": {"at_most": 0}}
    )
    one.tell(word(one))
    one.tell(word(one, "uncordon", "c2"))
    assert one.launcher.done == ["command/c1/cordon/1", "command/c2/uncordon/1"]
    two = rig(mode="auto", actions_per_hour=1, cool_down_s=3600.0)
    two.tell(word(two))
    two.launcher.phase = "failed"
    two.tell(two.incident())
    assert two.launcher.done == ["command/c1/cordon/1", "i1/restart/1"]


def test_the_newest_word_on_a_node_stands() -> None:
    one = rig()
    one.launcher.unreachable = True
    one.tell(word(one), word(one, "uncordon", "c2"))
    one.launcher.unreachable = False
    one.tick(5.0)
    assert one.story()[0] == ("command/c1/cordon/1", "skipped")
    assert one.bus.actions()[0].why == "ann has said uncordon of n0 since"
    assert one.launcher.done == ["command/c2/uncordon/1"]


def test_a_word_waits_for_the_one_before_it() -> None:
    one = rig()
    one.launcher.slow = True
    one.tell(word(one))
    one.tell(word(one, "uncordon", "c2"))
    one.tick(5.0)
    assert [name for _, name in one.launcher.asked] == ["command/c1/cordon/1"]
    one.launcher.finish("command/c1/cordon/1")
    one.tick(5.0)
    one.tick(5.0)
    assert [name for _, name in one.launcher.asked] == ["command/c1/cordon/1", "command/c2/uncordon/1"]


def test_what_nobody_could_begin_in_time_is_not_done_late() -> None:
    one = rig()
    one.launcher.unreachable = True
    one.tell(word(one))
    one.tick(61.0)
    assert last(one).plan["held"] == "launcher"
    one.tick(3600.0)
    one.launcher.unreachable = False
    one.tick(5.0)
    assert one.launcher.asked == []
    assert last(one).why == "it was said more than 3600 s ago and could not be begun until now: say it again"
    one.clock.sleep(8 * 86_400.0)
    one.bus.kept[ACTIONS.name] = []  # forgotten by the bus, other than the word
    one.restart_engine()
    one.tick()
    assert one.story() == []


def test_a_launcher_that_comes_back_in_time_hears_of_it() -> None:
    one = rig()
    one.launcher.unreachable = True
    one.tell(word(one))
    one.tick(100.0)
    one.launcher.unreachable = False
    one.tick(5.0)
    assert one.launcher.done == ["command/c1/cordon/1"]


def test_a_word_that_the_launcher_finds_stale_is_planned_anew() -> None:
    one = rig()
    one.launcher.before = lambda: setattr(one.launcher, "generation", 7)
    one.tell(word(one))
    assert last(one).outcome == "failed"
    one.tick(1.0)
    assert one.launcher.done == ["command/c1/cordon/2"]
    one.tick(100.0)
    assert len(one.launcher.asked) == 2


@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_the_call_leaves_it_to_the_next_engine_once(after: bool) -> None:
    one = rig()

    def die() -> None:
        one.launcher.before = lambda: None
        if after:
            targets = Targets(nodes=("n0",))
            asked = Operation(
                id="command/c1/cordon/1", job="job", kind="cordon", expected_generation=1, targets=targets
            )
            one.launcher.submit(asked)
        raise Killed

    one.launcher.before = die
    with pytest.raises(Killed):
        one.tell(word(one))
    one.restart_engine()
    one.tick(1.0)
    assert [operation.id for operation in one.launcher.operations] == ["command/c1/cordon/1"]
    assert one.story() == [("command/c1/cordon/1", "started"), ("command/c1/cordon/1", "done")]


def test_only_the_engine_that_owns_its_place_on_the_bus_carries_it_out() -> None:
    first = rig()
    first.bus.elsewhere = frozenset({"other"})
    first.restart_engine()
    second = first.beside()
    said = word(first, job="other")
    first.bus.publish(_at(said)[0], "other", said)
    first.bus.flush()
    first.restart_engine()
    first.tick(1.0)
    assert first.launcher.asked == []
    for one in (first, second, first, second):
        list(one.engine.handle(one.consumer.poll(0.0)))
        one.tick(1.0)
    assert first.launcher.asked == [("cordon", "command/c1/cordon/1")]
    first.restart_engine()
    first.tick(1.0)
    assert first.launcher.asked == [("cordon", "command/c1/cordon/1")]


def test_an_engine_of_one_job_leaves_other_jobs_nodes_alone() -> None:
    one = rig()
    one.launcher.job = "job"
    one.restart_engine()
    one.tell(word(one, job="other"))
    one.tick(5.0)
    assert one.story() == []


def test_a_node_that_was_uncordoned_is_not_taken_out_for_what_was_seen_before() -> None:
    one = rig(mode="auto")
    suspects = (Suspect(score=1.0, reason="Xid 79", node="n0"),)
    one.launcher.unreachable = True
    one.tell(one.incident("i1", "gpu_lost", suspects=suspects))
    one.launcher.unreachable = False
    one.tell(word(one, "uncordon"))
    one.tick(30.0)
    assert [kind for kind, _ in one.launcher.asked] == ["uncordon"]
    why = next(action.why for action in one.bus.actions() if action.kind == "evict_node")
    assert why == "n0 is not taken out: ann has uncordoned it since that was seen; what comes new counts"


def test_words_are_forgotten_with_their_actions_in_time() -> None:
    one = rig()
    one.tell(word(one))
    one.tick(8 * 86_400.0)
    one.tick(1.0)
    assert one.engine._memory.actions == {}


def test_a_word_too_long_for_any_record_is_passed_over_and_long_reasons_are_cut() -> None:
    one = rig()
    long = msgspec.structs.replace(word(one, name="c2"), why="x" * 800_000)
    one.tell(word(one, node="n" * 400_000), word(one, name="y" * 400_000), long)
    one.tick(1.0)
    assert one.launcher.done == ["command/c2/cordon/1"]
    assert len(last(one).why) == 2000


def test_a_launcher_whose_dry_run_refuses_it_is_told_in_its_words() -> None:
    one = rig()
    text = "this is a dry run: nothing was done; else Slurm would be asked to drain n0"
    one.launcher.submit = lambda operation: refused(operation, "unsupported", text)  # type: ignore[method-assign]
    one.tell(word(one))
    one.tick(5.0)
    assert one.story() == [("command/c1/cordon/1", "started"), ("command/c1/cordon/1", "failed")]
    assert last(one).why == f"its fan is loud; the launcher refused: {text}"


def test_of_many_words_a_few_are_begun_at_each_tick_in_their_order() -> None:
    """As of a row of nodes: each takes a launcher's time, and incidents of all jobs wait for it."""
    one = rig()
    one.launcher.nodes["job"] = tuple(NodeState(node=f"n{number}") for number in range(25))
    for number in range(25):
        one.bus.publish(*_at(word(one, name=f"c{number}", node=f"n{number}")))
    one.tell()
    assert one.launcher.done == [f"command/c{number}/cordon/1" for number in range(10)]
    one.tick()
    one.tick()
    assert one.launcher.done == [f"command/c{number}/cordon/1" for number in range(25)]


def test_a_launcher_that_knows_no_such_job_says_so_at_once() -> None:
    """The job is over, and its scheduler has forgotten it: whoever waits at a shell hears why, and names another."""
    one, real = rig(), MemoryLauncher.state

    def state(job: str) -> LauncherState:
        if job == "gone":
            raise LauncherError("Slurm knows no job named gone")
        return real(one.launcher, job)

    one.launcher.state = state  # type: ignore[method-assign]
    one.tell(word(one, job="gone"))
    assert (last(one).outcome, last(one).why) == ("skipped", "Slurm knows no job named gone")
    one.tell(word(one, name="c2"))
    assert one.launcher.done == ["command/c2/cordon/1"]
    whys = [action.why for action in one.bus.actions() if action.command == "command/c1"]
    assert whys == ["Slurm knows no job named gone", "ann has said cordon of n0 since"]
