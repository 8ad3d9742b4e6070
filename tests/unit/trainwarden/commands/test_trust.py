"""Whose words count: unsigned, forged, unknown, not allowed, stale, replayed and moved ones do not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from trainwarden.commands.keys import Right, Signer, Trusted, new_signer
from trainwarden.commands.trust import FRESH_S, Trust, in_order
from trainwarden.protocols import Message
from trainwarden.records import CommandRecord

ANN, EVE = new_signer("ann"), new_signer("eve")
NOW_S = 1_000_000.0


def trusted(*rights: Right, until_s: float | None = None, signer: Signer = ANN) -> Trusted:
    return Trusted(signer.name, frozenset(rights), signer.public, until_s)


def command(kind: Any = "stop", **more: Any) -> CommandRecord:
    return CommandRecord(**{"id": "c", "job": "j", "at_s": NOW_S, "kind": kind, "by": "ann", **more})


def on_bus(record: CommandRecord, offset: int = 0, **more: Any) -> Message:
    fields = {"topic": "t", "partition": 0, "time_s": NOW_S, "key": record.job, "record": record, **more}
    return Message(offset=offset, **fields)


def reason(trust: Trust, message: Message) -> str | None:
    refusal = trust.refusal(message)
    assert refusal is None or (refusal.why.isprintable() and len(refusal.why) < 300)
    return None if refusal is None else refusal.reason


@pytest.mark.parametrize(
    ("right", "kinds"),
    [
        ("approve", ["approve", "deny"]),
        ("stop", ["stop", "resume"]),
        ("act", ["silence", "reset", "set_healthy"]),  # and every kind that comes later
        ("latch", ["latch"]),
    ],
)
def test_each_right_is_for_its_kinds_alone(right: Right, kinds: list[str]) -> None:
    every = ("approve", "deny", "stop", "resume", "silence", "reset", "set_healthy", "latch")
    heard = [kind for kind in every if reason(Trust([trusted(right)]), on_bus(ANN.sign(command(kind), NOW_S))) is None]
    assert heard == kinds


def test_what_a_word_takes_is_said() -> None:
    refusal = Trust([trusted("approve", "stop", "latch")]).doubt(ANN.sign(command("reset"), NOW_S))
    assert refusal is not None
    assert refusal.why == "'ann' may not say reset: it takes the right 'act'"


def test_who_has_not_signed_with_a_trusted_key_is_not_heard() -> None:
    trust, said = Trust([trusted("stop")]), ANN.sign(command(), NOW_S)
    assert said.signature is not None
    assert reason(trust, on_bus(said)) is None
    assert reason(trust, on_bus(command())) == "unsigned"
    assert reason(trust, on_bus(EVE.sign(command(by="eve"), NOW_S))) == "unknown_key"
    eves = EVE.sign(command(), NOW_S).signature
    assert eves is not None
    as_ann = msgspec.structs.replace(eves, by="ann")
    assert reason(trust, on_bus(msgspec.structs.replace(said, signature=as_ann))) == "forged"
    assert reason(trust, on_bus(msgspec.structs.replace(said, job="k"))) == "forged"
    long = msgspec.structs.replace(said.signature, by="\x1b[2J" + "x" * 100_000)
    assert Trust([trusted("stop")]).refusal(on_bus(msgspec.structs.replace(said, signature=long))) is not None


def test_nobody_speaks_for_another_but_who_may_relay() -> None:
    said = ANN.sign(command(by="bob"), NOW_S)
    assert reason(Trust([trusted("stop")]), on_bus(said)) == "wrong_name"
    assert reason(Trust([trusted("stop", "relay")]), on_bus(said)) is None
    assert reason(Trust([trusted("relay")]), on_bus(said)) == "not_allowed"
    latch = ANN.sign(command("latch", by="engine"), NOW_S)
    assert reason(Trust([trusted("latch")]), on_bus(latch)) is None


def test_what_comes_again_elsewhere_is_not_heard_and_what_is_read_again_is() -> None:
    trust, said = Trust([trusted("stop")]), ANN.sign(command("resume"), NOW_S)
    for _ in range(3):
        assert reason(trust, on_bus(said, 7)) is None
        assert reason(trust, on_bus(said, 8)) == "replayed"
        assert reason(trust, on_bus(said, 7, partition=1)) == "replayed"
    assert reason(trust, on_bus(ANN.sign(command("resume"), NOW_S), 9)) is None


def test_a_copy_in_another_partition_is_read_after_its_word_though_that_partition_is_read_first() -> None:
    said = ANN.sign(command("resume"), NOW_S)
    copy, word = on_bus(said, 99, time_s=NOW_S + 9.0), on_bus(said, 3, partition=2)
    trust = Trust([trusted("stop")])
    assert [(reason(trust, one), one.offset) for one in in_order([copy, word])] == [(None, 3), ("replayed", 99)]


def test_a_bus_whose_clock_was_set_back_keeps_the_order_of_a_partition() -> None:
    told = [on_bus(command(), offset, time_s=at_s) for offset, at_s in enumerate([50.0, 10.0, 60.0])]
    assert [one.offset for one in in_order(told)] == [0, 1, 2]


@pytest.mark.parametrize("late_s", [FRESH_S + 1.0, -FRESH_S - 1.0, 1e9, -1e9])
def test_what_was_signed_at_another_time_is_not_heard_whenever_it_is_read(late_s: float) -> None:
    trust = Trust([trusted("stop", "latch")])
    assert reason(trust, on_bus(ANN.sign(command("resume"), NOW_S), time_s=NOW_S + late_s)) == "stale"
    waited = ANN.sign(command("latch", by="engine"), NOW_S)
    assert reason(trust, on_bus(waited, time_s=NOW_S + late_s)) is None  # the bus was away


def test_what_lies_where_others_may_overtake_it_or_its_time_is_not_known_is_not_heard() -> None:
    trust, said = Trust([trusted("stop")]), ANN.sign(command(), NOW_S)
    assert reason(trust, on_bus(said, key="another")) == "misplaced"
    assert reason(trust, on_bus(said, stamped=False)) == "misplaced"


def test_keys_are_changed_without_a_gap_and_what_an_old_one_said_still_counts() -> None:
    new = Signer("ann", b"n" * 32)
    trust = Trust([trusted("stop", until_s=NOW_S), trusted("stop", signer=new)])
    before, after = ANN.sign(command(), NOW_S - 1.0), ANN.sign(command(), NOW_S + 1.0)
    assert reason(trust, on_bus(before, 0)) is None
    assert reason(trust, on_bus(new.sign(command(), NOW_S + 1.0), 1)) is None
    assert reason(trust, on_bus(after, 2)) == "expired"
    back_dated = ANN.sign(command("resume"), NOW_S - 1.0)  # a stolen old key
    assert reason(trust, on_bus(back_dated, 3, time_s=NOW_S + FRESH_S + 1.0)) == "stale"
    assert reason(trust, on_bus(ANN.sign(command("stop"), NOW_S - 1.0), 4, time_s=NOW_S + FRESH_S + 1.0)) == "stale"
    assert reason(Trust([trusted("stop", signer=new)]), on_bus(before)) == "forged"


@pytest.mark.parametrize("late_s", [FRESH_S + 1.0, -FRESH_S - 1.0, 3_600.0, -3_600.0])
def test_a_stop_is_never_refused_for_a_clock(late_s: float) -> None:
    """A clock that stood an hour ahead for one record leaves the embedded bus's stamps there for an hour."""
    trust, said = Trust([trusted("stop")]), ANN.sign(command("stop"), NOW_S)
    assert reason(trust, on_bus(said, time_s=NOW_S + late_s)) is None
    assert reason(trust, on_bus(said, 9, time_s=NOW_S + late_s)) == "replayed"
