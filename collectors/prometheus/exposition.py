"""The text that exporters serve: only lines of metrics that the catalogue knows are looked at, in linear time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

_ESCAPES: Final = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}
_ESCAPED: Final = re.compile(r'\\[n"\\]')
MAX_LINE_CHARS: Final = 16_384

Sample = tuple[str, dict[str, str], float]


def samples_of(text: str, known: Mapping[str, str]) -> Iterator[Sample]:
    """Name, labels and value of every sample whose name is `known`; lines that are none are passed over.

    Examples
    --------
    >>> text = '# TYPE t gauge\\nt{gpu="0",m="a\\\\"b"} 61 1700000000000\\nother 1\\nt{gpu="1"} no\\nt 5'
    >>> list(samples_of(text, {"t": "it"}))
    [('t', {'gpu': '0', 'm': 'a"b'}, 61.0), ('t', {}, 5.0)]
    """
    for line in text.split("\n"):
        brace = line.find("{", 0, MAX_LINE_CHARS)
        name = line[: brace if brace >= 0 else line.find(" ", 0, MAX_LINE_CHARS)]
        if name not in known or len(line) > MAX_LINE_CHARS:
            continue
        labels, end = _labels(line, brace + 1) if brace >= 0 else ({}, len(name))
        words = line[end:].split(None, 1)
        try:
            yield name, labels, float(words[0])
        except (IndexError, ValueError):
            continue


def _labels(line: str, at: int) -> tuple[dict[str, str], int]:
    """The labels from `at` on, and where the value begins; the line's end if they do not end."""
    found: dict[str, str] = {}
    while True:
        while line[at : at + 1] in {",", " "}:
            at += 1
        if line[at : at + 1] == "}":
            return found, at + 1
        begin = line.find('="', at)
        end = _quote(line, begin + 2) if begin >= 0 else -1
        if end < 0:
            return found, len(line)
        value = line[begin + 2 : end]
        found[line[at:begin]] = _ESCAPED.sub(lambda one: _ESCAPES[one[0]], value) if "\\" in value else value
        at = end + 1


def _quote(line: str, at: int) -> int:
    """Where the value that begins at `at` ends; -1 if it does not."""
    end = line.find('"', at)
    while end > at and line[end - 1] == "\\":
        before = len(line[at:end]) - len(line[at:end].rstrip("\\"))
        if before % 2 == 0:
            break
        end = line.find('"', end + 1)
    return end
