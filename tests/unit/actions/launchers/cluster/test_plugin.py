"""The plug-in of engines: its settings, its one job, and ends that are told though nobody is left to ask."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from actions.launchers.cluster.plugin import ClusterConfig, ClusterLauncher
from actions.launchers.leases.questions import QuestionServer, Routes
from tests.servers.certificates import Authority
from tests.unit.actions.launchers.cluster.test_leading import Leader as Leads
from trainwarden.errors import ConfigError, LauncherError, LauncherUnavailable
from trainwarden.launching import Operation, Report
from trainwarden.metrics_http.tls import PeerTls
from trainwarden.protocols import Scope

SCOPE = Scope(job="j", node="n", run_dir=".")
STOP = Operation(id="s", job="j", kind="stop", expected_generation=1)


class Leader:
    """Knows how far a stop is, until nobody is there."""

    def __init__(self) -> None:
        self.report: Report | None = Report(operation="s", state="accepted")

    def submit(self, operation: Operation) -> Report:
        return self.poll(operation.id)

    def poll(self, operation: str) -> Report:
        if self.report is None:
            raise LauncherUnavailable("nobody leads")
        return self.report


def test_an_end_is_told_after_the_last_launcher_has_gone() -> None:
    leader = Leader()
    launcher = ClusterLauncher(ClusterConfig(rdzv="127.0.0.1:1"), SCOPE)
    launcher._leader = leader  # type: ignore[assignment]
    assert launcher.submit(STOP).state == "accepted"
    leader.report = None
    with pytest.raises(LauncherUnavailable):
        launcher.poll("j", "s")
    leader.report = Report(operation="s", state="done")
    assert launcher.poll("j", "s").state == "done"
    leader.report = None
    assert (launcher.poll("j", "s").state, launcher.submit(STOP).state) == ("done", "done")


def test_it_is_of_one_job() -> None:
    launcher = ClusterLauncher(ClusterConfig(rdzv="127.0.0.1:1"), SCOPE)
    assert launcher.job == "j"
    with pytest.raises(LauncherError, match="runs job 'j', not 'k'"):
        launcher.state("k")
    assert launcher.submit(Operation(id="o", job="k", kind="stop", expected_generation=1)).reason == "unknown_job"


def test_settings_that_cannot_be_are_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="HOST:PORT"):
        ClusterLauncher(ClusterConfig(rdzv="nowhere"), SCOPE)
    with pytest.raises(ConfigError, match="token"):
        ClusterLauncher(ClusterConfig(rdzv="h:1", token_file=str(tmp_path / "none")), SCOPE)
    with pytest.raises(ConfigError, match="tls"):
        ClusterLauncher(ClusterConfig(rdzv="h:1", tls_ca=str(tmp_path / "none")), SCOPE)


def test_a_lease_service_that_is_away_says_nothing_of_any_operation() -> None:
    launcher = ClusterLauncher(ClusterConfig(rdzv="127.0.0.1:1"), SCOPE)
    for question in (lambda: launcher.state("j"), lambda: launcher.submit(STOP), lambda: launcher.poll("j", "s")):
        with pytest.raises(LauncherUnavailable):
            question()


def test_it_speaks_with_the_token_and_by_tls(tmp_path: Path) -> None:
    authority, leader, token = Authority(tmp_path), Leads(), tmp_path / "token"
    token.write_text("t" * 16)
    token.chmod(0o600)
    certificate, key = authority.issue("n0", "127.0.0.1")
    tls = PeerTls(ca=authority.ca, certificate=certificate, key=key)
    leader.form()
    with ExitStack() as over:

        def served(routes: Routes) -> str:
            server = QuestionServer("127.0.0.1:0", routes, token="t" * 16, most_bytes=1 << 20, tls=tls)
            server.start()
            over.callback(server.close)
            return server.address

        lease = {"job": "j", "holder": "l", "address": served(leader.leading.routes()), "epoch": 3, "duration_s": 6.0}
        answer = msgspec.json.encode({"granted": False, "lease": lease})
        own = {"tls_ca": str(authority.ca), "tls_certificate": str(certificate), "tls_key": str(key)}
        rdzv = served({("POST", "/v1/look"): lambda *_: answer})
        launcher = ClusterLauncher(ClusterConfig(rdzv=rdzv, token_file=str(token), **own), SCOPE)
        assert launcher.state("j").phase == "running"
        with pytest.raises(LauncherError, match="https"):
            ClusterLauncher(ClusterConfig(rdzv=rdzv, token_file=str(token)), SCOPE).state("j")
        token.write_text("u" * 16)
        with pytest.raises(LauncherError, match="401"):
            ClusterLauncher(ClusterConfig(rdzv=rdzv, token_file=str(token), **own), SCOPE).state("j")
