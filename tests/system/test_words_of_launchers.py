"""A command that nothing of ours runs in: the rank that its launcher says has ended is named."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

WARDEN = [sys.executable, "-m", "trainwarden.cli.main"]


@pytest.mark.parametrize(
    ("said", "code", "rank", "node"),
    [
        ("mpirun noticed that process rank 2 with PID 72 on node gb exited on signal 9 (Killed).", 137, 2, "gb"),
        ("ERROR:composer.cli.launcher:Rank 2 crashed with exit code 1.", 1, 2, None),
        ("[launch.py:325:sigkill_handler] ['python', '--local_rank=2'] exits with return code = -11", 245, None, None),
    ],
)  # DeepSpeed's launcher prints the command of its last process, whichever ended
def test_watch_names_the_rank_that_the_launcher_of_a_silent_job_names(
    tmp_path: Path, said: str, code: int, rank: int | None, node: str | None
) -> None:
    script = tmp_path / "job.sh"
    script.write_text(f'echo "step 1 loss 2.1"\nsleep 1\necho "{said}"\nexit {code}\n')
    out = tmp_path / "out.json"
    words = ["watch", "--json", str(out), "--", "sh", str(script)]
    done = subprocess.run([*WARDEN, *words], cwd=tmp_path, capture_output=True, timeout=100, check=False)
    assert done.returncode == code
    (incident,) = json.loads(out.read_text())["incidents"]
    assert (incident["kind"], incident["suspects"][0]["rank"]) == ("crash", rank)
    assert node in {None, incident["suspects"][0]["node"]}
