"""Format: the text of `amd-smi metric`: a part for each GPU, its metrics nested by indentation."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from trainwarden.formats.gpu.amd_json import found_of_answers
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source

_BEGINS: Final = re.compile(r"\s{0,40}GPU: [0-9]{1,3}\s{0,4}\n {4}[A-Z][A-Z_0-9]{1,40}:")
_LINE: Final = re.compile(r"( {0,40})([A-Za-z][A-Za-z_0-9]{0,60}):(?: (.{0,200}))?$")
_DEPTH: Final = 4  # blanks


class AmdText:
    """One answer or several of one GPU or more, as people copy them from a terminal."""

    name = "amd-smi text"

    def sniff(self, name: str, head: str) -> float:
        """By the first GPU and the first of its parts."""
        del name
        return SURE if _BEGINS.match(head.replace("\r\n", "\n")) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        return found_of_answers(source, list(_answers(source.text())))


def _answers(text: str) -> Iterator[list[dict[str, Any]]]:
    """Answers as the program's JSON has them; one begins where a GPU comes again."""
    gpus: dict[str, dict[str, Any]] = {}
    parts: list[dict[str, Any]] = []
    for whole in text.split("\n"):
        match = _LINE.match(whole.rstrip())
        if match is None:
            continue
        depth, key, value = len(match[1]) // _DEPTH, match[2].lower(), match[3]
        if depth == 0 and key == "gpu" and value:
            if value in gpus:
                yield list(gpus.values())
                gpus = {}
            parts = [gpus.setdefault(value, {"gpu": value})]
        elif parts:
            del parts[max(1, depth) :]
            inner: Any = value if value else {}
            parts[-1][key] = inner
            if isinstance(inner, dict):
                parts.append(inner)
    if gpus:
        yield list(gpus.values())
