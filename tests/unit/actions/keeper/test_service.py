"""The service around a keeper: what it tells Prometheus, and when it does not start."""

from __future__ import annotations

import queue
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.doubles import ManualClock
from tests.keeper_doubles import content, write_shard
from trainwarden.actions.keeper import silence
from trainwarden.actions.keeper.filed import Filed
from trainwarden.actions.keeper.joining import Joined
from trainwarden.actions.keeper.service import KeeperService
from trainwarden.actions.keeper.store import Store
from trainwarden.checkpoint.shard import CheckpointError, Facts, Id
from trainwarden.checkpoint.slots import Busy
from trainwarden.checkpoints.newest import newest
from trainwarden.clock import BootClock
from trainwarden.errors import ConfigError
from trainwarden.self_metrics import SelfMetrics

MADE: list[KeeperService] = []


def service(tmp_path, **options) -> KeeperService:
    settings = {"job": "j", "node": "a", "ring": {}, "tls": None, "memory": str(tmp_path / "memory")}
    settings |= {"clock": ManualClock()} | options
    made = KeeperService(metrics=SelfMetrics("keeper"), store=tmp_path / "store", **settings)
    MADE.append(made)
    return made


@pytest.fixture(autouse=True)
def _let_go():
    yield
    for made in MADE:
        made._lock.__exit__(None, None, None)  # before the folder is closed
    MADE.clear()


def test_prometheus_is_told_what_is_durable_and_what_was_skipped(tmp_path):
    made = service(tmp_path)
    slots = made.keeper.slots
    for step in (10, 20):
        id_ = Id(0, step)
        write_shard(slots, Facts("j", id_, 0, 1, "world 1", float(step)), content(id_, 0, 500))
    slots.write_note("trainer-0.json", {"late": 3, "memory": "x"})
    for _ in range(2):
        made.round()
        made.keeper.file()
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


@pytest.mark.thorough
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


@contextmanager
def hanging(monkeypatch, of: type, name: str):
    """The method of a store hangs; yields an event of the first time."""
    hangs, goes_on, plain = threading.Event(), threading.Event(), getattr(of, name)

    def hang(self, *words):
        hangs.set()
        goes_on.wait(60)
        return plain(self, *words)

    monkeypatch.setattr(of, name, hang)
    try:
        yield hangs
    finally:
        goes_on.set()


def target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:  # of the listing itself
        return ""


def saved(made: KeeperService, step: int) -> None:
    id_ = Id(0, step)
    write_shard(made.keeper.slots, Facts("j", id_, 0, 1, "world 1", float(step)), content(id_, 0, 500))


@pytest.mark.thorough
def test_a_store_of_shards_that_hangs_holds_up_no_round_no_restore_and_no_save(tmp_path, monkeypatch):
    made = service(tmp_path, clock=BootClock(), flush_every_s=0.0)
    monkeypatch.setattr(silence, "STILL_S", 0.5)
    over = threading.Event()
    with hanging(monkeypatch, Store, "put") as hangs:
        thread = threading.Thread(target=made.run, args=(over.is_set,), daemon=True)
        thread.start()
        saved(made, 10)
        try:
            assert hangs.wait(20)
            assert within(lambda: made.keeper.stage(0, 1, "world 1", None)).id == Id(0, 10)
            within(made.round)
            for step in (20, 30):  # both slots, the one that is sent to the store too
                until(lambda step=step: within(lambda: tried(made, step)))
            assert within(lambda: made.keeper.stage(0, 1, "world 1", None)).id == Id(0, 30)
        finally:
            over.set()
    thread.join(30)
    assert not thread.is_alive()


@pytest.mark.thorough
def test_a_stop_waits_for_a_checkpoint_that_the_store_takes(tmp_path, monkeypatch):
    begun, put, seal = threading.Event(), Store.put, Store.seal

    def slow_put(self, descriptor, header, check):
        begun.set()
        for _ in range(10):
            check()
            time.sleep(0.05)
        put(self, descriptor, header, check)

    def slow_seal(self, id_, world):
        time.sleep(0.5)
        return seal(self, id_, world)

    monkeypatch.setattr(Store, "put", slow_put)
    monkeypatch.setattr(Store, "seal", slow_seal)
    made, over = service(tmp_path, clock=BootClock(), flush_every_s=0.0), threading.Event()
    saved(made, 10)
    thread = threading.Thread(target=made.run, args=(over.is_set,), daemon=True)
    thread.start()
    assert begun.wait(20)
    over.set()
    thread.join(20)
    assert [copy.step for copy in Store(tmp_path / "store", "j").copies()] == [10]


@pytest.mark.thorough
def test_a_restore_from_a_store_that_hangs_ends_and_says_so(tmp_path, monkeypatch):
    made = service(tmp_path, flush_every_s=0.0)
    saved(made, 10)
    for _ in range(2):
        made.round()
        made.keeper.file()
    for slot in made.keeper.slots.listed():
        made.keeper.slots.remove(slot)
    monkeypatch.setattr(silence, "STILL_S", 0.5)
    with hanging(monkeypatch, Store, "open"):
        staged = within(lambda: made.keeper.stage(0, 1, "world 1", None))
        assert staged.id is None
        assert "the store has not answered" in staged.words
        within(made.round)
    until(lambda: not any(one.name == "keeper-asks-store" for one in threading.enumerate()))
    assert not [one for one in map(target, Path("/proc/self/fd").iterdir()) if "/store/" in one]


@pytest.mark.thorough
def test_ranks_are_told_when_the_store_that_they_need_hangs(tmp_path, monkeypatch):
    made = service(tmp_path, folder=True)
    (tmp_path / "store").mkdir()
    write_checkpoint(tmp_path / "store", 10)
    made.folder.file()
    monkeypatch.setattr(silence, "STILL_S", 0.5)
    with hanging(monkeypatch, Filed, "copied"):
        with pytest.raises(CheckpointError, match="the store has not answered"):
            within(lambda: made.folder.fill("first"))
        assert within(made.round) is False


def write_checkpoint(folder, step: int) -> None:
    (folder / f"step-{step}").mkdir()
    (folder / f"step-{step}" / ".metadata").write_bytes(b"m")


def tried(made: KeeperService, step: int) -> bool:
    try:
        saved(made, step)
    except Busy:
        return False
    return True


def until(found) -> None:
    deadline_s = time.monotonic() + 20.0
    while not found():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def within(work, limit_s: float = 20.0):
    """What `work` returns or raises, if it comes in time."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(work)
        try:
            return asked.result(limit_s)
        except TimeoutError:
            pool.shutdown(wait=False)
            raise


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
