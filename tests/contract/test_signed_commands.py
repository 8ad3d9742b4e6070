"""Signed words on both buses: what was signed counts, by way of groups and of whole reads, and nothing else does."""

from __future__ import annotations

import time
from collections import Counter

import msgspec

from tests.contract.bus_harness import Engine, poll_until
from trainwarden.commands.builders import on_job
from trainwarden.commands.keys import Trusted, new_signer
from trainwarden.commands.trust import Trust, in_order
from trainwarden.records import CommandRecord
from trainwarden.topics import COMMANDS

ANN = new_signer("ann")
JOBS = ("*", "llama", "bert", "vit", "gemma")  # of several partitions


def signed(job: str) -> CommandRecord:
    now_s = time.time()
    return ANN.sign(on_job("stop", job, "ann", now_s), now_s)


def test_what_was_signed_counts_however_it_is_read_and_nothing_else_does(engine: Engine) -> None:
    bus, trusted = engine.open(), [Trusted("ann", frozenset({"stop"}), ANN.public)]
    words = [signed(job) for job in JOBS]
    for word in words:
        bus.publish(COMMANDS, word.job, word)
    bus.flush()
    an_hour_old = ANN.sign(on_job("resume", "llama", "ann", time.time()), time.time() - 3_600.0)
    bad = [
        (words[0].job, words[0]),  # a replay
        ("vit", words[1]),  # a replay under another job's key
        ("bert", signed("llama")),  # put where another job's words are
        ("llama", msgspec.structs.replace(signed("llama"), job="bert")),
        ("llama", on_job("resume", "llama", "ann", time.time())),
        ("llama", an_hour_old),  # as the bus's own clock says
    ]
    for key, word in bad:
        bus.publish(COMMANDS, key, word)
    bus.flush()
    trust = Trust(trusted)
    for _ in range(2):  # an engine that begins anew reads it all again
        told = [(message.record, trust.refusal(message)) for message in in_order(bus.read(COMMANDS))]
        assert {word.job for word, refusal in told if refusal is None} == set(JOBS)  # type: ignore[attr-defined]
        reasons = Counter(refusal.reason for _, refusal in told if refusal is not None)
        assert reasons == {"replayed": 1, "misplaced": 2, "forged": 1, "unsigned": 1, "stale": 1}
    consumer = bus.consumer((COMMANDS,), "hears")
    messages = poll_until(consumer, len(words) + len(bad))
    assert [trust.refusal(one) is None for one in messages].count(True) == len(words)
    consumer.close()
