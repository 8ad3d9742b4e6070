"""Format: InfluxDB's annotated CSV, as its query and its Data Explorer export it."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Final

import pandas as pd

from trainwarden.errors import DataError
from trainwarden.formats import names
from trainwarden.formats.building import metric_table
from trainwarden.formats.exporters.exposition import long_frame
from trainwarden.formats.exporters.sample_lines import is_part_of_host, spelled, tag_labels
from trainwarden.formats.exporters.step_samples import StepSample, is_of_steps, with_steps
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.series import labelled
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import Times

Row = tuple[float, str | None, str | None, str, float]
_HEADER: Final = re.compile(r"(?m)^,result,table,[^\n]{0,4000}_time[^\n]{0,4000}_value")
_BLOCK: Final = re.compile(r"\n\s{0,8}\n(?=#|,result,)")


class AnnotatedCsv:
    """Blocks of tables, each with a header of its own behind lines that begin with ``#``."""

    name = "annotated csv"

    def sniff(self, name: str, head: str) -> float:
        """By the first columns."""
        del name
        return SURE if _HEADER.search(head[:20_000].replace("\r", "")) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        rows: list[Row] = []
        unknown: set[str] = set()
        steps: list[StepSample] = []
        count = 0
        for block in _BLOCK.split(source.text()):
            frame = _block(block, source.name)
            count += len(frame)
            tags = [one for one in frame.columns if not str(one).startswith(("_", "Unnamed")) and one != "table"]
            if "_measurement" not in frame.columns:
                frame["_measurement"] = ""
            for key, part in frame.groupby(["_field", "_measurement", *tags], dropna=False, sort=False):
                heading = names.metric_of(spelled(str(key[0]), str(key[1])))
                told_tags = dict(zip(tags, map(str, key[2:]), strict=True))
                times_s = Times(part["_time"].tolist()).values_s
                if heading is None and is_of_steps(str(key[0])):
                    labels = tag_labels(told_tags)
                    numbers = pd.to_numeric(part["_value"], errors="coerce")
                    steps += [StepSample(time_s, labels["Hostname"], labels.get("rank", ""), str(key[0]), value)
                              for time_s, value in zip(times_s.tolist(), numbers.tolist(), strict=True)]  # fmt: skip
                    continue
                if heading is None or is_part_of_host(told_tags):
                    unknown |= {str(key[0])} if heading is None else set()
                    continue
                told = labelled(heading, tag_labels(told_tags))
                values = pd.to_numeric(part["_value"], errors="coerce") * heading.factor
                rows += [(time_s, told.node, told.device, heading.name, value)
                         for time_s, value in zip(times_s.tolist(), values.tolist(), strict=True)]  # fmt: skip
        return with_steps(steps, lambda: _found(source, rows, unknown, count), bool(rows))


def _found(source: Source, rows: list[Row], unknown: set[str], count: int) -> Found:
    long = long_frame(rows)
    if long is None:
        raise DataError(f"{source.name}: no field is a metric of ours ({', '.join(sorted(unknown)[:5]) or 'none'})")
    found = Found(rows=count)
    if (table := metric_table(long)) is not None:
        found.metrics.append(table)
    if unknown:
        found.notes.append(f"fields that are not ours left out: {', '.join(sorted(unknown)[:5])}")
    return found


def _block(text: str, name: str) -> pd.DataFrame:
    body = "\n".join(line for line in text.split("\n") if line and not line.startswith("#"))
    try:
        frame = pd.read_csv(io.StringIO(body), dtype=str, on_bad_lines="skip")
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise DataError(f"{name} is not the annotated CSV that it looks like: {str(error)[:120]}") from error
    if not {"_time", "_value", "_field"} <= set(frame.columns):
        raise DataError(f"{name}: a table has no column _time, _value or _field (leave out pivot() of the query)")
    return frame
