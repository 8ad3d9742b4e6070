"""The codec of the records: what goes in comes out, and anything else is a RecordError."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from trainwarden import records
from trainwarden.errors import RecordError
from trainwarden.records import SCHEMA_VERSION, EventRecord, MetricsRecord, Record, Suspect, Vote
from trainwarden.topics import EVENTS, MAX_RECORD_BYTES, METRICS, TOPICS, Topic, topic_of

EXAMPLES: list[Record] = [
    MetricsRecord(
        job="j", node="n", time_s=1.5, devices=("0", "1"), names=("a", "b"), values=((1.0, None), (-2.5, 1e300))
    ),
    records.IterationRecord(
        job="j",
        node="n",
        rank=3,
        incarnation="7-1",
        steps=(1, 2),
        end_s=(1.0, 2.0),
        duration_s=(0.5, 0.6),
        compute_s=(0.4, None),
        wait_s=(0.1, None),
        micro_batches=(4, None),
    ),
    records.HeartbeatRecord(job="j", node="n", time_s=1.0, ranks=(0,), pids=(5,), phases=("wait",), cpu_s=(None,)),
    records.LogRecord(
        job="j", node="n", source="rank-0.log", ends=(9,), lines=("żółć \x00 \u2028 🚀",), times_s=(1.0,), rank=0
    ),
    EventRecord(id="e", job="j", node="n", time_s=1.0, kind="xid", rank=0, fields={"a": None, "b": True, "c": "d"}),
    records.VerdictRecord(
        id="v",
        job="j",
        time_s=1.0,
        window_s=60.0,
        anomalous=True,
        reason="r",
        votes={"lof": Vote(opinion="anomalous", score=1.0, suspects=(Suspect(score=0.5, reason="r", rank=1),))},
    ),
    records.IncidentRecord(
        id="i", job="j", kind="hang", severity="sev2", state="opened", revision=1, opened_at_s=1.0, updated_at_s=2.0,
        reason="r", evidence={"ranks": [1, 2]},
    ),
    records.ActionRecord(
        id="a", incident="i", job="j", kind="rebalance", outcome="started", at_s=1.0, why="w", plan={"m": [1, 2]}
    ),
    records.CommandRecord(id="c", job="j", at_s=1.0, kind="approve", by="me", action="a"),
    records.CommandRecord(id="c", job="j", at_s=1.0, kind="silence", by="me", until_s=2.0, node="n"),
    records.CollectivesRecord(
        job="j", node="n", rank=3, incarnation="7-1", time_s=1.0, monotonic_s=9.0, comms=("00ff",), groups=("dp",),
        sizes=(8,), places=(3,), node_counts=(1,), enqueued=(5,), started=(None,), finished=(None,), moved_s=(8.5,),
        of=(0,), functions=("AllReduce",), seqs=(4,), steps=(64,), call_bytes=(1 << 30,), device_s=(0.01,),
        enqueued_s=(8.25,), peers=(None,), lost=2,
    ),
    records.SamplingRecord(job="j", time_s=1.0, from_step=70, until_step=102, why="the job is slow"),
    records.DeadLetter(topic="t", partition=0, offset=5, reason="r", value=b"\x00\xff"),
    records.SnapshotRecord(
        job="j", number=3, part=0, parts=1, partition=2, positions={"t": 7}, floors={}, digest="d", value=b"\x00\xff",
    ),
    records.TaskRecord(
        id="j", job="j", at_s=1.0, maximum=4, throughput=(0.0, None, 2.5), by="settings",
        status=records.TaskStatus(nodes=("n1",), planned=2, assumed=(1,), waf={"now": 1.5}),
    ),
]  # fmt: skip


@pytest.mark.parametrize("record", EXAMPLES, ids=lambda record: type(record).__name__)
def test_what_goes_in_comes_out(record: Record) -> None:
    topic = topic_of(record)
    assert topic.decode(topic.encode(record)) == record
    assert json.loads(topic.encode(record))["type"], "every record says what it is"


def test_every_topic_has_an_example_and_its_own_type() -> None:
    assert {topic_of(record).name for record in EXAMPLES} == set(TOPICS)
    assert len({topic.record_type for topic in TOPICS.values()}) == len(TOPICS)


def test_unknown_fields_are_ignored_and_missing_optional_ones_filled_in() -> None:
    value = (
        b'{"type":"event","schema_version":99,"id":"e","job":"j","node":"n","time_s":1,"kind":"xid","new":{"x":[1]}}'
    )
    event = EVENTS.decode(value)
    assert (event.id, event.rank, event.fields, event.schema_version) == ("e", None, {}, 99)
    assert EXAMPLES[4].schema_version == SCHEMA_VERSION


def test_a_record_of_another_topic_is_refused_on_both_sides() -> None:
    with pytest.raises(RecordError, match=r"trainwarden\.metrics takes MetricsRecord, not EventRecord"):
        METRICS.encode(EXAMPLES[4])
    with pytest.raises(RecordError):
        METRICS.decode(EVENTS.encode(EXAMPLES[4]))


@pytest.mark.parametrize(
    "wrong",
    [
        {"time_s": "soon"},
        {"time_s": None},
        {"kind": "x" * 65},
        {"rank": -1},
        {"rank": 1_000_000},
        {"rank": 1.5},
        {"fields": {"a": [1]}},
        {"id": 5},
        {"type": "metrics"},
    ],
    ids=str,
)
def test_a_wrong_type_is_refused_with_the_place(wrong: dict[str, Any]) -> None:
    right = {"type": "event", "id": "e", "job": "j", "node": "n", "time_s": 1.0, "kind": "xid"}
    assert EVENTS.decode(json.dumps(right).encode()).id == "e"
    with pytest.raises(RecordError) as caught:
        EVENTS.decode(json.dumps(right | wrong).encode())
    assert next(iter(wrong)) in str(caught.value)


def test_nan_and_infinity_are_no_numbers_here() -> None:
    for text in (b"NaN", b"Infinity", b"-Infinity", b"1e999"):
        with pytest.raises(RecordError):
            EVENTS.decode(b'{"type":"event","id":"e","job":"j","node":"n","kind":"xid","time_s":' + text + b"}")


def test_too_large_is_refused_on_both_sides() -> None:
    event = EventRecord(id="e", job="j", node="n", time_s=1.0, kind="xid", message="x" * MAX_RECORD_BYTES)
    with pytest.raises(RecordError, match=f"more than {MAX_RECORD_BYTES}"):
        EVENTS.encode(event)
    with pytest.raises(RecordError, match=f"more than {MAX_RECORD_BYTES}"):
        EVENTS.decode(b" " * (MAX_RECORD_BYTES + 1))
    room = MAX_RECORD_BYTES - len(EVENTS.encode(EventRecord(id="e", job="j", node="n", time_s=1.0, kind="xid")))
    fits = EventRecord(id="e", job="j", node="n", time_s=1.0, kind="xid", message="x" * (room - len(',"message":""')))
    assert len(EVENTS.encode(fits)) == MAX_RECORD_BYTES
    assert EVENTS.decode(EVENTS.encode(fits)) == fits


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b'{"type":"event"',
        b'{"type":"event"}',
        b"\xff\xfe\x00",
        b'{"type":"event","id":"\xff"}',
        b'{"type":"event","id":"\\ud800"}',
        b"[" * 800_000,
        b'{"a":' * 160_000,
        b'{"type":"event","fields":' + b'{"a":' * 150_000,
        b'{"type":"event","new":' + b"[" * 400_000 + b"]" * 400_000 + b"}",
        b"1" * 900_000,
        b'{"type":"event","time_s":' + b"9" * 800_000 + b"}",
        b'{"type":"event","time_s":1' + b"0" * 400_000 + b"e-400000}",
    ],
    ids=lambda value: repr(value[:30]),
)
def test_truncated_huge_and_nested_input_is_a_record_error(value: bytes) -> None:
    for topic in TOPICS.values():
        with pytest.raises(RecordError):
            topic.decode(value)


@given(value=st.binary(max_size=200))
@examples(300)
def test_random_bytes_decode_or_are_a_record_error(value: bytes) -> None:
    decodes_or_is_refused(EVENTS, value)


@given(data=st.data())
@examples(300)
def test_damaged_records_decode_or_are_a_record_error(data: st.DataObject) -> None:
    record = data.draw(st.sampled_from(EXAMPLES))
    topic = topic_of(record)
    value = bytearray(topic.encode(record))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(value) - 1))
        value[place] = data.draw(st.integers(0, 255))
    decodes_or_is_refused(topic, bytes(value[: data.draw(st.integers(0, len(value)))]))


def decodes_or_is_refused(topic: Topic[Any], value: bytes) -> None:
    try:
        record = topic.decode(value)
    except RecordError:
        return
    assert isinstance(record, topic.record_type)


NUMBERS = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@given(
    devices=st.lists(st.text(), max_size=4).map(tuple),
    names=st.lists(st.text(), max_size=4).map(tuple),
    values=st.lists(st.lists(NUMBERS, max_size=4).map(tuple), max_size=4).map(tuple),
    time_s=st.floats(allow_nan=False, allow_infinity=False),
)
@examples(200)
def test_any_metrics_record_comes_back_bit_for_bit(devices: Any, names: Any, values: Any, time_s: float) -> None:
    record = MetricsRecord(job="j", node="n", time_s=time_s, devices=devices, names=names, values=values)
    assert METRICS.decode(METRICS.encode(record)) == record
