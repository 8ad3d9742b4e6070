"""The detection API under load: how long `trainwarden serve`, on one core, takes to answer while 1,024 ranks feed it.

Run as ``python -m tests.benchmarks.bench_serve``. Requests come at a fixed rate whether or not earlier ones were
answered, and each is timed from when it was due. Feeder and asker share the machine's other cores.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.places import ROOT
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.records import HeartbeatRecord, IterationRecord, Suspect, VerdictRecord, Vote
from trainwarden.topics import HEARTBEATS, ITERATIONS, VERDICTS

NAMES = ("serve_verdicts_p99_ms",)
NODES, RANKS_PER_NODE = 128, 8
TICKS = 16  # of a second
RATE, ROUND_S, WARM_UP_S, ROUNDS = 100, 10.0, 5.0, 3
READY_S = 60.0
BAR_MS = 50.0
CONNECTIONS = 32
SERVE = (sys.executable, "-m", "trainwarden.cli.main", "serve", "--listen=127.0.0.1:0")
JOB = "llama-70b"

Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def feed(path: str) -> None:
    """What 1,024 ranks put on the bus until killed, spread over the second as agents tick."""
    bus = EmbeddedBus(path)
    began_s = time.time()
    for tick in itertools.count():
        now_s = began_s + tick / TICKS
        time.sleep(max(0.0, now_s - time.time()))
        step = 2 * (tick // TICKS)
        for node in range(tick % TICKS, NODES, TICKS):
            ranks = tuple(range(node * RANKS_PER_NODE, (node + 1) * RANKS_PER_NODE))
            name = f"node{node}"
            bus.publish(HEARTBEATS, JOB, HeartbeatRecord(job=JOB, node=name, time_s=now_s, ranks=ranks))
            for rank in ranks:
                bus.publish(ITERATIONS, JOB, _steps(name, rank, step, now_s))
        if tick % TICKS == 0:
            bus.publish(VERDICTS, JOB, _verdict(step, now_s))
        bus.flush()


def _steps(node: str, rank: int, step: int, now_s: float) -> IterationRecord:
    return IterationRecord(
        job=JOB,
        node=node,
        rank=rank,
        incarnation="a",
        steps=(step, step + 1),
        end_s=(now_s - 0.5, now_s),
        duration_s=(0.5, 0.5),
        compute_s=(0.4, 0.4),
        wait_s=(0.1, 0.1),
    )


def _verdict(step: int, now_s: float) -> VerdictRecord:
    suspects = tuple(Suspect(score=0.1, reason="of the slowest", rank=rank, node="node0") for rank in range(8))
    votes = {f"detector_{number}": Vote(opinion="normal", score=0.1, reason="as ever") for number in range(10)}
    return VerdictRecord(
        id=f"v{step}", job=JOB, time_s=now_s, window_s=60.0, anomalous=False, reason="nothing", votes=votes,
        suspects=suspects, step=step, iteration_s=0.5,
    )  # fmt: skip


def benchmarks() -> list[dict[str, Any]]:
    """99th percentiles of rounds against one server; their median."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/bus.db"
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        EmbeddedBus(path).close()
        with Path(f"{folder}/log").open("w+") as log:
            server = subprocess.Popen(
                [*SERVE, f"--bus=embedded:{path}", f"--run-dir={folder}/run"],
                env=environ,
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            os.sched_setaffinity(server.pid, {min(os.sched_getaffinity(0))})
            feeder = subprocess.Popen([sys.executable, "-m", __spec__.name, path], env=environ, cwd=ROOT)
            try:
                port, token = _address(Path(log.name), server)
                rounds = asyncio.run(_rounds(port, token))
            finally:
                for process in (feeder, server):
                    process.kill()
                    process.wait()
    value = statistics.median(rounds)
    row = {"name": NAMES[0], "value": round(value, 2), "unit": "ms", "rounds": ROUNDS}
    row |= {"spread": round(max(rounds) - min(rounds), 2), "peer": None, "ratio": None, "bar": BAR_MS}
    return [{**row, "holds": value <= BAR_MS}]


def _address(log: Path, server: subprocess.Popen[Any]) -> tuple[int, str]:
    """The port at which the server says that it listens, and its token."""
    deadline_s = time.monotonic() + READY_S
    while time.monotonic() < deadline_s:
        if found := re.search(r"http://localhost:(\d+)/enter\?token=(\S+)", log.read_text()):
            return int(found[1]), found[2]
        assert server.poll() is None, log.read_text()[-2_000:]
        time.sleep(0.1)
    raise TimeoutError(log.read_text()[-2_000:])


async def _rounds(port: int, token: str) -> list[float]:
    asked = f"GET /api/v1/verdicts?job={JOB} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n"
    lines = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS)]
    deadline_s = time.monotonic() + READY_S
    while not await _ask(lines[0], asked.encode()):
        assert time.monotonic() < deadline_s, "nothing comes through the bus"
        await asyncio.sleep(0.2)
    await _round(lines, asked.encode(), WARM_UP_S)
    return [_p99_ms(await _round(lines, asked.encode(), ROUND_S)) for _ in range(ROUNDS)]


async def _round(lines: list[Line], asked: bytes, seconds: float) -> list[float]:
    """Seconds from when each request was due to its answer; each goes by the first connection that is free."""
    began_s = time.monotonic()
    due = iter([began_s + number / RATE for number in range(int(RATE * seconds))])
    taken: list[float] = []

    async def ask(line: Line) -> None:
        for due_s in due:
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            assert await _ask(line, asked), "no verdict"
            taken.append(time.monotonic() - due_s)

    await asyncio.gather(*(ask(line) for line in lines))
    return taken


async def _ask(line: Line, asked: bytes) -> bool:
    """One request; whether it was answered with a verdict."""
    reader, writer = line
    writer.write(asked)
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None, head
    body = await reader.readexactly(int(length[1]))
    return head.startswith(b"HTTP/1.1 200") and b"detector_9" in body


def _p99_ms(taken_s: list[float]) -> float:
    return 1e3 * statistics.quantiles(taken_s, n=100)[98]


if __name__ == "__main__":
    if len(sys.argv) == 2:
        feed(sys.argv[1])
    print(json.dumps(benchmarks(), indent=2))
