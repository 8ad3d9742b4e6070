"""Random records, flushes, kills, redeliveries and compactions: every record is in the archive exactly once."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.archive_doubles import DAY_S, MAKERS, NOON_S, Killed, Log, Service, death_at, expected, present
from tests.examples import examples
from trainwarden.topics import EVENTS
from trainwarden.trainer_offline.archive import maintenance
from trainwarden.trainer_offline.archive.export import Steps

STEPS = st.one_of(
    st.tuples(
        st.just("put"),
        st.sampled_from([name for name in MAKERS if name != EVENTS.name]),
        st.integers(0, 1),
        st.sampled_from(["a", "b"]),
        st.integers(0, 1),
    ),
    st.tuples(st.just("round"), st.integers(1, 4)),
    st.tuples(st.just("flush")),
    st.tuples(st.just("rewind")),
    st.tuples(st.just("kill"), st.integers(1, 40), st.booleans()),
    st.tuples(st.just("compact")),
    st.tuples(st.just("kill compaction"), st.integers(1, 30), st.booleans()),
)


def apply(step: tuple[object, ...], log: Log, service: Service, root: Path, number: int) -> Service:
    match step:
        case ("put", str(topic), int(partition), str(job), int(day)):
            log.put(MAKERS[topic](number, job=job, time_s=NOON_S - day * DAY_S), partition=partition)
        case ("round", int(rounds)):
            service.rounds(rounds)
        case ("flush",):
            service.handler.finish()
        case ("rewind",) if service.loop._consumer is not None:
            service.loop._consumer._inner.rewind()  # type: ignore[attr-defined]
        case ("kill", int(at), bool(after)):
            with death_at(at, after=after), contextlib.suppress(Killed):
                service.rounds(2)
                service.handler.finish()
            service.die()
            return Service(log, root, flush_bytes=4_096 * 2)
        case ("compact",):
            maintenance.compact(root, {}, NOON_S)
        case ("kill compaction", int(at), bool(after)):
            with death_at(at, after=after), contextlib.suppress(Killed):
                maintenance.compact(root, {}, NOON_S)
    return service


@examples(40)
@given(st.lists(STEPS, max_size=30))
def test_every_record_is_there_exactly_once(steps: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        log, root = Log(), Path(folder) / "archive"
        service = Service(log, root, flush_bytes=4_096 * 2)
        for number, step in enumerate(steps):
            service = apply(step, log, service, root, number)
            assert max(present(root).values(), default=0) <= max(expected(log).values(), default=0)
            assert present(root) <= expected(log), f"after {step}"
        service.rounds(30)
        service.handler.finish()
        service.die()
        assert present(root) == expected(log)
        maintenance.compact(root, {}, NOON_S)
        assert present(root) == expected(log)


@given(st.lists(st.integers(0, 30)))
def test_steps_seen_equal_a_plain_set(steps: list[int]) -> None:
    ranges, plain = Steps(), set[int]()
    for step in steps:
        assert ranges.add(step) == (step not in plain)
        plain.add(step)
    assert ranges.ranges == sorted(ranges.ranges)
    assert sum(high - low + 1 for low, high in ranges.ranges) == len(plain)
