"""Answers of several nodes in one file, as pdsh, clush, dshbak, ansible or a loop over nodes leaves them.

Whatever format each node's answer has, it is read as if it lay in a file of its own.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar

from trainwarden.errors import DataError
from trainwarden.formats.protocol import Format, Found
from trainwarden.formats.source import HEAD_BYTES, Source
from trainwarden.recorded.job import LogTable, MetricTable

_NAME: Final = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}"
_LABEL: Final = re.compile(rf"({_NAME}):(?: |\t|$)")
_ANSIBLE: Final = re.compile(rf"({_NAME}) \| (?:[A-Z]{{2,16}}!? \| ){{1,2}}rc=-?[0-9]{{1,3}} >>\s{{0,4}}$")
_RULE: Final = re.compile(r"-{4,80}\s{0,4}$")
_FOLDED: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.,\[\]-]{0,400}$")
_HEADING: Final = re.compile(
    rf"(?:[=#*+-]{{2,40}}|==>) {{0,4}}(?:(?:on |host|node|hostname)[ :=]{{1,3}})?({_NAME})(?:[ :/]{{1,3}}({_NAME}))?"
    r" {0,4}(?:[=#*+-]{2,40}|<==|:)?\s{0,4}$"
)
_OF_PATH: Final = re.compile(r"==> ([^\n]{1,300}) <==\s{0,4}$")
_ADDRESS: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{1,3}){3}$")
# What ends in a number and is no node: devices, and words that count files.
_DEVICE: Final = re.compile(
    r"(?i)(?:(?:cuda|card|slot|nic|hca|port|lid|mlx[0-9]?|bnxt|eth|ib|ib[ps]|en[opsx]|rdma|roce[a-z]{0,2}|nvme|sd[a-z]?|dm|md|hfi"
    r"|rank|part|day|run|step|sample|try|test|snap|snapshot|log|out|iter|round|epoch|hour|min|sec|pass|scrape|rail|link|cpu|numa|psu|fan|job|t|v)"
    r"[-_]?[0-9][a-z0-9_]{0,12}|[gnh]pu[-_]?[0-9])$"
)
_CALLED: Final = re.compile(
    r"(?<![A-Za-z0-9])(ip(?:-[0-9]{1,3}){4}|[A-Za-z]{1,16}(?:-[A-Za-z]{1,12}){0,2}-?[0-9]{1,5}|[0-9]{1,3}(?:[.-][0-9]{1,3}){3})(?![A-Za-z0-9])"
)
Table = TypeVar("Table", MetricTable, LogTable)
# Programs that a file is named after, before the node.
_TOOL: Final = re.compile(
    r"(?i)^(?:(?:df|sar|sadf|iostat|vmstat|mpstat|ethtool|ibstat|perfquery|rdma|nvidia|smi|dmesg|kern|ss|chrony|ntp"
    r"|ipmi|sel|sdr|sensors?|diag|dcgm|dcgmi|health|nccl|lspci|smartctl|nvme|dmon|ip|link|logs?|metrics|tests|s|m)-)+"
)
# What hosts are called, where one file alone has a name and nothing shows that it tells nodes apart.
_HOST: Final = re.compile(r"(?i)(?:node|host|compute|dgx|hgx|trn|gpu)(?:-?[0-9]{2,5}|-[a-z0-9-]{1,20}[0-9])$|ip-")
_LOOKED_AT: Final = 200  # lines
_FEWEST: Final = 3
_LEAST_SHARE: Final = 0.9  # of the lines begin with a node where all are labelled
_MOST_NODES: Final = 4_096
_RANGE: Final = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?$")
_BRACKETS: Final = re.compile(r"([^\[\]]{0,100})\[([0-9,-]{1,200})\]([^\[\]]{0,100})$")


class Part(NamedTuple):
    """What a file holds of one node; `label` is what its heading says besides, as a port."""

    node: str
    label: str
    text: str


class PartSource(Source):
    """A part of a file, which formats read as a file of its own."""

    def __init__(self, whole: Source, part: Part) -> None:
        super().__init__(whole.path, whole.name)
        self._part = part
        self.cut = whole.cut

    @property
    def title(self) -> str:
        """What the heading says besides the node, else the file's name."""
        return self._part.label or super().title

    @property
    def head(self) -> str:
        """The part's first characters."""
        return self._part.text[:HEAD_BYTES]

    def data(self, most: int | None = None) -> bytes:
        """The part as bytes."""
        return self._part.text.encode()[:most]

    def text(self) -> str:
        """The part's text."""
        return self._part.text


def is_node(word: str) -> bool:
    """Whether a word may be the name of a node: it has a number, and is no device or count.

    Examples
    --------
    >>> [is_node(word) for word in ("gpu-07", "n3", "10.0.0.7", "eth0", "gpu3", "part2", "1790000000", "login")]
    [True, True, True, False, False, False, False, False]
    """
    if _ADDRESS.match(word):
        return True
    host = word.partition(".")[0]
    has_both = any(one.isalpha() for one in host) and any(one.isdigit() for one in host)
    return has_both and _DEVICE.match(host) is None and not host[0].isdigit()


def nodes_in(text: str) -> list[str]:
    """Words of a line or a path that may name nodes, each once.

    Examples
    --------
    >>> nodes_in("=== gpu01 <-> gpu02 ==="), nodes_in("all_reduce_gpu01-gpu02.out"), nodes_in("step 12")
    (['gpu01', 'gpu02'], ['gpu01', 'gpu02'], [])
    """
    return list(dict.fromkeys(word for word in _CALLED.findall(text) if is_node(word)))


def parts_of(text: str) -> list[Part]:
    """The parts of each node, in the order of the nodes; empty where the text is of one source.

    Examples
    --------
    >>> parts_of("a1: x 1\\na2: x 2\\na1: y 3\\n")
    [Part(node='a1', label='', text='x 1\\ny 3\\n'), Part(node='a2', label='', text='x 2\\n')]
    >>> parts_of("=== a1 ===\\nx\\n=== a2 eth0 ===\\ny\\n")
    [Part(node='a1', label='', text='x\\n'), Part(node='a2', label='eth0', text='y\\n')]
    >>> parts_of("-----\\na[1-2]\\n-----\\nx\\n")
    [Part(node='a1', label='', text='x\\n'), Part(node='a2', label='', text='x\\n')]
    >>> parts_of("plain\\ntext\\n")
    []
    """
    first = [line for line in text[:20_000].split("\n") if line.strip()][:_LOOKED_AT]
    if len(first) < _FEWEST:
        return []
    labelled = sum((match := _LABEL.match(line)) is not None and is_node(match[1]) for line in first)
    if labelled >= _LEAST_SHARE * len(first):
        return _joined(_labelled(text))
    is_folded = any(_RULE.match(line) and _unfolded(name.strip()) for line, name in itertools.pairwise(first[:_FEWEST]))
    if is_folded or any(map(_begins, first[:_FEWEST])):
        return _joined(_headed(text))
    return []


def _labelled(text: str) -> Iterator[tuple[str, str, str]]:
    for line in text.split("\n"):
        match = _LABEL.match(line)
        if match is not None and is_node(match[1]):
            yield match[1], "", line[match.end() :]


def _headed(text: str) -> Iterator[tuple[str, str, str]]:
    """Lines of each node below its heading."""
    lines = text.split("\n")
    owners: list[tuple[str, str]] = []
    place = 0
    while place < len(lines):
        line = lines[place]
        is_folded = place + 2 < len(lines) and _RULE.match(line) and _RULE.match(lines[place + 2])
        if is_folded and (nodes := _unfolded(lines[place + 1].strip())):
            owners = [(node, "") for node in nodes]
            place += 3
            continue
        if (begins := _begins(line)) is not None:
            owners = [begins]
        else:
            for node, label in owners:
                yield node, label, line
        place += 1


def _begins(line: str) -> tuple[str, str] | None:
    """The node, and what else a heading says; None if the line is none."""
    if (ansible := _ANSIBLE.match(line)) is not None:
        return ansible[1], ""
    if (path := _OF_PATH.match(line)) is not None:
        found = [word for word in _CALLED.findall(path[1]) if is_node(word)]
        return (found[0], path[1].rpartition("/")[2]) if found else None
    heading = _HEADING.match(line)
    if heading is None or not is_node(heading[1]) or _is_pair(line):
        return None
    return heading[1], heading[2] or ""


def _is_pair(line: str) -> bool:
    """Whether a heading names two nodes, whose text is of both.

    Examples
    --------
    >>> _is_pair("=== gpu01 gpu02 ==="), _is_pair("=== gpu01-gpu02 ==="), _is_pair("=== rack1-node03 ===")
    (True, True, False)
    """
    stems = [word.rstrip("0123456789") for word in nodes_in(line)]
    return len(stems) == 2 and stems[0] == stems[1]


def _unfolded(words: str) -> list[str]:
    """Nodes as dshbak and clush fold them.

    Examples
    --------
    >>> _unfolded("a[08-10,12],b1")
    ['a08', 'a09', 'a10', 'a12', 'b1']
    """
    if _FOLDED.match(words) is None:
        return []
    nodes: list[str] = []
    for word in re.split(r",(?![0-9,-]{1,200}\])", words):
        brackets = _BRACKETS.match(word)
        if brackets is None:
            nodes.append(word)
            continue
        for span in filter(None, map(_RANGE.match, brackets[2].split(","))):
            last = int(span[2] or span[1])
            width = len(span[1])
            numbers = range(int(span[1]), min(last, int(span[1]) + _MOST_NODES) + 1)
            nodes += [f"{brackets[1]}{number:0{width}d}{brackets[3]}" for number in numbers]
    return nodes if all(map(is_node, nodes)) else []


def _joined(lines: Iterable[tuple[str, str, str]]) -> list[Part]:
    """The lines of each node and label together."""
    kept: dict[tuple[str, str], list[str]] = {}
    for node, label, line in lines:
        kept.setdefault((node, label), []).append(line)
    return [Part(*owner, "\n".join(own).rstrip("\n") + "\n") for owner, own in kept.items() if any(own)]


def read_parts(reader: Format, source: Source, parts: Sequence[Part], said: Mapping[str, str]) -> Found:
    """What all parts hold, each of its node.

    Raises
    ------
    DataError
        If none of them can be read.
    """
    found, refused = Found(), dict[str, DataError]()
    nodes: dict[str, str] = {}
    for part in parts:
        try:
            own = reader.read(PartSource(source, part), said)
            nodes |= dict.fromkeys(own.addresses, part.node)
            _add(found, own, part.node)
        except DataError as error:
            refused[part.node] = error
    if len(refused) == len({part.node for part in parts}):
        raise next(iter(refused.values()))
    found.logs = [with_names(log, nodes) for log in found.logs]
    for node, why in refused.items():
        found.notes.append(f"{node}: {str(why).removeprefix(f'{source.name}: ')}")
    found.notes = list(dict.fromkeys(found.notes))
    found.notes.append(f"answers of {len({part.node for part in parts})} nodes in one file")
    return found


def _add(found: Found, own: Found, node: str) -> None:
    found.rows += own.rows
    found.metrics += [of_node(table, node) for table in own.metrics]
    found.logs += [of_node(table, node) for table in own.logs]
    found.clocks += [one._replace(node=one.node or node) for one in own.clocks]
    found.stacks += own.stacks
    found.pairs += own.pairs
    found.ras += own.ras
    found.events += own.events
    found.iterations += own.iterations
    found.collectives += own.collectives
    found.dumps |= own.dumps
    found.notes += own.notes


def of_node(table: Table, node: str) -> Table:
    """`table` with what names no node as of `node`."""
    return replace(table, nodes=tuple(one or node for one in table.nodes))


def with_names(log: LogTable, nodes: Mapping[str, str]) -> LogTable:
    """`log` with the names of nodes in place of their addresses."""
    return replace(log, nodes=tuple(nodes.get(one or "", one) for one in log.nodes)) if nodes else log


def nodes_named(names: Sequence[str]) -> list[str]:
    """The node of each file, by its path; empty where paths do not name several.

    Examples
    --------
    >>> nodes_named(["ethtool_gpu01_eth0.txt", "ethtool_gpu02_eth0.txt"]), nodes_named(["n1/eth0.txt", "n2/eth0.txt"])
    (['gpu01', 'gpu02'], ['n1', 'n2'])
    >>> nodes_named(["nvme0.txt", "nvme1.txt"]), nodes_named(["smi_1.csv", "smi_2.csv"])
    ([], [])
    >>> nodes_named(["ethtool_gpu-03_eth0.txt"]), nodes_named(["run7.csv"])
    (['gpu-03'], [])
    """
    called = [[_TOOL.sub("", word) for word in _CALLED.findall(name)] for name in names]
    words = [[word for word in own if is_node(word)] for own in called]
    if len(names) == 1:
        return [word for word in words[0] if _HOST.match(word)][:1]
    for place in range(min(map(len, words), default=0)):
        column = [own[place] for own in words]
        if len(set(column)) > 1:
            return column
    return []
