"""An agent's connection over real sockets: refused, cut, given to another service; the job notices nothing."""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tests.servers.certificates import Authority
from tests.servers.ports import free_ports
from trainwarden import plugins
from trainwarden.actions.launchers.torchrun.client import TorchrunLauncher
from trainwarden.actions.launchers.torchrun.service import RendezvousService
from trainwarden.clock import BootClock
from trainwarden.errors import LauncherUnavailable
from trainwarden.launching import Operation
from trainwarden.metrics_http.tls import PeerTls
from trainwarden.protocols import Scope
from trainwarden.torchrun import line
from trainwarden.torchrun.agent import Agent, Place, Unreachable
from trainwarden.torchrun.line import Endpoints

TOKEN = "a-token-of-twenty-chars"
PATIENCE_S = 60.0


@contextmanager
def serving(port: int, **more: PeerTls) -> Iterator[None]:
    over, ready = threading.Event(), threading.Event()
    service = RendezvousService(f"127.0.0.1:{port}", BootClock(), token=TOKEN, lost_after_s=30.0, **more)
    thread = threading.Thread(target=service.run, args=(over.is_set, lambda _: ready.set()))
    thread.start()
    assert ready.wait(PATIENCE_S)
    yield
    over.set()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.fixture
def ports() -> list[int]:
    return free_ports(2)


@contextmanager
def agent(*ports: int, token: str = TOKEN, node: str = "a", **more: object) -> Iterator[Agent]:
    endpoints = Endpoints(tuple(("127.0.0.1", port) for port in ports), token, **more)
    made = Agent(Place("j", node, 1, 1, "127.0.0.1"), endpoints, lambda _: None)
    made.start()
    yield made
    made.close()


def attempt_at(port: int) -> int | None:
    """What a service says that it hears an agent of; None if there is none."""
    config = plugins.configure(TorchrunLauncher, {"endpoint": f"127.0.0.1:{port}"}, "launcher")
    launcher = TorchrunLauncher(config, Scope(job="j", node="n", run_dir="."))
    launcher._token = TOKEN
    try:
        return launcher.state("j").attempt
    except LauncherUnavailable:
        return None


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_an_agent_waits_for_a_service_that_comes_later(ports):
    with agent(ports[0]) as one, serving(ports[0]):
        assert one.wait_for_round(7, PATIENCE_S)[:5] == (1, 0, 1, "127.0.0.1", 7)


@pytest.mark.thorough
def test_a_wrong_token_is_one_sentence(ports):
    no = pytest.raises(Unreachable, match=r"refuses: the token is not the one that is wanted here")
    with serving(ports[0]), agent(ports[0], token="another-token-of-mine") as one, no:
        one.wait_for_round(7, PATIENCE_S)


@pytest.mark.thorough
def test_nobody_waits_for_ever_where_there_is_no_service(ports):
    with agent(*ports) as one, pytest.raises(Unreachable, match="no rendezvous service has answered"):
        one.wait_for_round(7, 0.5)


@pytest.mark.thorough
def test_another_service_learns_the_round_and_the_first_is_gone_back_to(ports, monkeypatch):
    monkeypatch.setattr(line, "BETTER_EVERY_S", 0.2)
    first, second = ports
    with serving(second), agent(first, second) as one:
        with serving(first):
            assert one.wait_for_round(7, PATIENCE_S).round == 1
            one.update(ranks=[0], alive=[0])
            until(lambda: attempt_at(first) == 0)
        until(lambda: attempt_at(second) == 0)
        assert not one.has_to_stop
        with serving(first):
            until(lambda: attempt_at(first) == 0)
            assert not one.has_to_stop


def test_what_is_seen_of_an_earlier_round_is_said_of_no_later_one(ports):
    """A look at the ranks' files may end once the next round has begun: their first steps are none of its ranks'.

    So may the thread that sees a rank end: its failure would cost the next round, and the job twice the restarts.
    """
    with agent(ports[0]) as one, serving(ports[0]):
        assert one.wait_for_round(7, PATIENCE_S).round == 1
        one.update_round(1, first_step=0)
        assert one._current_beat()["first_step"] == 0
        until(lambda: attempt_at(ports[0]) == 0)
        one.update(failure={"rank": 0, "how": "ended"})
        assert one.wait_for_round(7, PATIENCE_S).round == 2
        one.update_round(1, first_step=0, failure={"rank": 0, "how": "ended"})
        assert one._current_beat()["first_step"] is None
        assert one._current_beat()["failure"] is None


def test_a_failure_is_said_while_the_next_round_is_waited_for(ports):
    """torchrun may ask for its next place before the service has read which rank failed."""
    with agent(ports[0]) as one:
        one.update_round(0, failure={"rank": 1, "how": "was ended by SIGKILL"})
        with pytest.raises(Unreachable):
            one.wait_for_round(7, 0.0)
        assert one._current_beat()["waits"]
        assert one._current_beat()["failure"] == {"rank": 1, "how": "was ended by SIGKILL"}


def test_what_was_asked_of_the_job_is_noted_once_at_each_stage(ports):
    noted = []
    endpoints = Endpoints((("127.0.0.1", ports[0]),), TOKEN)
    place, ignore = Place("j", "a", 1, 1, "127.0.0.1"), lambda _: None
    one = Agent(place, endpoints, ignore, ignore, lambda operation, stage: noted.append((operation["by"], stage)))
    with serving(ports[0]):
        one.start()
        assert one.wait_for_round(7, PATIENCE_S).round == 1
        config = plugins.configure(TorchrunLauncher, {"endpoint": f"127.0.0.1:{ports[0]}"}, "launcher")
        launcher = TorchrunLauncher(config, Scope(job="j", node="n", run_dir="."))
        launcher._token = TOKEN
        asked = Operation(id="o", job="j", kind="restart", expected_generation=0, by="ann")
        assert launcher.submit(asked).state in ("accepted", "done")
        until(lambda: one.has_to_stop)
        assert one.wait_for_round(7, PATIENCE_S).round == 2
        one.update(ranks=[0], alive=[0])
        until(lambda: len(noted) == 2)
        with agent(ports[0], node="late") as other:
            until(lambda: other._memory is not None)
            assert other._noted == {("o", "accepted"), ("o", "done")}
        one.close()
    assert noted == [("ann", "accepted"), ("ann", "done")]


def test_the_end_of_a_stop_is_noted_by_the_agents_that_leave_for_it(ports):
    noted = []
    endpoints = Endpoints((("127.0.0.1", ports[0]),), TOKEN)
    place, ignore = Place("j", "a", 1, 1, "127.0.0.1"), lambda _: None
    one = Agent(place, endpoints, ignore, ignore, lambda operation, stage: noted.append((operation["kind"], stage)))
    with serving(ports[0]):
        one.start()
        assert one.wait_for_round(7, PATIENCE_S).round == 1
        config = plugins.configure(TorchrunLauncher, {"endpoint": f"127.0.0.1:{ports[0]}"}, "launcher")
        launcher = TorchrunLauncher(config, Scope(job="j", node="n", run_dir="."))
        launcher._token = TOKEN
        one.update(ranks=[0], alive=[0])
        assert launcher.submit(Operation(id="o", job="j", kind="stop", expected_generation=0)).state == "accepted"
        until(lambda: one._word.get("over") is not None)
        one.close()
    assert noted == [("stop", "accepted"), ("stop", "done")]


def test_by_tls_as_well(ports, tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.issue("agent", "127.0.0.1")
    tls = PeerTls(ca=authority.ca, certificate=certificate, key=key)
    with ExitStack() as stack:
        stack.enter_context(serving(ports[0], tls=tls))
        one = stack.enter_context(agent(ports[0], tls=tls.asking()))
        assert one.wait_for_round(7, PATIENCE_S).round == 1


def test_a_process_with_more_than_a_thousand_descriptors_hears_the_service() -> None:
    """`select` refuses those beyond 1,023."""
    most, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    read, write = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as server:
        connection = line._Connection(server.getsockname(), None, PATIENCE_S)
        far, _ = server.accept()
        with far, connection.socket as near:
            connection.socket = socket.socket(fileno=fcntl.fcntl(near, fcntl.F_DUPFD_CLOEXEC, 1500))
            assert not connection.readable(read, 0.0)
            far.sendall(b"{}\n")
            assert connection.readable(read, PATIENCE_S)
            connection.socket.close()
    os.close(read)
    os.close(write)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


HOSTILE = [
    b"\x00\xff\xfe garbage",
    b"[" * 200_000,
    b"7",
    b'{"begin": 7}',
    b'{"begin": {"round": "2", "rank": 0, "world": 1, "host": "h", "port": 7}}',
    b'{"begin": {"round": 2, "rank": null, "world": 1, "host": "h", "port": 7}}',
    b'{"over": "soon"}',
    b'{"memory": 7}',
    b'{"memory": {"kept": 7}}',
    b'{"memory": {"kept": [{"report": {}}]}}',
    b'{"memory": {"kept": [{"report": {"operation": "o", "state": "done"}}]}}',
    b'{"splits": [{}]}',
    b'{"splits": 7}',
    b'{"bus": 7, "splits": {"a": 1}}',
]


@pytest.mark.thorough
@pytest.mark.parametrize("said", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_a_service_says_the_next_one_is_heard(ports, said):
    """Another program may listen there, or another version of ours."""
    first, second = ports

    def answer(listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                with connection, suppress(OSError):
                    connection.sendall(b'{"begin": null}\n')
                    connection.sendall(said + b"\n")
                    connection.settimeout(5.0)
                    while connection.recv(1 << 16):
                        pass

    def put(splits: list[dict[str, int]]) -> None:
        assert splits[-1]["number"]

    with socket.create_server(("127.0.0.1", first)) as listening, serving(second):
        threading.Thread(target=answer, args=(listening,), daemon=True).start()
        endpoints = Endpoints((("127.0.0.1", first), ("127.0.0.1", second)), TOKEN)
        one = Agent(Place("j", "a", 1, 1, "127.0.0.1"), endpoints, put, lambda bus: [][len(bus) :] or None)
        one.start()
        assert one.wait_for_round(7, PATIENCE_S)[:5] == (1, 0, 1, "127.0.0.1", 7)
        one.close()
        listening.shutdown(socket.SHUT_RDWR)
