"""Drawn collective calls and metrics: through the archive and out again they are what they were, by a plain twin."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.archive_doubles import NOON_S, archived
from tests.examples import examples
from trainwarden.recorded.folder import read_folder
from trainwarden.records import CollectivesRecord, MetricsRecord
from trainwarden.trainer_offline.archive import maintenance
from trainwarden.trainer_offline.archive.export import export
from trainwarden.trainer_offline.archive.reader import batches

WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), min_size=1, max_size=6)
WHOLE = st.integers(0, 1 << 40)
SECONDS = st.floats(0.0, 1e6)


@st.composite
def calls_of(draw: st.DrawFn) -> CollectivesRecord:
    """One rank's word on up to three communicators, of which it may tell anything or nothing."""
    comms = tuple(draw(st.lists(st.sampled_from(["c0", "c1", "c2", "c\n3", "ü"]), max_size=3, unique=True)))
    size = draw(st.integers(0, 6)) if comms else 0

    def lane(values: st.SearchStrategy[Any], length: int, *, optional: bool = False) -> tuple[Any, ...]:
        if optional and draw(st.booleans()):
            return ()
        return tuple(draw(st.lists(values, min_size=length, max_size=length)))

    return CollectivesRecord(
        job="j", node=draw(WORDS), rank=draw(st.integers(0, 5)), incarnation=draw(WORDS),
        time_s=NOON_S + draw(st.integers(0, 100)), comms=comms, places=lane(st.integers(0, 5), len(comms)),
        groups=lane(st.just("") | WORDS, len(comms), optional=True),
        sizes=lane(st.integers(2, 9), len(comms), optional=True),
        node_counts=lane(st.integers(1, 9), len(comms), optional=True),
        of=lane(st.integers(0, max(0, len(comms) - 1)), size), functions=lane(WORDS, size), seqs=lane(WHOLE, size),
        steps=lane(WHOLE, size), call_bytes=lane(WHOLE, size),
        device_s=lane(st.none() | SECONDS, size, optional=True),
        enqueued_s=lane(SECONDS, size, optional=True), peers=lane(st.none() | st.integers(0, 5), size, optional=True),
    )  # fmt: skip


def plain(record: CollectivesRecord) -> list[tuple[Any, ...]]:
    """The calls of a record, one by one."""
    rows = []
    for number, comm in enumerate(record.of):
        rows.append((
            record.time_s, record.node, record.rank, record.incarnation, record.comms[comm],
            (record.groups[comm] or None) if record.groups else None, record.sizes[comm] if record.sizes else None,
            record.places[comm], record.node_counts[comm] if record.node_counts else None, record.functions[number],
            record.seqs[number], record.steps[number], record.call_bytes[number],
            *(lane[number] if lane else None for lane in (record.device_s, record.enqueued_s, record.peers)),
        ))  # fmt: skip
    return rows


def rows_of(root: Path, topic: str) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for batch in batches(root, topic, "j"):
        columns = [batch.column(name).to_pylist() for name in batch.schema.names[:-3]]
        found.update(zip(*columns, strict=True))
    return found


@pytest.mark.thorough
@examples(60)
@given(st.lists(calls_of(), max_size=8))
def test_calls_come_out_as_they_went_in(records: list[CollectivesRecord]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        assert not archived(records, root).letters
        expected = Counter(row for record in records for row in plain(record))
        assert rows_of(root, "collectives") == expected
        maintenance.compact(root, {}, NOON_S)
        assert rows_of(root, "collectives") == expected


@st.composite
def jobs_of(draw: st.DrawFn) -> list[CollectivesRecord]:
    """Ranks 0 to 3 in two communicators, in one of which their places are turned; sampled steps, none of them whole."""
    ranks = range(draw(st.integers(2, 4)))
    records = []
    for step in range(draw(st.integers(1, 3))):
        for rank in ranks:
            size = draw(st.integers(0, 4))
            of = draw(st.lists(st.integers(0, 1), min_size=size, max_size=size))
            peers = [draw(st.none() | st.sampled_from(ranks)) for _ in range(size)]
            turned = [len(ranks) - 1 - rank, rank]
            records.append(CollectivesRecord(
                job="j", node=f"n{rank % 2}", rank=rank, incarnation="1", time_s=NOON_S + step, comms=("a", "b"),
                groups=("g", ""), sizes=(len(ranks),) * 2, places=tuple(turned), node_counts=(2, 2), of=tuple(of),
                functions=tuple("Send" if peer is not None else "AllReduce" for peer in peers),
                seqs=tuple(range(100 * step, 100 * step + size)), steps=(64 * step,) * size, call_bytes=(8192,) * size,
                device_s=tuple(draw(st.none() | SECONDS) for _ in range(size)),
                peers=tuple(
                    None if peer is None else (len(ranks) - 1 - peer if comm == 0 else peer)
                    for comm, peer in zip(of, peers, strict=True)
                ),
            ))  # fmt: skip
    return records


def seats_of(records: list[CollectivesRecord]) -> dict[tuple[int, int], int]:
    """Who has which place in which communicator, as far as ranks have told calls there."""
    return {(comm, record.places[comm]): record.rank for record in records for comm in record.of}


@pytest.mark.thorough
@examples(60)
@given(jobs_of())
def test_an_exported_job_holds_the_same_calls_with_peers_by_rank(records: list[CollectivesRecord]) -> None:
    if not any(record.seqs for record in records):
        return
    seats = seats_of(records)
    expected = Counter(
        (
            record.rank, record.node, record.comms[comm], record.groups[comm], record.sizes[comm],
            record.node_counts[comm], record.functions[number], record.seqs[number], record.steps[number],
            record.call_bytes[number], record.device_s[number],
            -1 if record.peers[number] is None else seats.get((comm, record.peers[number]), -1),
        )
        for record in records
        for number, comm in enumerate(record.of)
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        assert not archived(records, root / "archive").letters
        export(root / "archive", "j", root / "job")
        table = read_folder(root / "job").collectives
    assert table is not None
    found = Counter(
        (
            rank, table.hosts[rank], table.comms[comm], table.groups[comm], table.sizes[comm], table.nodes[comm],
            table.functions[function], *numbers, None if np.isnan(device_s) else device_s, peer,
        )
        for rank, comm, function, *numbers, device_s, peer in zip(
            *(getattr(table, name).tolist() for name in (
                "rank", "comm", "function", "seq", "step", "call_bytes", "device_s", "peer"
            )), strict=True,
        )
    )  # fmt: skip
    assert found == expected


MODELS = st.sampled_from(["", "NVIDIA H200", "NVIDIA A100, 80 GB"])


@pytest.mark.thorough
@examples(40)
@given(st.lists(st.tuples(st.integers(0, 3), st.lists(MODELS, min_size=2, max_size=2) | st.just([])), max_size=6))
def test_models_of_devices_come_out_as_they_went_in(sent: list[tuple[int, list[str]]]) -> None:
    records = [
        MetricsRecord(
            job="j", node=f"n{node}", time_s=NOON_S + number, devices=("", "gpu0"), names=("x",), values=((1.0, 2.0),),
            models=tuple(models),
        )
        for number, (node, models) in enumerate(sent)
    ]  # fmt: skip
    expected = Counter(
        (
            record.time_s,
            record.node,
            device,
            None,
            "x",
            value,
            (record.models[place] or None) if record.models else None,
        )
        for record in records
        for place, (device, value) in enumerate(zip(record.devices, record.values[0], strict=True))
    )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        assert not archived(records, root).letters
        assert rows_of(root, "metrics") == expected
