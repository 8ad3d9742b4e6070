"""What of one job is looked at: its iterations and metrics, without logs and calls, from a folder or an archive."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from trainwarden.errors import DataError
from trainwarden.recorded.folder import read_levels_of
from trainwarden.recorded.job import RecordedJob
from trainwarden.recorded.part import ReadLimit
from trainwarden.trainer_offline.archive.export import export_iterations
from trainwarden.trainer_offline.archive.export_metrics import export_part
from trainwarden.trainer_offline.archive.layout import job_folder
from trainwarden.trainer_offline.data.prepare import Source, sources

LEVELS: Final = ("metrics", "iterations")
MAX_CELLS: Final = 10_000_000  # values of metrics of one job, as for training: about 1 GB
MAX_NODES: Final = 256


def jobs_of(data: Path, job: str | None) -> list[Source]:
    """The jobs of `data`, or the one called `job`.

    Raises
    ------
    DataError
        If there is none.
    """
    found = [one for one in sources(data, LEVELS) if job is None or one.called == job]
    if not found:
        raise DataError(f"'{data}' holds no metrics and no iterations of a job '{job}'")
    return found


@contextmanager
def levels_of(source: Source) -> Iterator[RecordedJob]:
    """The job's iterations, and its metrics as far as they fit into memory (``metrics.share``).

    Raises
    ------
    DataError
        If it cannot be read.
    """
    limit = ReadLimit(MAX_CELLS, MAX_NODES)
    if not source.archived:
        yield read_levels_of(source.folder, source.called, limit)
        return
    with tempfile.TemporaryDirectory(prefix="trainwarden-suggest-") as temporary:
        folder = Path(temporary)
        if (source.folder / "metrics" / job_folder(source.called)).is_dir():
            export_part(source.folder, source.called, folder / "metrics.parquet", limit)
        export_iterations(source.folder, source.called, folder / "iterations.parquet")
        yield read_levels_of(folder, source.called, limit)
