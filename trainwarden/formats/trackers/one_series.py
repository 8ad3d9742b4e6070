"""Format: one series a file: TensorBoard's downloads (CSV, JSON) and MLflow's files of metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
import pandas as pd

from trainwarden.errors import DataError
from trainwarden.formats.interpret import interpreted
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.table import Table, tag_of

_WALL: Final = re.compile(r'"?wall[ _]time"?\s{0,2},\s{0,2}"?step"?\s{0,2},\s{0,2}"?value"?', re.IGNORECASE)
_TRIPLES: Final = re.compile(
    r"\s{0,8}\[\s{0,8}\[\s{0,8}1[0-9]{9}(?:\.[0-9]{0,9})?,\s{0,4}[0-9]{1,12},\s{0,4}[-+0-9.eEnaNI\"]"
)
_MLFLOW: Final = re.compile(r"1[0-9]{12} [-+0-9.eEnaNif]{1,30}(?: [0-9]{1,12})?$")


class OneSeries:
    """Time, step and value; the file's name is that of the series."""

    name = "one series"

    def sniff(self, name: str, head: str) -> float:
        """By the header of TensorBoard, by triples of numbers, or by MLflow's lines."""
        del name
        first = head.split("\n", 1)[0].strip()
        if _WALL.match(first) or _TRIPLES.match(head):
            return SURE
        return SURE if _MLFLOW.match(first) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        text = source.text()
        if text.lstrip().startswith("["):
            try:
                triples = msgspec.json.decode(text, type=list[tuple[float, float, float | str]], strict=False)
            except (msgspec.DecodeError, RecursionError) as error:
                raise DataError(f"{source.name} is no list of [time, step, value]: {error}") from error
            rows: list[tuple[object, object, object]] = [(wall, step, value) for wall, step, value in triples]
        else:
            cells = [re.split(r"[, ]", line.replace('"', "")) for line in text.split("\n") if line.strip()]
            if cells and not cells[0][0][:1].isdigit():
                cells = cells[1:]
                rows = [(one[0], one[1], one[2]) for one in cells if len(one) >= 3]
            else:
                rows = [(one[0], one[2] if len(one) > 2 else "0", one[1]) for one in cells if len(one) >= 2]
        if not rows:
            raise DataError(f"{source.name} holds no samples")
        tag = tag_of(source.name)
        frame = pd.DataFrame(rows, columns=["timestamp", "step", tag]).astype(object)
        found = interpreted(Table(source.name, frame, columns, np.arange(1, len(frame) + 1).tolist()))
        return found
