"""A job on several real nodes whose launchers speak TLS: formed and restarted as without, and closed to strangers."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.places import ROOT
from tests.servers.certificates import Authority
from tests.servers.kafka import ServerMissing
from tests.system.cluster_job import PORT, RANK, Job, now_s
from tests.system.runs import WARDEN
from tests.testbed.nodes import Testbed

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]


@pytest.fixture
def testbed(tmp_path: Path, require_servers: Callable[[str], NoReturn]) -> Iterator[Testbed]:
    try:
        with Testbed(2, tmp_path) as testbed:
            yield testbed
    except ServerMissing as missing:
        require_servers(str(missing))


def config(folder: Path, testbed: Testbed) -> Path:
    """Settings with a certificate for all nodes, by an authority of this folder."""
    folder.mkdir()
    authority = Authority(folder)
    certificate, key = authority.issue("node", *(node.address for node in testbed.nodes))
    path = folder / "tls.toml"
    path.write_text(f'[launch]\ntls_ca = "{authority.ca}"\ntls_certificate = "{certificate}"\ntls_key = "{key}"\n')
    return path


def test_a_job_by_tls_is_formed_and_restarted_and_strangers_are_told_why_not(testbed: Testbed, tmp_path: Path) -> None:
    job = Job(testbed, tmp_path, 2, "--nnodes", "2", "--config", str(config(tmp_path / "ours", testbed)))
    job.trains()
    node = testbed.nodes[0]
    ask = f"exec 3<>/dev/tcp/{job.home}/{PORT}; printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
    assert "this port speaks TLS: ask by https://" in node.run("bash", "-c", ask)
    told = (tmp_path / "stranger.err").open("wb")
    stranger = node.start(
        *WARDEN, "launch", "--job", "j", "--nproc", "1", "--rdzv", f"{job.home}:{PORT}", "--token-file", str(job.token),
        "--nnodes", "2", "--config", str(config(tmp_path / "theirs", testbed)), "--", "python", "-c", "print('in')",
        cwd=ROOT, env={**os.environ, "TRAINWARDEN_NODE": "stranger", "TRAINWARDEN_RUN_DIR": str(tmp_path / "stranger")},
        stdout=subprocess.DEVNULL, stderr=told,
    )  # fmt: skip
    fault_s = now_s()
    testbed.nodes[1].run("pkill", "-KILL", "-f", RANK)
    job.first_step_after(fault_s)
    assert set(job.end().values()) == {0}
    job.check()
    node.signal(stranger, signal.SIGTERM)
    stranger.wait()
    told.close()
    assert "its certificate is not good" in (tmp_path / "stranger.err").read_text()
    assert {one.ranks for one in job.lines()} == {2}
