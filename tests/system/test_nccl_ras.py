"""The RAS collector against a server that speaks NCCL's protocol, one that does not, and none."""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import threading
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from trainwarden.clock import SystemClock
from trainwarden.collectors.collectives.ras import NcclRasCollector
from trainwarden.collectors.collectives.ras_client import parse_address
from trainwarden.detectors.collectives.ras import analyse
from trainwarden.errors import CollectorError
from trainwarden.protocols import Scope
from trainwarden.records import EventRecord
from trainwarden.topics import EVENTS

pytestmark = [pytest.mark.system, pytest.mark.timeout(60)]


class RasServer:
    """Answers as NCCL does (src/ras/client_support.cc): a line for a line, then a report and the end."""

    def __init__(self, *, json_known: bool = True, greeting: str = "SERVER PROTOCOL 2\n") -> None:
        self.report = ""
        self.heard: list[str] = []
        self._json_known = json_known
        self._greeting = greeting
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"localhost:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._socket.accept()
            except OSError:
                return
            with peer, peer.makefile("rw") as lines, contextlib.suppress(ConnectionError):
                self._talk(lines)

    def _talk(self, lines: Any) -> None:
        for line in lines:
            self.heard.append(line)
            if line.startswith("CLIENT PROTOCOL"):
                lines.write(self._greeting)
            elif line.startswith("TIMEOUT") or (line.startswith("SET FORMAT") and self._json_known):
                lines.write("OK\n")
            elif line == "VERBOSE STATUS\n":
                for place in range(0, len(self.report), 1000):
                    lines.write(self.report[place : place + 1000])
                    lines.flush()
                return
            else:
                lines.write("ERROR: Unknown command SET\n")
            lines.flush()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def server() -> Iterator[RasServer]:
    made = RasServer()
    yield made
    made.close()


def report(*counts: int, comm: str = "0xa", dead: int | None = None) -> dict[str, Any]:
    return {
        "hash": comm, "size": len(counts), "missing_ranks": [],
        "ranks": [
            {"rank": rank, "host": "h", "pid": 100 + rank, "cuda_dev": rank, "nvml_dev": rank,
             "collective_counts": {"AllReduce": count, "Send": 0},
             "status": {"considered_dead": rank == dead, "async_error": 0, "abort_flag": False}}
            for rank, count in enumerate(counts)
        ],
    }  # fmt: skip


def collector(address: str, run_dir: Path) -> NcclRasCollector:
    config = NcclRasCollector.Config(address=address, interval_s=0.02)
    return NcclRasCollector(config, Scope(job="job", node="n0", run_dir=str(run_dir)), SystemClock())


def poll(one: NcclRasCollector, server: RasServer) -> list[EventRecord]:
    """One question from its beginning to its end."""
    before, found, deadline = server.heard.count("VERBOSE STATUS\n"), [], time.monotonic() + 10.0
    while time.monotonic() < deadline:
        found += list(one.collect(time.time()))
        if server.heard.count("VERBOSE STATUS\n") > before and one._talk is None:
            break
        time.sleep(0.005)
    assert all(EVENTS.decode(EVENTS.encode(record)) == record for record in found)
    return [record for record in found if isinstance(record, EventRecord)]


def told(event: EventRecord) -> bytes:
    return zlib.decompress(base64.b85decode(str(event.fields["ras"])))


def test_a_running_job_sends_nothing_and_one_that_stands_still_unevenly_two_answers(
    server: RasServer, tmp_path: Path
) -> None:
    one = collector(server.address, tmp_path)
    for count in (5, 6, 7):
        server.report = json.dumps({"communicators": [report(count, count, count - 1)]})
        assert poll(one, server) == []
    answers = [event for _ in range(4) for event in poll(one, server)]
    assert len(answers) == 2
    (found,) = analyse(told(answers[1]), told(answers[0]))
    assert (found.kind, found.ranks) == ("hang", (2,))
    assert server.heard[:4] == ["CLIENT PROTOCOL 2\n", "TIMEOUT 5\n", "SET FORMAT json\n", "VERBOSE STATUS\n"]
    one.close()


def test_an_even_standstill_sends_nothing_and_a_dead_rank_at_once(server: RasServer, tmp_path: Path) -> None:
    one = collector(server.address, tmp_path)
    server.report = json.dumps({"communicators": [report(5, 5), report(3, 3, comm="0xb")]})
    assert [*poll(one, server), *poll(one, server), *poll(one, server)] == []
    server.report = json.dumps(
        {"communicators": [report(5, 5, 5), report(6, 6, comm="0xb", dead=1), report(1, 1, comm="0xc")]}
    )
    (event,) = poll(one, server)
    kept = json.loads(told(event))["communicators"]
    assert [comm["hash"] for comm in kept] == ["0xa", "0xb"]  # the largest, and the one that is sick
    assert analyse(told(event))[0].ranks == (1,)
    one.close()


class StoppedFirst(RasServer):
    """The first `silent` connections are a stopped process's: taken by the kernel, heard by nobody."""

    def __init__(self, silent: int) -> None:
        self._silent = silent
        super().__init__()

    def _talk(self, lines: Any) -> None:
        if self._silent:
            self._silent -= 1
            for _ in lines:
                pass
            return
        super()._talk(lines)


def test_a_connection_that_nobody_greets_is_given_up_soon_and_another_tried(tmp_path: Path) -> None:
    server = StoppedFirst(silent=3)
    server.report = json.dumps({"communicators": [report(5, 5, dead=1)]})
    one = collector(server.address, tmp_path)
    now_s, found = 1000.0, list(one.collect(1000.0))
    for waited_s in (2.4, 2.6) * 3:
        found += one.collect(now_s + waited_s)
        now_s += waited_s if waited_s > 2.5 else 0.0
    deadline_s = time.monotonic() + 10.0
    while not found and time.monotonic() < deadline_s:
        found += one.collect(now_s + 0.1)
    (event,) = found
    assert isinstance(event, EventRecord)
    assert analyse(told(event))[0].ranks == (1,)
    one.close()
    server.close()


def test_when_no_connection_at_all_is_greeted_it_says_so(tmp_path: Path) -> None:
    server = StoppedFirst(silent=1000)
    one = collector(server.address, tmp_path)
    for turn in range(8):
        assert list(one.collect(1000.0 + 3.0 * turn)) == []
    with pytest.raises(CollectorError, match="8 connections in a row"):
        list(one.collect(1024.0))
    assert one._talk is None
    one.close()
    server.close()


def test_an_older_nccl_that_knows_no_json_answers_in_text(tmp_path: Path) -> None:
    server = RasServer(json_known=False)
    server.report = "NCCL version 2.24.3\n#0-0 (aabb) INCOMPLETE\n  Missing communicator data from 1 job processes\n"
    one = collector(server.address, tmp_path)
    (event,) = poll(one, server)
    assert b"INCOMPLETE" in told(event)
    one.close()
    server.close()


def test_who_does_not_speak_ras_is_left_alone_and_nobody_at_all_is_no_error(tmp_path: Path) -> None:
    server = RasServer(greeting="220 mail ready\n")
    one = collector(server.address, tmp_path)
    deadline = time.monotonic() + 5.0
    while not server.heard and time.monotonic() < deadline:
        assert list(one.collect(time.time())) == []
        time.sleep(0.005)
    for _ in range(20):
        assert list(one.collect(time.time())) == []
        time.sleep(0.005)
    assert "VERBOSE STATUS\n" not in server.heard
    server.close()
    one.close()
    with socket.socket() as silent:  # keeps its port from everybody else, and listens to nobody
        silent.bind(("127.0.0.1", 0))
        nobody = collector(f"127.0.0.1:{silent.getsockname()[1]}", tmp_path)
        assert list(nobody.collect(time.time())) == []
        assert list(nobody.wake_fds()) == []
        nobody.close()


def test_only_the_node_of_rank_0_asks(server: RasServer, tmp_path: Path) -> None:
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "rank-8-4194303.hook").touch()
    one = collector(server.address, tmp_path)
    for _ in range(10):
        assert list(one.collect(time.time())) == []
    assert server.heard == []


@pytest.mark.parametrize("text", ["", "localhost", "host.example:28028", "127.0.0.1:0", "127.0.0.1:99999"])
def test_addresses_that_would_need_a_look_up_are_refused(text: str) -> None:
    with pytest.raises(CollectorError):
        parse_address(text)
