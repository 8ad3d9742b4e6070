"""From the bytes of a log line to clean text and to the rank that its prefix names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec
import re2

from trainwarden.log_shapes import by_shape, unmasked
from trainwarden.records import MAX_LINE_CHARS

_RAISED: Final = "Traceback (most recent call last):"
_QUOTED: Final = re.compile(r'(?:[^"\\]|\\.){1,65536}')  # up to the quotation mark that ends it
_RANK_FIELD: Final = re.compile(r'"(?:global_|process_)?rank"\s{0,3}:\s{0,3}"?([0-9]{1,6})\b')
_TIME_FIELD: Final = re.compile(r'"(?:time|timestamp|@timestamp|ts|asctime)"\s{0,3}:\s{0,3}"([^"\\]{10,40})"')
_MOST_UNFOLDED: Final = 1_000
# Colours and cursor movements (ECMA-48 control sequences).
_TERMINAL_CODE = re2.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# What a container runtime writes around a line (Docker's json-file driver).
_WRAPPED = b'{"log":'
_MOST_PREFIXES: Final = 4
_CONTROLS = {code: "\ufffd" for code in (*range(1, 32), 127) if code != 9} | {0: None}


def unfolded(line: str) -> list[str]:
    r"""The lines of a traceback that a logger has written into one, with ``\n`` between them; else `line` alone.

    In a JSON record among other lines it ends with its quotation, and rank and time are those of the record.

    Examples
    --------
    >>> unfolded(r"09:00:01 ERROR Traceback (most recent call last):\n  File 'a.py', line 1\nKeyError: 'x'")[1:]
    ["  File 'a.py', line 1", "KeyError: 'x'"]
    >>> unfolded(r'{"rank": 3, "exc_info": "Traceback (most recent call last):\n  File \"a.py\"\nKeyError: 1"}')
    ['[rank3]: Traceback (most recent call last):', '[rank3]:   File "a.py"', '[rank3]: KeyError: 1']
    >>> unfolded("step 1")
    ['step 1']
    """
    at = line.find(_RAISED)
    if at < 0 or not line.startswith("\\n", at + len(_RAISED)):
        return [line]
    head, said, who = line[:at], line[at:], ""
    if head.endswith('"'):
        found = _QUOTED.match(said)
        said = said if found is None else found[0].replace('\\"', '"')
        rank, time = _RANK_FIELD.search(line), _TIME_FIELD.search(line)
        who = f"[rank{rank[1]}]: " if rank else ""
        head = f"{who}{time[1]} " if time else who
    elif (writer := writer_of(head)).rank is not None:
        who = f"[rank{writer.rank}]: "
    first, *rest = said.split("\\n")[:_MOST_UNFOLDED]
    return [head + first, *(who + one for one in rest)]


def clean(line: bytes) -> str:
    """Text of a line: what is left on the screen of a rewritten line, no terminal codes, junk as U+FFFD.

    Examples
    --------
    >>> clean(b" 10%|#   \\r 20%|##  \\r")
    ' 20%|##'
    >>> clean(b"\\x1b[31mERROR\\x1b[0m at \\xff")
    'ERROR at \ufffd'
    """
    if b"\r" in line:
        parts = [part for part in line.split(b"\r") if part.strip()]
        line = parts[-1] if parts else b""
    if line.startswith(_WRAPPED):
        line = _unwrapped(line)
    text = line[: 4 * MAX_LINE_CHARS].decode("utf-8", "replace")
    if not text.isprintable():
        if "\x1b" in text:
            text = _TERMINAL_CODE.sub("", text)
        text = text.translate(_CONTROLS)
    return text.rstrip()[:MAX_LINE_CHARS]


class _Wrapped(msgspec.Struct):
    log: str
    time: str = ""


_WRAPPED_LINE = msgspec.json.Decoder(_Wrapped)


def _unwrapped(line: bytes) -> bytes:
    """The line that a container runtime has wrapped as JSON, behind its time."""
    try:
        found = _WRAPPED_LINE.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return line
    return f"{found.time} {found.log}".strip().encode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class LinePrefix:
    """How a launcher marks whose line it is.

    Attributes
    ----------
    pattern : str
        Matched at the beginning of the rest of the line; groups ``rank`` (global), ``local``, ``node``, ``pid``. Every
        repeat is bounded and none stands inside another: linear time.
    sample : str
        A line that carries it.
    source : str
        Who writes it.
    labelled : bool
        It counts only in a file most of whose lines carry it: such words begin other lines too.
    """

    pattern: str
    sample: str
    source: str
    labelled: bool = False


PREFIXES: Final = (
    LinePrefix(r"\[rank(?P<rank>[0-9]{1,6})\]: ?", "[rank3]: Traceback", "torch 2.3 and newer"),
    LinePrefix(r"\[(?:default|worker|trainer)(?P<local>[0-9]{1,6})\]: ?", "[default1]:loss 2.1", "torchrun --tee"),
    LinePrefix(r"\[rank: (?P<rank>[0-9]{1,6})\] ", "[rank: 2] Seed set to 1", "Lightning"),
    LinePrefix(
        r"\[(?:[A-Za-z0-9@_.-]{0,80},)?(?P<rank>[0-9]{1,6})\]<std(?:out|err|diag)>: ?",
        "[1,2]<stderr>:KeyError: 'x'",
        "Open MPI --tag-output, PRRTE, horovodrun",
    ),
    LinePrefix(
        r"rank(?P<rank>[0-9]{1,6})\[(?P<pid>[0-9]{1,10})\]\[[A-Za-z0-9_-]{1,40}\]: ",
        "rank2[7002][MainThread]: INFO: composer.trainer: x",
        "Composer's logger",
    ),
    LinePrefix(
        r"\([A-Za-z_][A-Za-z0-9_.]{0,80}(?:\(rank=(?P<rank>[0-9]{1,6})\))?,? pid=(?P<pid>[0-9]{1,10})"
        r"(?:, ip=(?P<node>[0-9A-Fa-f:.]{2,45}))?\) ?",
        "(RayTrainWorker pid=7002, ip=10.0.0.7) KeyError: 'x'",
        "Ray",
    ),
    LinePrefix(
        r"\[pod/(?P<node>[a-z0-9.-]{1,253})/[a-z0-9.-]{1,253}\] ?",
        "[pod/job-worker-1/main] step 1",
        "kubectl logs --prefix",
    ),
    LinePrefix(
        r"[0-9a-f]{8} (?:\[rank=(?P<rank>[0-9]{1,6})\] )?\|\| ",
        "fa88a9df [rank=2] || KeyError: 'x'",
        "Determined, behind the stamp",
    ),
    LinePrefix(
        r"- (?:[A-Za-z_][A-Za-z0-9_.]{0,60} - )?(?:ERROR|CRITICAL) - ",
        "- train - ERROR - Traceback (most recent call last):",
        "Python's loggers with dashes, behind the stamp",
    ),
    LinePrefix(
        r"\[?(?:ERROR|CRITICAL)\]?[ :]{1,4}(?:[A-Za-z_][A-Za-z0-9_.]{0,60}: ?)?(?=Traceback \(most recent call)",
        "ERROR train: Traceback (most recent call last):",
        "loggers that write a traceback behind their level",
    ),
    LinePrefix(r"(?:stdout|stderr) [FP] ", "stderr F Traceback", "containerd and CRI-O, behind the stamp"),
    LinePrefix(r"(?P<node>[a-z0-9][a-z0-9_.-]{0,60}[-_][0-9]{1,5}) {1,20}\| ", "worker-1  | step 1", "docker compose"),
    LinePrefix(r" {0,6}(?P<rank>[0-9]{1,6}):(?: |$)", " 2: KeyError: 'x'", "srun --label", labelled=True),
    LinePrefix(r"\[(?P<rank>[0-9]{1,6})\] ", "[2] KeyError: 'x'", "Hydra -prepend-rank", labelled=True),
    LinePrefix(
        r"(?P<node>[A-Za-z][A-Za-z0-9.-]{0,50}[0-9](?:\.[A-Za-z0-9.-]{1,60})?|[0-9]{1,3}(?:\.[0-9]{1,3}){3}): ",
        "gpu-07: step 1",
        "pdsh, clush",
        labelled=True,
    ),
)
_EMBEDDED: Final = re.compile(r"\[rank[0-9]{1,6}\]:")
_ALWAYS: Final = tuple(re.compile(row.pattern) for row in PREFIXES if not row.labelled)
# One look tells of most lines that they carry none of them: the same patterns without names of groups.
_ANY: Final = re.compile("|".join(re.sub(r"\(\?P<\w+>", "(?:", row.pattern) for row in PREFIXES if not row.labelled))
_LABELS: Final = tuple(re.compile(row.pattern) for row in PREFIXES if row.labelled)
_RANK_LABELS: Final = tuple(label for label in _LABELS if "rank" in label.groupindex)
_LABEL_CHARS: Final = frozenset(" [0123456789")
_FIRST_CHARS: Final = frozenset("[(r-")
_FIRST_WORDS: Final = frozenset({"std", "ERR", "CRI"})
_LABEL_LINES: Final = 200
_FEWEST_LABELS: Final = 4  # unless the file begins with one
_MOST_BEFORE: Final = 400  # characters


@dataclass(slots=True)
class Writer:
    """Whom the prefixes of a line name, and the line behind them."""

    rest: str
    rank: int | None = None
    local: int | None = None
    node: str | None = None
    pid: int | None = None

    @property
    def named(self) -> bool:
        """Whether a prefix names a rank."""
        return self.rank is not None or self.local is not None


def writer_of(text: str, label: re.Pattern[str] | None = None) -> Writer:
    """Who wrote `text`, by its prefixes; the innermost is nearest to the writer.

    Parameters
    ----------
    label : pattern, optional
        What `label_of` has found for the file.

    Examples
    --------
    >>> writer_of("[rank3]: Traceback").rank, writer_of("[1,2]<stderr>:KeyError: 'x'").rest
    (3, "KeyError: 'x'")
    >>> writer_of("(RayTrainWorker pid=70, ip=10.0.0.7) x").node, writer_of("[pod/w-1/main] x").node
    ('10.0.0.7', 'w-1')
    >>> writer_of("[info] x")
    Writer(rest='[info] x', rank=None, local=None, node=None, pid=None)
    """
    prefixes = _prefixes(text, label)
    if not prefixes.end:
        return Writer(text)
    found = Writer(text[prefixes.end :])
    for name, start, end in prefixes.groups:
        setattr(found, name, text[start:end] if name == "node" else int(text[start:end]))
    return found


class _Prefixes(NamedTuple):
    """Where the prefixes of a line end, and the groups in them: name, start, end; the innermost last."""

    end: int
    groups: tuple[tuple[str, int, int], ...] = ()

    @property
    def named(self) -> bool:
        """Whether one names a rank."""
        return any(name in {"rank", "local"} for name, _, _ in self.groups)


_NONE: Final = _Prefixes(0)


def _find_prefixes(text: str, label: re.Pattern[str] | None) -> _Prefixes:
    """The prefixes of `text`; no digit means anything for where they are."""
    groups: list[tuple[str, int, int]] = []
    end = 0
    for _ in range(_MOST_PREFIXES):
        match = _prefix_of(text[end:], label)
        if match is None or not match.end():
            break
        said = [name for name, value in match.groupdict().items() if value]
        groups += [(name, end + match.start(name), end + match.end(name)) for name in said]
        end += match.end()
    return _Prefixes(end, tuple(groups)) if end else _NONE


def _finder(label: re.Pattern[str] | None) -> Callable[[str], _Prefixes]:
    return by_shape(lambda shape: _find_prefixes(unmasked(shape), label))


_BY_LABEL: Final = {label: _finder(label) for label in (None, *_LABELS)}


def _prefixes(text: str, label: re.Pattern[str] | None) -> _Prefixes:
    if label is None and text[:1] not in _FIRST_CHARS and "| " not in text[:80] and text[:3] not in _FIRST_WORDS:
        return _NONE
    return _BY_LABEL[label](text)


def embedded(text: str) -> Writer | None:
    """Who wrote a line that begins as nothing known does, where torch's prefix of a rank stands further on.

    It names a rank behind a progress bar, the number of the line or a name that some tool has put there as well.

    Examples
    --------
    >>> embedded(" 40%|##  | 2/5 [00:01<00:01]job.n4 [stderr] [rank3]: KeyError: 'x'")
    Writer(rest="KeyError: 'x'", rank=3, local=None, node=None, pid=None)
    >>> embedded("see [rank3] above") is None
    True
    """
    match = _EMBEDDED.search(text, 0, _MOST_BEFORE) if "[rank" in text else None
    return writer_of(text[match.start() :]) if match else None


def behind_prefixes(text: str, rank: int | None) -> str:
    """The line behind its writer's prefixes, where it is known of which rank it is: of one line no label shows.

    Examples
    --------
    >>> behind_prefixes("[1,2]<stderr>:KeyError: 'x'", 2), behind_prefixes("2: KeyError: 'x'", 2)
    ("KeyError: 'x'", "KeyError: 'x'")
    >>> behind_prefixes("2: conv", None)
    '2: conv'
    """
    prefixes = _prefixes(text, None)
    rest = text[prefixes.end :]
    if rank is None or prefixes.named:
        return rest
    if (inner := embedded(rest)) is not None and inner.rank == rank:
        return inner.rest
    if rest[:1] not in _LABEL_CHARS:
        return rest
    found_labels = (match for label in _RANK_LABELS if (match := label.match(rest)))
    return next((rest[match.end() :] for match in found_labels if int(match["rank"]) == rank), rest)


def _prefix_of(text: str, label: re.Pattern[str] | None) -> re.Match[str] | None:
    if label is not None and (match := label.match(text)):
        return match
    if text[:1] not in _FIRST_CHARS and "| " not in text[:80] and text[:3] not in _FIRST_WORDS:
        return None
    if _ANY.match(text) is None:
        return None
    return next((match for pattern in _ALWAYS if (match := pattern.match(text))), None)


def label_of(lines: Sequence[str]) -> re.Pattern[str] | None:
    """The label that most lines of a file begin with: of the 200 that begin with the first labelled one.

    A few such lines among others are no labels but lists (layers of a model, interfaces of a host).

    Examples
    --------
    >>> label_of(["0: step 1", "1: step 1", "0: step 2"]).match("1: x")["rank"]
    '1'
    >>> label_of(["layers:", "0: conv", "step 1", "step 2"]) is None
    True
    """
    firsts = _first_labels(lines)
    for label in _LABELS:
        first = firsts.get(label)
        if first is None:
            continue
        looked_at = lines[first : first + _LABEL_LINES]
        found = [match for line in looked_at if (match := label.match(line))]
        if 2 * len(found) > len(looked_at) and (first == 0 or len(found) >= _FEWEST_LABELS) and not _counts(found):
            return label
    return None


def _first_labels(lines: Iterable[str]) -> dict[re.Pattern[str], int]:
    """Where each label is first seen."""
    firsts: dict[re.Pattern[str], int] = {}
    for place, line in enumerate(lines):
        for label in _labels_at(line):
            firsts.setdefault(label, place)
        if len(firsts) == len(_LABELS):
            break
    return firsts


_labels_at: Final = by_shape(lambda shape: tuple(label for label in _LABELS if label.match(unmasked(shape))))


def _counts(found: Sequence[re.Match[str]]) -> bool:
    """Whether labels are numbers of lines: they rise by one, from another number than 0, or torch names other ranks."""
    if "rank" not in found[0].re.groupindex:
        return False
    numbers = [int(match["rank"]) for match in found]
    rising = list(range(numbers[0], numbers[0] + len(numbers)))
    if len(numbers) >= _FEWEST_LABELS and numbers[0] > 0 and numbers == rising:
        return True
    inner = [writer_of(match.string[match.end() :]).rank for match in found]
    others = [number != rank for number, rank in zip(numbers, inner, strict=True) if rank is not None]
    return 2 * sum(others) > len(others)
