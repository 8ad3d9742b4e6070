"""A port that others took before the ranks had it is the launcher's own affair: another one, and no failed restart."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trainwarden import rundir
from trainwarden.actions.launchers.local import node_runner, port
from trainwarden.actions.launchers.local.coordinator import SupervisorConfig
from trainwarden.actions.launchers.local.ranks import LocalJob
from trainwarden.actions.launchers.local.supervisor import Supervisor
from trainwarden.clock import SystemClock
from trainwarden.records import EventRecord
from trainwarden.topics import EVENTS

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

# Rank 0 listens as a store does; the others wait for it as long as it takes, or fail where they meet somebody else.
RANK = """
import os, socket, sys, time
port = int(os.environ["MASTER_PORT"])
if os.environ["RANK"] == "0":
    store = socket.socket()
    store.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    store.bind(("127.0.0.1", port))
    store.listen()
    peer, _ = store.accept()
    peer.sendall(b"hello")
    peer.recv(1)
else:
    while True:
        try:
            peer = socket.create_connection(("127.0.0.1", port), 10)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    if peer.recv(5) != b"hello":
        sys.exit("who is this?")
print("met at", port, flush=True)
"""
TORCH = "import torch.distributed as dist; dist.init_process_group('gloo'); dist.barrier(); print('met')"


@pytest.fixture
def thief(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], int]]:
    """Takes the next so many ports that are chosen, and says at every word that it is somebody else."""
    listening: list[socket.socket] = []
    real = port.free_port

    def steal(times: int) -> int:
        def choose() -> int:
            if len(listening) == times:
                return real()
            listening.append(socket.create_server(("127.0.0.1", 0)))
            chosen: int = listening[-1].getsockname()[1]
            return chosen

        monkeypatch.setattr(node_runner, "free_port", choose)
        return times

    yield steal
    for one in listening:
        one.close()


def ran(run_dir: Path, script: str, **config: int) -> tuple[int, str, list[EventRecord]]:
    """Exit code, the ranks' output, and what was told of ends."""
    place = LocalJob(command=(sys.executable, "-c", script), ranks=2, run_dir=run_dir, job="job", node="node")
    settings = SupervisorConfig(mode="observe", cascade_grace_s=0.5, stop_grace_s=0.5, **config)  # type: ignore[arg-type]
    code = Supervisor(place, SystemClock(), dict(os.environ), settings).run()
    text = "".join(log.read_text() for log in sorted((run_dir / rundir.LOGS).iterdir()))
    events = [EVENTS.decode(line) for line in (run_dir / rundir.EVENTS).read_bytes().splitlines()]
    return code, text, [event for event in events if event.kind == "process_exit"]


@pytest.mark.parametrize("script", [RANK, TORCH], ids=["plain", "torch"])
def test_another_port_is_tried_and_nobody_hears_of_a_failure(
    tmp_path: Path, thief: Callable[[int], int], script: str
) -> None:
    thief(2 if script == RANK else 1)
    code, text, ends = ran(tmp_path, script)
    assert code == 0, text
    assert text.count("met") == 2
    assert [end.rank for end in ends if end.fields.get("code") != 0 and "asked" not in end.fields] == []


def test_it_is_not_tried_for_ever(tmp_path: Path, thief: Callable[[int], int]) -> None:
    thief(99)
    code, text, _ = ran(tmp_path, RANK, port_tries=2)
    assert code == 1
    assert text.count("Address already in use") == 3


def test_a_port_of_the_scripts_own_is_its_own_affair(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        its_own = other.getsockname()[1]
        code, text, _ = ran(tmp_path, f"import socket; socket.create_server(('127.0.0.1', {its_own}))")
    assert code == 1
    assert text.count("Address already in use") <= 2
