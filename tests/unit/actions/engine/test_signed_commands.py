"""Where commands have to be signed: writing to a topic approves nothing, stops nothing and puts nothing back."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
import pytest

from tests.doubles import metric_value
from tests.engine_doubles import Rig
from trainwarden.actions.remedies.engine_state import with_outcome
from trainwarden.commands.builders import latch, on_node
from trainwarden.commands.keys import Right, Signer, Trusted, new_signer
from trainwarden.errors import ConfigError
from trainwarden.launching import Capabilities
from trainwarden.records import ActionRecord, CommandRecord, Suspect
from trainwarden.topics import ACTIONS, COMMANDS

KEYS = {name: new_signer(name) for name in ("ann", "bob", "engine-1", "eve", "serve")}
RIGHTS: dict[str, tuple[Right, ...]] = {"ann": ("approve", "stop"), "bob": ("act",), "engine-1": ("latch",)}
EVICT = "i1/evict/1"


def signing(mode: str = "confirm", **more: Any) -> Rig:
    """An engine that trusts ann and itself, and asks for a word on an eviction."""
    rig = Rig(mode=mode, **more)
    rig.trusted = tuple(Trusted(name, frozenset(may), KEYS[name].public) for name, may in RIGHTS.items())
    rig.signer = KEYS["engine-1"]
    rig.launcher.able = Capabilities(can=frozenset({"evict"}))
    rig.launcher.phase = "running"
    rig.restart_engine()
    return rig


def lost(rig: Rig) -> None:
    rig.tell(rig.incident("i1", "gpu_lost", suspects=(Suspect(score=1.0, reason="Xid 79", rank=2, node="n7"),)))


def said(rig: Rig, kind: str, key: Signer | None = None, action: str | None = None, **more: Any) -> CommandRecord:
    """A word on the bus under its job's key, signed if there is a key; the engine hears it at once."""
    command = msgspec.structs.replace(rig.command(kind, action), by=key.name if key else "ann", **more)
    return put(rig, key.sign(command, rig.clock.now_s()) if key else command)


def put(rig: Rig, command: CommandRecord) -> CommandRecord:
    rig.bus.publish(COMMANDS, command.job, command)
    rig.bus.flush()
    rig.tick()
    return command


def refused(rig: Rig, reason: str) -> float | None:
    return metric_value(rig.metrics, "commands_refused_total", reason=reason)


def test_an_eviction_is_approved_by_a_signed_word_and_by_no_other(caplog: pytest.LogCaptureFixture) -> None:
    rig = signing()
    lost(rig)
    with caplog.at_level(logging.WARNING, "trainwarden.engine"):
        said(rig, "approve", None, EVICT)
        said(rig, "approve", None, EVICT)
        said(rig, "approve", KEYS["eve"], EVICT)
    assert rig.launcher.asked == []
    assert (refused(rig, "unsigned"), refused(rig, "unknown_key"), refused(rig, "forged")) == (2, 1, 0)
    fields = [record.fields for record in caplog.records]  # type: ignore[attr-defined]
    assert [(one["claims"], one["why"]) for one in fields] == [
        ("ann", "it is not signed"), ("eve", "no key of 'eve' is trusted")
    ]  # fmt: skip
    said(rig, "approve", KEYS["ann"], EVICT)
    assert rig.launcher.asked == [("evict", EVICT)]
    assert rig.bus.actions()[-1].by == "ann"


def test_a_node_is_taken_out_of_use_by_a_signed_word_of_who_may_act() -> None:
    rig = signing(mode="auto")
    rig.launcher.able = Capabilities(can=frozenset({"cordon"}))
    for key in (None, KEYS["ann"], KEYS["bob"]):
        assert rig.launcher.asked == []
        by = "bob" if key is None else key.name
        word = on_node("cordon", "n0", "job", by, at_s=rig.clock.now_s(), why=f"signed with {key and key.name}")
        rig.tell(word if key is None else key.sign(word, rig.clock.now_s()))
    assert rig.launcher.asked == [("cordon", f"{word.id}/cordon/1")]
    assert (refused(rig, "unsigned"), refused(rig, "not_allowed")) == (1, 1)


def test_an_unsigned_word_on_a_node_is_not_obeyed_by_the_next_engine_either() -> None:
    rig = signing(mode="auto")
    rig.launcher.able = Capabilities(can=frozenset({"cordon"}))
    rig.tell(on_node("cordon", "n0", "job", "bob", at_s=rig.clock.now_s()))
    rig.restart_engine()
    rig.tick(1.0)
    assert (rig.launcher.asked, rig.bus.actions()) == ([], [])


@pytest.mark.parametrize(
    "forged", [{"plan": {"nodes": ["n8"]}}, {"kind": "evict_node"}, {"kind": "uncordon_node"}, {"kind": "stop_job"}]
)
def test_an_action_written_down_under_a_signed_word_does_what_was_said_and_nothing_else(forged: dict[str, Any]) -> None:
    rig = signing(mode="auto")
    rig.launcher.able = Capabilities(can=frozenset({"cordon", "uncordon", "evict", "stop"}))
    word = KEYS["bob"].sign(on_node("cordon", "n0", "job", "bob", at_s=rig.clock.now_s(), why="w"), rig.clock.now_s())
    rig.bus.publish(COMMANDS, "job", word)
    action = ActionRecord(
        id=f"{word.id}/cordon/9", command=word.id, job="job", kind="cordon_node", outcome="started",
        at_s=rig.clock.now_s(), why="w", plan={"nodes": ["n0"]}, generation=1,
    )  # fmt: skip
    rig.bus.publish(ACTIONS, "job", msgspec.structs.replace(action, **forged))
    rig.bus.flush()
    rig.restart_engine()
    for _ in range(5):
        rig.tick(1.0)
    assert [(one.kind, one.targets.nodes) for one in rig.launcher.operations] in ([], [("cordon", ("n0",))])


def test_a_stop_is_signed_too_and_a_replayed_resume_does_not_end_it_not_after_a_restart_either() -> None:
    rig = signing(mode="auto")
    said(rig, "stop")
    resume = said(rig, "resume", KEYS["ann"])
    put(rig, resume)
    assert (refused(rig, "unsigned"), refused(rig, "replayed")) == (1, 1)
    said(rig, "stop", KEYS["ann"])
    put(rig, resume)
    rig.restart_engine()
    lost(rig)
    assert rig.launcher.asked == []
    assert rig.bus.actions()[-1].why.startswith("all acting was stopped by ann;")


def test_what_was_refused_is_refused_by_the_next_engine_and_what_counted_counts() -> None:
    rig = signing()
    lost(rig)
    said(rig, "approve", None, EVICT)
    rig.restart_engine()
    rig.tick()
    assert rig.launcher.asked == []
    rig.launcher.unreachable = True
    said(rig, "approve", KEYS["ann"], EVICT)
    rig.tick(86_400.0 / 2)
    rig.launcher.unreachable = False
    rig.restart_engine()
    rig.tell(rig.later(rig.incident("i1", "gpu_lost")))
    rig.tick(1.0)
    assert [outcome for _, outcome in rig.story()].count("started") == 1


def test_an_action_that_somebody_wrote_down_as_begun_is_not_carried_out() -> None:
    """The other topic: an engine that comes back goes on with what was begun, but only with what was approved."""
    for approved in (False, True):
        rig = signing()
        lost(rig)
        (shown,) = rig.bus.actions()
        if approved:
            said(rig, "deny", None, EVICT)
        forged = with_outcome(shown, "started", rig.clock.now_s())
        forged = msgspec.structs.replace(
            forged, by="ann", plan={**forged.plan, "nodes": ["n8"]} if approved else forged.plan
        )
        rig.bus.publish(ACTIONS, "job", forged)
        rig.bus.flush()
        rig.restart_engine()
        rig.tick()
        assert rig.launcher.asked == []
        assert rig.bus.actions()[-1].outcome == "failed"
        assert "nobody whose word counts has approved this plan before the launcher heard" in rig.bus.actions()[-1].why


def test_another_plan_under_the_approved_digest_is_not_carried_out() -> None:
    rig = signing()
    lost(rig)
    (shown,) = rig.bus.actions()
    command = rig.command("approve", EVICT)
    command = KEYS["ann"].sign(msgspec.structs.replace(command, by="ann"), rig.clock.now_s())
    rig.bus.publish(COMMANDS, "job", command)
    forged = with_outcome(shown, "started", rig.clock.now_s())
    rig.bus.publish(ACTIONS, "job", msgspec.structs.replace(forged, plan={**forged.plan, "nodes": ["n8"]}))
    rig.bus.flush()
    rig.restart_engine()
    rig.tick()
    assert [operation for operation in rig.launcher.operations if "n8" in str(operation)] == []


def test_an_engine_killed_between_started_and_the_launcher_goes_on_with_what_was_approved() -> None:
    rig = signing()
    lost(rig)
    rig.launcher.before = lambda: (_ for _ in ()).throw(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        said(rig, "approve", KEYS["ann"], EVICT)
    assert rig.story()[-1] == (EVICT, "started")
    rig.launcher.before = lambda: None
    rig.restart_engine()
    rig.tick(1.0)
    assert rig.story()[-1] == (EVICT, "done")


def test_a_flood_of_unsigned_words_holds_up_nothing_and_does_not_flood_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = signing(mode="auto")
    flood = [msgspec.structs.replace(rig.command("stop"), id=f"c{n}", by=f"eve{n}") for n in range(3_000)]
    for command in flood:
        rig.bus.publish(COMMANDS, "job", command)
    with caplog.at_level(logging.WARNING, "trainwarden.engine"):
        lost(rig)
    assert rig.launcher.asked == [("evict", EVICT)]
    assert refused(rig, "unsigned") == 3_000
    assert len(caplog.records) <= 1_000


def test_the_engines_own_latch_is_signed_and_stands_after_a_restart_though_the_bus_was_away() -> None:
    rig = signing(mode="auto")
    lost(rig)
    rig.engine._outbox.put(latch(rig.bus.actions()[-1], "job", "too many", rig.clock.now_s()), rig.engine._memory)
    rig.tick(3600.0)
    (message,) = rig.bus.read(COMMANDS)
    assert isinstance(message.record, CommandRecord)
    assert message.record.signature is not None
    rig.restart_engine()
    assert rig.engine._memory.latches.over("job") is not None
    put(rig, msgspec.structs.replace(message.record, job="*", id="another"))
    assert refused(rig, "forged") == 1


def test_what_was_refused_long_ago_is_not_counted_at_each_start() -> None:
    rig = signing()
    said(rig, "stop")
    rig.tick(7 * 86_400.0)
    rig.restart_engine()
    said(rig, "resume")
    assert refused(rig, "unsigned") == 2


def test_an_engine_without_a_key_for_its_latches_does_not_begin() -> None:
    rig = signing()
    for signer in (None, KEYS["ann"], KEYS["eve"]):
        rig.signer = signer
        with pytest.raises(ConfigError, match=r"commands\.key: the engine needs a trusted key with the right 'latch'"):
            rig.restart_engine()


def test_without_trusted_keys_everything_is_as_it_was() -> None:
    rig = Rig(mode="confirm")
    rig.launcher.able = Capabilities(can=frozenset({"evict"}))
    rig.launcher.phase = "running"
    lost(rig)
    said(rig, "approve", None, EVICT)
    assert rig.launcher.asked == [("evict", EVICT)]


def test_a_replayed_approval_does_nothing_a_second_time_not_after_a_restart_either() -> None:
    rig = signing()
    lost(rig)
    word = said(rig, "approve", KEYS["ann"], EVICT)
    assert rig.launcher.asked == [("evict", EVICT)]
    for number in range(1, 4):
        put(rig, word)
        rig.restart_engine()
        rig.tick(1.0)
        assert rig.launcher.asked == [("evict", EVICT)]
        assert (refused(rig, "replayed") or 0) >= number
    rig.tell(rig.incident("i2", "gpu_lost", suspects=(Suspect(score=1.0, reason="Xid 79", rank=2, node="n7"),)))
    put(rig, word)
    put(rig, msgspec.structs.replace(word, action="i2/evict/1"))
    assert (refused(rig, "forged") or 0) >= 1
    assert rig.launcher.asked == [("evict", EVICT)]
