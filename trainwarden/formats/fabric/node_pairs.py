"""Bandwidths between pairs of nodes: the node all of whose pairs are slow, and single slow links.

There is no baseline of a bandwidth but the other pairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from trainwarden.formats.collected import nodes_in
from trainwarden.formats.verdicts import Verdict, verdict_tables
from trainwarden.recorded.job import LogTable

SLOW: Final = 0.8  # of the pairs' upper quartile, which half of the nodes being bad does not move
LEAST_PAIRS: Final = 3
MOST_SHARE: Final = 0.34  # of the nodes: more of them are of another kind
_STARTED: Final = re.compile(r"# nThread [0-9]")
_ON: Final = re.compile(r"#\s{1,8}Rank\s{1,8}[0-9]{1,6} .{0,60}? on\s{1,40}([A-Za-z0-9][A-Za-z0-9_.-]{0,62}) device")
_AVERAGE: Final = re.compile(r"# Avg bus bandwidth\s{1,8}: ([0-9.]{1,12})")
_ROW: Final = re.compile(r"\s{0,40}[0-9]{1,16}\s{1,24}[0-9]{1,16}\s{1,24}[a-z]")
_TAG: Final = re.compile(r"^\[[0-9]{1,3},[0-9]{1,6}\]<std(?:out|err)>: ?")
_MOST_HEADING: Final = 200  # characters
EVEN: Final = (
    "nccl-tests of fewer than 3 pairs of nodes, or of pairs that overlap too little: their bandwidths have no baseline"
)


class PairRun(NamedTuple):
    """One run between two nodes.

    Attributes
    ----------
    nodes : two str
    size : int
        Of its largest message, bytes.
    busbw, average : float
        Bus bandwidth of that message, and the mean over all sizes, GB/s.
    time_s : float
        Of the file.
    """

    nodes: tuple[str, str]
    size: int
    busbw: float
    average: float
    time_s: float


def runs_of(text: str, name: str, time_s: float) -> Iterator[PairRun]:
    """Runs of a file called `name` whose two nodes its ranks, the line above or the name tell."""
    above, hosts = nodes_in(name), dict[str, None]()
    size, busbw = 0, float("nan")
    for line in (_TAG.sub("", one) for one in text.split("\n")):
        if (on := _ON.match(line)) is not None:
            hosts[on[1]] = None
        elif _STARTED.search(line) is not None:
            hosts, size, busbw = {}, 0, float("nan")
        elif (average := _AVERAGE.match(line)) is not None:
            pair = list(hosts) if len(hosts) > 1 else above
            if len(pair) == 2 and size:
                yield PairRun((min(pair), max(pair)), size, busbw, float(average[1]), time_s)
        elif _ROW.match(line) is not None:
            cells = line.split()
            if len(cells) >= 12 and int(cells[0]) >= size:
                size, busbw = int(cells[0]), 0.5 * (_number(cells[-6]) + _number(cells[-2]))
        elif len(line) < _MOST_HEADING and len(named := nodes_in(line)) == 2:
            above = named


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


def pairs_compared(runs: Sequence[PairRun]) -> tuple[list[LogTable], str]:
    """Lines about nodes and links; why the runs are not judged, empty where they are.

    Examples
    --------
    >>> names = [("a1", "a2"), ("a1", "a3"), ("a2", "a3"), ("a1", "a4"), ("a2", "a4"), ("a3", "a4")]
    >>> runs = [PairRun(pair, 8, 20.0 if "a4" in pair else 45.0, 30.0, 0.0) for pair in names]
    >>> [line for log in pairs_compared(runs)[0] for node, line in zip(log.nodes, log.lines) if node == "a4"]
    ['health check: collectives link failed: all 3 of its pairs are slow: 20.0 GB/s, where the others have 45.0']
    """
    largest = max((run.size for run in runs), default=0)
    speeds: dict[tuple[str, str], list[float]] = {}
    for run in runs:
        if run.size == largest and np.isfinite(run.busbw):
            speeds.setdefault(run.nodes, []).append(run.busbw)
    means = {pair: float(np.median(own)) for pair, own in speeds.items()}
    if len(means) < LEAST_PAIRS:
        return [], EVEN
    usual = float(np.quantile(list(means.values()), 0.75, method="higher"))
    slow = {pair for pair, speed in means.items() if speed < SLOW * usual}
    nodes = sorted({node for pair in means for node in pair})
    bad = _bad_nodes(means, slow)
    links = {pair for pair in slow if not set(pair) & bad}
    if not slow and SLOW * max(means.values()) > usual:
        return [], f"the fastest of {len(means)} pairs is far faster than the others: no node or link can be named"
    if len(bad) > max(1.0, MOST_SHARE * len(nodes)) or len(links) > max(1.0, MOST_SHARE * len(means)):
        return [], f"{len(slow)} of {len(means)} pairs are slow, too many for a node or a link to be named"
    verdicts = [*_of_nodes(means, bad, usual), *_of_links(means, links, usual)]
    failed = {one.node for one in verdicts}
    verdicts += [Verdict("collectives", "", None, node) for node in nodes if node not in failed]
    time_s = max(run.time_s for run in runs)
    return verdict_tables("pairs", verdicts, time_s), ""


def _bad_nodes(means: Mapping[tuple[str, str], float], slow: set[tuple[str, str]]) -> set[str]:
    """Nodes of which all pairs are slow, two at least, but for those that a worse node explains."""
    bad: set[str] = set()
    while True:
        left = [pair for pair in means if not set(pair) & bad]
        counts = {node: sum(node in pair for pair in left) for pair in left for node in pair}
        lost = {node: sum(node in pair for pair in left if pair in slow) for node in counts}
        whole = [node for node, count in counts.items() if count >= 2 and lost[node] == count]
        if not whole:
            return bad
        bad.add(max(whole, key=lambda node: (lost[node], -_mean(means, node))))


def _mean(means: Mapping[tuple[str, str], float], node: str) -> float:
    return float(np.mean([speed for pair, speed in means.items() if node in pair]))


def _of_nodes(means: Mapping[tuple[str, str], float], bad: set[str], usual: float) -> Iterator[Verdict]:
    for node in sorted(bad):
        count = sum(node in pair for pair in means)
        words = f"all {count} of its pairs are slow: {_mean(means, node):.1f} GB/s, where the others have {usual:.1f}"
        yield Verdict("collectives", "link", words, node)


def _of_links(means: Mapping[tuple[str, str], float], links: set[tuple[str, str]], usual: float) -> Iterator[Verdict]:
    """A line of each end, as either may be at fault."""
    for first, second in sorted(links):
        speed = means[first, second]
        for node, other in ((first, second), (second, first)):
            words = f"to {other} {speed:.1f} GB/s, where other pairs have {usual:.1f}"
            yield Verdict("collectives", "link", words, node)
