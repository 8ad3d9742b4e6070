"""People with tokens of their own ask about a job on several nodes: who may look on may not act."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.servers.ports import free_ports
from tests.system.runs import SCRIPTS, WARDEN
from trainwarden.cli.shared.machine import user
from trainwarden.metrics_http.access import digest_of

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

WORDS = {"shared": "a-word-nobody-guesses", "ann": "a-word-for-lookers-on", "bob": "a-word-for-who-acts"}


def test_who_may_look_on_sees_the_job_and_suspends_nothing(tmp_path: Path) -> None:
    for name, word in WORDS.items():
        (tmp_path / name).write_text(word)
        (tmp_path / name).chmod(0o600)
    people = f"ann observe sha256:{digest_of(WORDS['ann'])}\nbob act sha256:{digest_of(WORDS['bob'])}\n"
    (tmp_path / "people").write_text(people)
    rdzv = f"127.0.0.1:{free_ports(1)[0]}"
    launch = ["launch", "--job", "j", "--nproc", "1", "--rdzv", rdzv, "--token-file", str(tmp_path / "shared")]
    launch += ["--tokens", str(tmp_path / "people"), "--", sys.executable, str(SCRIPTS / "ring.py"), "100000"]
    environ = {**os.environ, "TRAINWARDEN_NODE": "n1", "TRAINWARDEN_RUN_DIR": str(tmp_path / "run")}
    # The script saves after a second; without a folder its rank ends, and the job with it.
    environ["TRAINWARDEN_CHECKPOINTS"] = str(tmp_path / "checkpoints")
    with (tmp_path / "out").open("wb") as out:
        process = subprocess.Popen([*WARDEN, *launch, str(tmp_path / "log")], env=environ, stdout=out, stderr=out)

    def job(word: str, who: str) -> subprocess.CompletedProcess[str]:
        asked = ["job", word, "--job", "j", "--rdzv", rdzv, "--token-file", str(tmp_path / who), "--wait", "20"]
        asked += ["--why", "the room is hot"]
        return subprocess.run([*WARDEN, *asked], capture_output=True, text=True, timeout=60, check=False)

    try:
        until_s = time.monotonic() + 120.0
        while "running" not in (seen := job("status", "ann")).stdout + seen.stderr:
            assert time.monotonic() < until_s, f"{seen}\n{(tmp_path / 'out').read_text()}"
        assert seen.returncode == 0
        refused = job("suspend", "ann")
        assert refused.returncode == 1
        assert "ann has the role observe; this needs act" in refused.stdout + refused.stderr
        assert job("status", "people").returncode == 2
        assert job("stop", "bob").returncode == 0
        assert process.wait(120) == 143
        told = [json.loads(line)["fields"] for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
        words = [one for one in told if "verb" in one]
        assert [one["stage"] for one in words[-1:]] == ["done"]
        assert {(one["verb"], one["by"], one["why"]) for one in words} == {
            ("stop", f"bob (act), as {user()}", "the room is hot")
        }
    finally:
        process.terminate()
        process.wait(120)
