"""One job from all that its files hold: tables joined, nodes named after files, and what only several tell together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from trainwarden.formats.building import joined_iterations, joined_metrics
from trainwarden.formats.collected import nodes_named, of_node, with_names
from trainwarden.formats.dumps.complete_dumps import complete_dumps
from trainwarden.formats.dumps.kernels_compared import kernels_compared
from trainwarden.formats.dumps.short_traces import short_traces
from trainwarden.formats.dumps.stacks import stacks_compared
from trainwarden.formats.fabric.node_pairs import pairs_compared
from trainwarden.formats.fabric.port_peers import port_peers
from trainwarden.formats.gpu.idle_together import idle_together
from trainwarden.formats.gpu.kept_errors import kept_errors
from trainwarden.formats.gpu.link_errors import link_errors
from trainwarden.formats.host.clock_metrics import clocks_off
from trainwarden.formats.host.clocks import clocks_compared
from trainwarden.formats.host.mounts import full_from_the_start
from trainwarden.formats.host.slow_disks import slow_disks, with_disk_times, without_disk_work
from trainwarden.formats.joining.gathered import Gathered
from trainwarden.formats.joining.named_ranks import losses_with_ranks, with_ranks
from trainwarden.formats.steps import DERIVED
from trainwarden.formats.text.data_times import data_waits
from trainwarden.formats.text.extreme_ranks import extreme_ranks
from trainwarden.formats.text.own_times import own_times
from trainwarden.formats.text.rank_times import rank_times
from trainwarden.formats.text.replicas import replicas_apart
from trainwarden.formats.text.step_times import steps_of, with_step_times
from trainwarden.formats.verdicts import is_verdict
from trainwarden.recorded.job import (
    IterationTable,
    LogTable,
    MetricTable,
    RecordedJob,
)


def joined(job: RecordedJob, gathered: Gathered) -> RecordedJob:
    """`job` with what other files hold."""
    gathered.iterations = with_ranks(gathered.iterations)
    gathered.logs = losses_with_ranks(gathered.logs, gathered.iterations)
    metrics = _apart([("", job.metrics)] if job.metrics is not None else [], gathered)
    collectives = job.collectives
    if collectives is None and gathered.collectives:
        collectives = gathered.collectives[0]
    dumps = {**gathered.dumps, **job.flight}
    broken = {rank: why for rank, why in {**gathered.broken, **job.broken}.items() if rank not in dumps}
    table = joined_metrics(metrics)
    iterations, logs = _steps_and_logs(job, gathered, table)
    if not logs and not iterations and table is None:
        passes, why = complete_dumps(dumps, broken)
        logs, gathered.notes = tuple(passes), [*gathered.notes, *([why] if why else [])]
    return replace(
        job,
        metrics=None if table is None else without_disk_work(table),
        iterations=joined_iterations(iterations),
        collectives=collectives,
        logs=logs,
        flight=dict(sorted(dumps.items())),
        broken=broken,
        ras=tuple(gathered.ras),
        events=tuple(sorted(gathered.events, key=lambda one: one.time_s)),
        files=tuple(gathered.files),
        unread=tuple(gathered.unread),
        notes=tuple(gathered.notes),
    )


def _steps_and_logs(
    job: RecordedJob, gathered: Gathered, table: MetricTable | None
) -> tuple[list[IterationTable], tuple[LogTable, ...]]:
    """Steps as they are written, else as the logs tell them; logs, with lines about what else is compared."""
    iterations = _written_first([*([job.iterations] if job.iterations is not None else []),
                                 *(table for _, table in gathered.iterations)])  # fmt: skip
    traced = short_traces(one for _, one in gathered.iterations)
    logs = (
        *job.logs,
        *_of_nodes(gathered),
        *_of_pairs_and_clocks(gathered),
        *kept_errors(table),
        *link_errors(table),
        *clocks_off(table),
        *slow_disks(with_disk_times(table)),
        *port_peers(table),
        *full_from_the_start(table),
        *traced,
    )
    logs = tuple(with_step_times(log) for log in logs) if not iterations else logs
    logs = (*logs, *rank_times(logs), *own_times(logs))
    logs = (*logs, *_of_stacks(gathered, logs), *_of_kernels(gathered, job.folder))
    told = steps_of(logs) if logs and not iterations else None
    if told is not None:
        iterations = [told]
        gathered.notes.append(f"{told.step.size} steps with their times are read from the log")
    logs = (*logs, *data_waits(logs, told), *extreme_ranks(logs, told), *replicas_apart(logs))
    if not iterations:  # steps say by themselves how long they last
        logs = (*logs, *idle_together(table))
    return iterations, logs


def _of_kernels(gathered: Gathered, place: Path) -> list[LogTable]:
    """Lines about ranks by their kernels; where these cannot be compared their files are not judged."""
    names = [name for name, _ in gathered.kernels]
    words = distinguishing(names) if len(names) > 1 else names
    told = [
        (one.rank if one.rank is not None else int(word) if word.isdecimal() else None, one)
        for word, (_, one) in zip(words, gathered.kernels, strict=True)
    ]
    logs, why = kernels_compared(told, place.stat().st_mtime)
    gathered.refuse(set(names), why)
    return logs


def _of_stacks(gathered: Gathered, others: Sequence[LogTable]) -> list[LogTable]:
    """Lines about processes that stand apart from the others; where none does their files are not judged.

    Where the other logs end before the stacks' files were written, the ranks stand since then.
    """
    logs, why = stacks_compared(gathered.stacks)
    gathered.refuse({name for name, _ in gathered.stacks}, why)
    if not logs:
        return logs
    said_s = [log.times_s[np.isfinite(log.times_s)] for log in others]
    newest_s = max((float(one.max()) for one in said_s if one.size), default=math.inf)
    if newest_s >= min(float(log.times_s.min()) for log in logs):
        gathered.notes.append("the time of stacks is their file's last change")
        return logs
    gathered.notes.append("the time of stacks is that of the newest line of the logs")
    return [replace(log, times_s=np.full(log.times_s.size, newest_s)) for log in logs]


def _of_pairs_and_clocks(gathered: Gathered) -> list[LogTable]:
    """Lines about nodes by their pairs, and by their clocks; where these cannot be compared files are not judged."""
    logs: list[LogTable] = []
    if gathered.pairs:
        logs, why = pairs_compared([one for _, one in gathered.pairs])
        gathered.refuse({name for name, _ in gathered.pairs}, why)
    if gathered.clocks:
        files = [name for name, _ in gathered.clocks]
        words = dict(zip(files, nodes_named(files), strict=False))
        told, why = clocks_compared([one._replace(node=one.node or words.get(name)) for name, one in gathered.clocks])
        gathered.refuse(set(files), why)
        logs += told
    return logs


def _written_first(tables: list[IterationTable]) -> list[IterationTable]:
    """Tables of written durations; where there is none the longest of those that follow from something else.

    A tracker keeps each metric in a file of its own, and each of them tells when the steps were.
    """
    written = [table for table in tables if DERIVED not in table.notes]
    return written or sorted(tables, key=lambda table: -table.step.size)[:1]


def _apart(first: list[tuple[str, MetricTable]], gathered: Gathered) -> list[MetricTable]:
    """Tables of metrics; those of the same devices that name no node are of one node each, by their paths."""
    named = [*first, *gathered.metrics]
    bare = [place for place, (_, table) in enumerate(named) if not any(table.nodes)]
    words = nodes_named([named[place][0] for place in bare])
    if not words and len(bare) > 1 and _overlap([named[place][1] for place in bare]):
        words = distinguishing([named[place][0] for place in bare])
    if not words:
        return [table for _, table in named]
    found = [table for _, table in named]
    for place, word in zip(bare, words, strict=True):
        found[place] = of_node(found[place], word)
    gathered.notes.append(f"nodes named after their files: {', '.join(words[:8])}")
    return found


def _of_nodes(gathered: Gathered) -> list[LogTable]:
    """Verdicts of reports that name no node: of several files each is of the node that its path names."""
    logs = gathered.logs
    bare = [place for place, log in enumerate(logs) if not any(log.nodes) and any(map(is_verdict, log.lines[:1]))]
    words = nodes_named([logs[place].file for place in bare])
    found = list(logs)
    for place, word in zip(bare, words, strict=False):
        found[place] = of_node(found[place], word)
    files = [name for name, _ in gathered.addresses]
    named = zip(nodes_named(files), gathered.addresses, strict=False)
    nodes = {address: word for word, (_, own) in named for address in own}
    return [with_names(log, nodes) for log in found]


def _overlap(tables: Sequence[MetricTable]) -> bool:
    """Whether two tables tell the same metric of the same device in the same time."""
    spans: dict[tuple[str | None, int | None, str], list[tuple[float, float]]] = {}
    for table in tables:
        span = (float(table.times_s[0]), float(table.times_s[-1]))
        for device, rank in zip(table.devices, table.ranks, strict=True):
            for name in table.names:
                spans.setdefault((device, rank, name), []).append(span)
    # One after the other they are files of one node.
    return any(before[1] >= after[0] for own in spans.values() for before, after in itertools.pairwise(sorted(own)))


def distinguishing(names: Sequence[str]) -> list[str]:
    """The part of each path that tells it from the others.

    Examples
    --------
    >>> distinguishing(["a1/gpu.csv", "a2/gpu.csv"]), distinguishing(["smi_n1.csv", "smi_n2.csv"])
    (['a1', 'a2'], ['n1', 'n2'])
    """
    parts = [name.split("/") for name in names]
    for place in range(max(len(part) for part in parts)):
        words = [part[place] if place < len(part) else "" for part in parts]
        if len(set(words)) == len(words):
            stems = [word.partition(".")[0] for word in words]
            pieces = [stem.replace("-", "_").split("_") for stem in stems]
            if len({len(piece) for piece in pieces}) == 1:
                for column in zip(*pieces, strict=True):
                    if len(set(column)) == len(column):
                        return list(column)
            return stems if len(set(stems)) == len(stems) else words
    return list(names)
