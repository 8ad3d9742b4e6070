"""Format: a table with a header whose columns name times, entities and metrics, or steps and durations."""

from __future__ import annotations

from collections.abc import Mapping

from trainwarden.formats import names
from trainwarden.formats.cells import decimal_comma
from trainwarden.formats.frames import header_cells, read_cells
from trainwarden.formats.interpret import interpreted
from trainwarden.formats.protocol import GENERIC, LIKELY, NEVER, Found, Misfit, Problem
from trainwarden.formats.series import series_of
from trainwarden.formats.source import Source
from trainwarden.formats.steps import is_loss
from trainwarden.formats.table import Table
from trainwarden.formats.tables.rank_tables import tells_ranks
from trainwarden.formats.vocabulary import SHORT


class PlainTable:
    """Comma, semicolon, tab or bar between cells; wide, long, or one row for each time and entity."""

    name = "table"

    def sniff(self, name: str, head: str) -> float:
        """Likely where the header names a time and something known."""
        if head.lstrip()[:1] in "{[":
            return NEVER
        header = header_cells(head)
        timed = any(names.known(cell, (*names.TIME, *names.STEP)) for cell in header)
        told = any(
            names.metric_of(cell) or names.duration_factor(cell) or names.is_rate(cell)
            or names.known(cell, names.VALUE) or series_of(cell).device or is_loss(cell)
            for cell in header
        )  # fmt: skip
        tabular = name.endswith((".csv", ".tsv", ".tab"))
        # Tables of GPUs without times are read in the order of their rows (rocm-smi --csv).
        gpus = any(names.known(cell, names.DEVICE) for cell in header) and sum(map(_of_gpu, header)) > 1
        ranks = tells_ranks(header, name)
        told = told or any(names.part_factor(cell) for cell in header)
        return LIKELY if (timed and told) or gpus or ranks else GENERIC if timed and tabular else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        text = source.text()
        cells = read_cells(text, source.name)
        sample = [str(cell) for cell in cells.frame.head(200).to_numpy().ravel().tolist()]
        comma = decimal_comma(sample, cells.delimiter)
        table = Table(source.name, cells.frame, columns, cells.lines, comma)
        if len(cells.ragged) > max(2, len(cells.frame) // 100):
            raise Misfit(source.name, [
                Problem(line, "", f"{count} cells, but the header has {len(cells.frame.columns)} columns",
                        "quote cells that hold the delimiter")
                for line, count in cells.ragged
            ])  # fmt: skip
        found = interpreted(table)
        if cells.repeated:
            found.notes.append(f"{cells.repeated} repeated headers left out")
        if cells.ragged:
            lines = ", ".join(str(line) for line, _ in cells.ragged[:5])
            found.notes.append(f"lines with another number of cells left out: {lines}")
        if comma:
            found.notes.append("decimal commas")
        return found


def _of_gpu(cell: str) -> bool:
    heading = names.metric_of(cell)
    return heading is not None and heading.name.startswith("gpu_") and names.plain(cell) not in SHORT
