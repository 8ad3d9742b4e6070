"""The shared data sets as recorded folders, a batch for each kind: what `detect --data` reads, by its contract.

Run: ``python -m tests.recorded_sets DIR`` writes them all; ``--quick`` a tenth of each.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from tests.benchmarks.detection.change_series import recorded
from tests.benchmarks.detection.change_synthetic import residuals, synthetic
from tests.benchmarks.detection.mixed_jobs import mixed_jobs
from tests.benchmarks.detection.peer_cases import cases
from tests.benchmarks.detection.servers import listed, load
from tests.places import DATA, shared_data
from trainwarden.recorded.job import IterationTable, LogTable, MetricTable

Tables = dict[str, Any]
"""Files of one folder by name: a DataFrame, text, or bytes."""
SYNTHETIC_RUNS: Final = 8  # of every class of synthetic series
PEER_CASES: Final = 60


def steps(data: Path) -> Iterator[tuple[str, Tables]]:
    """Iteration times of whole jobs: recorded runs and synthetic ones."""
    runs = recorded(data)
    for run in [*runs, *synthetic("report", SYNTHETIC_RUNS, residuals(runs))]:
        name = f"{run.dataset}-{run.name}".replace("/", "_")
        yield name, {"iterations.csv": pd.DataFrame({"step": run.steps, "duration_s": run.durations})}


def peers(data: Path) -> Iterator[tuple[str, Tables]]:
    """Iteration times by rank."""
    for case in cases("report", data, PEER_CASES):
        rows, ranks = case.duration_s.shape
        table = {"step": np.repeat(case.steps, ranks), "rank": np.tile(case.ids, rows)}
        for name in ("duration_s", "compute_s", "wait_s"):
            values = getattr(case, name)
            table |= {} if values is None else {name: values.ravel()}
        parallel = ", ".join(f"{word} = {value}" for word, value in (case.parallel or {}).items())
        frame = pd.DataFrame(table).dropna(subset=["duration_s"])
        files: Tables = {"iterations.csv": frame}
        yield case.name.replace("/", "_"), files | ({"job.toml": f"parallel = {{{parallel}}}\n"} if parallel else {})


def servers(data: Path) -> Iterator[tuple[str, Tables]]:
    """Metrics of single servers, the training part first."""
    del data
    for dataset in ("smd", "asd", "nab"):
        for name, _ in listed(dataset):
            case = load(dataset, name)
            values = np.concatenate([case.train, case.test])
            frame = pd.DataFrame(values, columns=list(case.names))
            frame.insert(0, "time_s", case.every_s * np.arange(len(values)))
            until = f"normal_until_s = {case.every_s * len(case.train)}\n"
            yield f"{dataset}-{name}".replace("/", "_"), {"metrics.csv": frame, "job.toml": until}


def mixed(data: Path) -> Iterator[tuple[str, Tables]]:
    """Metrics, steps and log lines on one clock."""
    del data
    for one in mixed_jobs():
        job, files = one.job, {}
        if job.metrics is not None:
            files["metrics.csv"] = _metrics(job.metrics)
        if job.iterations is not None:
            files["iterations.csv"] = _iterations(job.iterations)
        for log in job.logs:
            files["logs.jsonl"] = _lines(log)
        yield job.name, files | {"job.toml": f"normal_until_s = {job.normal_until_s}\n"}


def logs(data: Path) -> Iterator[tuple[str, Tables]]:
    """Logs as they were written: whole jobs, and excerpts of failures."""
    for path in [*data.glob("smc_train_log/*.gz"), *data.glob("bigscience_train_logs/*.gz")]:
        yield path.name.split(".")[0], {"logs.txt.gz": path.read_bytes()}
    for path in data.glob("cluster_log_excerpts/*.log"):
        yield path.stem, {"logs.txt": path.read_text(encoding="utf-8", errors="replace")}


def flight_recorders(data: Path) -> Iterator[tuple[str, Tables]]:
    """Hangs of sixteen ranks, from their flight recorders alone."""
    del data
    for path in (DATA / "flight_recorder").glob("*.json.gz"):
        dumps = json.loads(gzip.decompress(path.read_bytes()))
        yield path.name.split(".")[0], {f"flight_recorder/rank_{rank}.json": json.dumps(dumps[rank]) for rank in dumps}


SETS: Final[dict[str, Callable[[Path], Iterator[tuple[str, Tables]]]]] = {
    "steps": steps, "peers": peers, "servers": servers, "mixed": mixed, "logs": logs,
    "flight_recorders": flight_recorders,
}  # fmt: skip


def write(target: Path, quick: bool = False) -> list[Path]:
    """Write every set below `target`; returns the batches.

    Raises
    ------
    FileNotFoundError
        If there is no shared data on this machine.
    """
    data = shared_data()
    if data is None:
        raise FileNotFoundError("there is no shared data on this machine: set TRAINWARDEN_SHARED")
    batches = []
    for name, jobs in SETS.items():
        batches.append(target / name)
        for place, (job, files) in enumerate(jobs(data)):
            if quick and place % 10:
                continue
            for file, content in files.items():
                path = target / name / job / file
                path.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, pd.DataFrame):
                    content.to_csv(path, index=False)
                else:
                    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return batches


def _metrics(table: MetricTable) -> pd.DataFrame:
    frame = pd.DataFrame(table.values, columns=list(table.names))
    for column, known in (("device", table.devices), ("rank", table.ranks), ("node", table.nodes)):
        if any(one is not None for one in known):
            frame.insert(0, column, [known[place] for place in table.entity])
    frame.insert(0, "time_s", table.times_s)
    return frame


def _iterations(table: IterationTable) -> pd.DataFrame:
    return pd.DataFrame({"step": table.step, "duration_s": table.duration_s, "time_s": table.end_s})


def _lines(log: LogTable) -> str:
    rows = zip(log.times_s.tolist(), log.ranks, log.lines, strict=True)
    known = ({"time_s": time_s, "line": line} | ({} if rank is None else {"rank": rank}) for time_s, rank, line in rows)
    return "".join(json.dumps(row) + "\n" for row in known)


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("folder", type=Path)
    asked.add_argument("--quick", action="store_true", help="every tenth job of each set")
    given = asked.parse_args()
    print("\n".join(map(str, write(given.folder, given.quick))))
