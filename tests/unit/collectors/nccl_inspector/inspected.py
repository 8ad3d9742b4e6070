"""Ranks that NVIDIA's inspector writes of: real processes, their hook's files, and lines in its format."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.doubles import ManualClock
from tests.hook_doubles import write_header
from trainwarden.collectors.nccl_inspector.collector import NcclInspectorCollector
from trainwarden.hook.layout import HEADER_BYTES, RING, STEP_WORDS
from trainwarden.protocols import Scope
from trainwarden.records import CollectivesRecord

ON = {
    "NCCL_INSPECTOR_ENABLE": "1",
    "NCCL_INSPECTOR_DUMP_VERBOSE": "1",
    "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500000",
}
STEP_S = 1.0


class Inspected:
    """One rank of four: a process that waits, started with the inspector's variables in the folder where it writes."""

    def __init__(self, run_dir: Path, rank: int, variables: dict[str, str] = ON) -> None:
        self.rank, self.steps = rank, 0
        self.folder = run_dir / "nccl-inspector-unknown-jobid"
        self.folder.mkdir(exist_ok=True)
        self.process = subprocess.Popen(["sleep", "600"], cwd=run_dir, env={**os.environ, **variables})
        self.hook = run_dir / "hook" / f"rank-{rank}-{self.process.pid}.hook"
        self.log = self.folder / f"{os.uname().nodename}-pid{self.process.pid}.log"
        self.begin_s = float(int(time.time()))
        write_header(self.hook, self.process.pid)

    def step(self) -> None:
        """One step more is over, each a second long."""
        self.steps += 1
        number, end_s = self.steps, self.begin_s + self.steps * STEP_S
        words = (number, number - 1, int(end_s * 1e9), int(STEP_S * 1e9), int(STEP_S * 1e9), 0, 0, 0, 4, number)
        raw = bytearray(self.hook.read_bytes())
        STEP_WORDS.pack_into(raw, HEADER_BYTES + (number - 1) % RING * STEP_WORDS.size, *words)
        self.hook.write_bytes(bytes(raw))
        write_recorded(self.hook, self.steps)

    def call(self, seq: int, *, lasts_us: int = 1000, at_s: float | None = None, **changes: Any) -> bytes:
        """A line of the newest step's middle, dumped at its end."""
        end_s = self.begin_s + self.steps * STEP_S
        at_s = end_s - 0.5 * STEP_S if at_s is None else at_s
        told = {
            "coll": "AllReduce", "coll_sn": seq, "coll_msg_size_bytes": 1 << 20, "coll_exec_time_us": lasts_us,
            "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 1.0, "coll_busbw_gbs": 1.0,
            "event_trace_ts": {"coll_start_ts": int(at_s * 1e6), "coll_stop_ts": int(at_s * 1e6), "kernel_events": []},
        } | changes  # fmt: skip
        line = {
            "header": {"id": "0xab", "comm_name": "dp", "rank": self.rank, "n_ranks": 4, "nnodes": 1},
            "metadata": {"dump_timestamp_us": int(end_s * 1e6), "hostname": "vm", "pid": self.process.pid},
            "coll_perf": told,
        }
        return json.dumps(line).encode() + b"\n"

    def write(self, *lines: bytes) -> None:
        with open(self.log, "ab") as file:
            file.writelines(lines)

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def write_recorded(path: Path, steps: int) -> None:
    """Say in the header how many steps there are."""
    from trainwarden.hook.layout import HEADER, Words

    raw = bytearray(path.read_bytes())
    words = Words._make(HEADER.unpack_from(raw)[: len(Words._fields)])._replace(recorded=steps)
    HEADER.pack_into(raw, 0, *words, *[0] * (HEADER_BYTES // 8 - len(words)))
    path.write_bytes(bytes(raw))


class Watch:
    """The collector, asked once a second."""

    def __init__(self, run_dir: Path, begin_s: float, **config: Any) -> None:
        self.run_dir, self.config = run_dir, {"every_steps": 1, **config}
        self.clock = ManualClock(begin_s)
        self.collector = self.made()

    def made(self) -> NcclInspectorCollector:
        scope = Scope(job="job", node="n0", run_dir=str(self.run_dir))
        return NcclInspectorCollector(NcclInspectorCollector.Config(**self.config), scope, self.clock)

    def restart(self) -> None:
        position = json.loads(json.dumps(self.collector.position()))
        self.collector.close()
        self.collector = self.made()
        self.collector.restore(position)

    def look(self, seconds: float = 1.0) -> list[CollectivesRecord]:
        self.clock.sleep(seconds)
        found = list(self.collector.collect(self.clock.now_s()))
        assert all(isinstance(record, CollectivesRecord) for record in found)
        return [record for record in found if isinstance(record, CollectivesRecord)]
