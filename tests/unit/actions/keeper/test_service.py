"""The service around a keeper: what it tells Prometheus, and when it does not start."""

from __future__ import annotations

import queue
import ssl
import threading

import pytest

from tests.doubles import ManualClock
from tests.keeper_doubles import content, write_shard
from trainwarden.actions.keeper.filed import Filed
from trainwarden.actions.keeper.joining import Joined
from trainwarden.actions.keeper.service import KeeperService
from trainwarden.checkpoint.shard import Facts, Id
from trainwarden.checkpoints.newest import newest
from trainwarden.clock import BootClock
from trainwarden.errors import ConfigError
from trainwarden.self_metrics import SelfMetrics


def service(tmp_path, **options) -> KeeperService:
    settings = {"job": "j", "node": "a", "ring": {}, "tls": None, "memory": str(tmp_path / "memory")}
    settings |= {"clock": ManualClock()} | options
    return KeeperService(metrics=SelfMetrics("keeper"), store=tmp_path / "store", **settings)


def test_prometheus_is_told_what_is_durable_and_what_was_skipped(tmp_path):
    made = service(tmp_path)
    slots = made.keeper.slots
    for step in (10, 20):
        id_ = Id(0, step)
        write_shard(slots, Facts("j", id_, 0, 1, "world 1", float(step)), content(id_, 0, 500))
    slots.write_note("trainer-0.json", {"late": 3, "memory": "x"})
    for _ in range(2):
        made.round()

    def told(name: str, **labels: str) -> float | None:
        return made._metrics.registry.get_sample_value(f"trainwarden_keeper_{name}", {"training_job": "j", **labels})

    assert told("durable_timestamp_seconds") == 20.0
    assert told("flushed_total") == 1.0
    assert told("skipped_saves", reason="late") == 3.0
    assert told("interval_seconds") is None  # one node alone replicates nothing, and nobody is alarmed by that
    assert made.listed()["if_lost"]["all nodes"]["step"] == 20


def test_what_would_be_lost_of_a_folders_files_is_what_the_store_lacks(tmp_path):
    made = service(tmp_path, folder=True)
    assert made.folder is not None
    made.folder.file()
    made.folder.fill("first")
    assert made.listed()["if_lost"]["all nodes"] is None
    (made.folder.path / "step-10").mkdir()
    (made.folder.path / "step-10" / ".metadata").write_bytes(b"m")
    for _ in range(3):
        made.round()
        made.folder.file()
    made.round()
    listed = made.listed()
    assert listed["job"] == "j/files"
    assert [(row["step"], row["tier"], row["complete"]) for row in listed["checkpoints"]] == [(10, "memory", True)]
    assert listed["if_lost"]["all nodes"]["step"] == 10
    assert listed["if_lost"]["a node"]["step"] == 10
    assert made._metrics.registry.get_sample_value(
        "trainwarden_keeper_durable_timestamp_seconds", {"training_job": "j/files"}
    )


def test_while_the_store_hangs_ranks_are_answered_from_memory(tmp_path, monkeypatch):
    hangs, goes_on, put = threading.Event(), threading.Event(), Filed.put

    def hanging(self, read, header):
        hangs.set()
        goes_on.wait(30)
        return put(self, read, header)

    monkeypatch.setattr(Filed, "put", hanging)
    made = service(tmp_path, folder=True, clock=BootClock(), flush_every_s=0.0)
    filled, over = queue.SimpleQueue(), threading.Event()
    threads = [threading.Thread(target=made.run, args=(over.is_set,), daemon=True)]
    threads[0].start()
    try:
        made.folder.fill("first")
        (made.folder.path / "step-10").mkdir()
        (made.folder.path / "step-10" / ".metadata").write_bytes(b"m")
        assert hangs.wait(20)
        threads.append(threading.Thread(target=lambda: filled.put(made.folder.fill("second")), daemon=True))
        threads[1].start()
        assert filled.get(timeout=10).step == 10
        assert made.listed()["if_lost"]["all nodes"] is None
        assert made.round() is False
    finally:
        over.set()
        goes_on.set()
        for thread in threads:
            thread.join(30)
    assert newest(tmp_path / "store").step == 10  # the end of the job has waited for it


class Meeting:
    """The launcher's folder, which tells each of `news` once."""

    def __init__(self, *news) -> None:
        self._news, self.server = list(news), object()

    def news(self):
        one = self._news.pop(0) if self._news else None
        if one is RuntimeError:
            raise RuntimeError("broken")
        return one


class Ears:
    """A listener that cannot listen the first time."""

    def __init__(self) -> None:
        self.tries = 0

    def serve_nodes_by(self, server, context) -> None:
        self.tries += 1
        if self.tries == 1:
            raise OSError("no thread can be started")


def joined(number: int, *nodes: str) -> Joined:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return Joined(number, {node: ("127.0.0.1", 1) for node in nodes}, context, context)


def test_a_ring_that_could_not_be_taken_part_in_is_tried_again_until_the_keeper_listens(tmp_path):
    meeting, ears = Meeting(joined(1, "a", "b"), None, None, joined(2, "a", "c")), Ears()
    made = service(tmp_path, joining=meeting)
    assert [made.look_for_ring(meeting, ears) for _ in range(4)] == [False, True, False, True]
    assert ears.tries == 2
    assert made.keeper.ring == ("a", "c")


def test_whatever_breaks_the_look_for_a_ring_is_counted_and_it_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("trainwarden.actions.keeper.service.ROUND_S", 0.01)
    meeting, ears = Meeting(RuntimeError, joined(1, "a", "b")), Ears()
    ears.tries = 1
    made = service(tmp_path, joining=meeting)
    thread = threading.Thread(target=made._join, args=(meeting, ears), daemon=True)
    thread.start()
    made._wait_for(1)
    made._closes.set()
    thread.join(10)
    assert not thread.is_alive()
    name, job = "trainwarden_keeper_errors_total", {"training_job": "j"}
    assert made._metrics.registry.get_sample_value(name, job) == 1.0


def test_a_second_keeper_of_the_job_is_refused(tmp_path):
    first = service(tmp_path)
    with pytest.raises(ConfigError, match="runs on this node already"):
        service(tmp_path)
    assert first.keeper.node == "a"


@pytest.mark.parametrize("ring", [{"b": ("127.0.0.1", 1)}, {"a": ("127.0.0.1", 1), "b": ("127.0.0.1", 2)}])
def test_a_ring_names_this_node_and_speaks_tls(tmp_path, ring):
    with pytest.raises(ConfigError, match=r"--ring: it does not name|--tls-ca: other nodes"):
        service(tmp_path, ring=ring)
