"""Format: a workbook of Excel or LibreOffice, its first sheet with rows."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Final

import pandas as pd

from trainwarden.errors import DataError
from trainwarden.formats.fabric.pair_matrix import PairMatrix, found_of_matrix, matrix_in
from trainwarden.formats.interpret import interpreted
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.table import Table

MAX_BYTES: Final = 256 * 1024 * 1024  # unpacked: as cells it takes some ten times as much memory
_MARKS: Final = ("[Content_Types]", "xl/")


class ExcelTable:
    """Rows below a header; other sheets are named."""

    name = "excel table"

    def sniff(self, name: str, head: str) -> float:
        """By the first bytes of the archive and a name in it, or the file's name."""
        if not head.startswith("PK\x03\x04"):
            return NEVER
        return SURE if name.endswith((".xlsx", ".xlsm")) or any(one in head[:3_000] for one in _MARKS) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        if find_spec("openpyxl") is None:  # pandas' reader
            raise DataError(f"{source.name} needs openpyxl: pip install 'trainwarden[excel]', or save the sheet as CSV")
        path = source.plain_path()
        try:
            with zipfile.ZipFile(path) as packed:
                size = sum(one.file_size for one in packed.infolist())
            if size > MAX_BYTES:
                raise DataError(f"{source.name} is larger than {MAX_BYTES:,} bytes unpacked: save the sheet as CSV")
            sheets = pd.read_excel(path, sheet_name=None, dtype=object, engine="openpyxl")
        except DataError:
            raise
        except Exception as error:  # whatever is damaged in XML within a zip: three libraries have errors of their own
            raise DataError(f"{source.name} is no sound workbook ({type(error).__name__}): save it again") from error
        with_rows = {name: frame for name, frame in sheets.items() if len(frame)}
        if not with_rows:
            raise DataError(f"{source.name} holds no row: give the sheet that has them")
        sheet, frame = next(iter(with_rows.items()))
        frame.columns = [str(one) for one in frame.columns]
        cells = frame.where(frame.notna(), None)
        matrix = _pairs(cells) if not columns else None
        table = Table(source.name, cells, columns, range(2, len(frame) + 2))
        found = interpreted(table) if matrix is None else found_of_matrix(source, matrix)
        if others := [name for name in with_rows if name != sheet]:
            found.notes.append(f"sheet {sheet!r} is read, and not {', '.join(map(repr, others[:8]))}")
        return found


def _pairs(frame: pd.DataFrame) -> PairMatrix | None:
    """The matrix of pairs that a sheet holds; None where rows are not named as columns are."""
    if frame.shape[1] != len(frame) + 1:
        return None
    rows = [frame.columns.tolist(), *frame.itertuples(index=False)]
    return matrix_in("\n".join("\t".join("-" if cell is None else str(cell) for cell in row) for row in rows))
