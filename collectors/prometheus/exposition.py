"""The text that exporters serve: only lines of metrics that the catalogue knows are looked at, in linear time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Final

_ESCAPES: Final = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}
_ESCAPED: Final = re.compile(r'\\[n"\\]')
_LABEL: Final = re.compile(r'[, ]*+([^=", }]*+)="([^"\\]*+(?:\\.[^"\\]*+)*+)"')  # never goes back: linear
_END: Final = re.compile(r"[, ]*+\}")
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
    while (one := _LABEL.match(line, at)) is not None:
        name, value = one.groups()
        found[name] = _ESCAPED.sub(lambda escape: _ESCAPES[escape[0]], value) if "\\" in value else value
        at = one.end()
    end = _END.match(line, at)
    return found, len(line) if end is None else end.end()
