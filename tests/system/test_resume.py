"""A restart goes on from the newest whole checkpoint, or the job is stopped with a word."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.places import ROOT
from tests.system.runs import WARDEN

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

# Dies at step 12 of its first attempt, with whole checkpoints of steps 5 and 10 and half of one of 11.
RANK = """
import os, sys, time
from pathlib import Path
from trainwarden import hook
folder, attempt = Path(os.environ["TRAINWARDEN_CHECKPOINTS"]), int(os.environ["TRAINWARDEN_ATTEMPT"])
named = os.environ.get("TRAINWARDEN_RESUME_FROM")
first = int(named.rpartition("-")[2]) if named and sys.argv[1] == "obeys" else 0
print(f"attempt {attempt} starts at {first}", flush=True)
for step in range(first, 40):
    hook.set_step(step)
    time.sleep(0.1)
    hook.iteration()
    if attempt == 0 and step in (4, 9, 10):
        (folder / f"step-{step + 1}").mkdir(parents=True, exist_ok=True)
        if step != 10:
            (folder / f"step-{step + 1}" / ".metadata").write_text("whole")
    if attempt == 0 and step == 12:
        sys.exit(3)
"""


def launched(tmp_path: Path, word: str, text: str = RANK, ranks: str = "2") -> tuple[dict[str, Any], str]:
    script, out = tmp_path / "train.py", tmp_path / "out.json"
    script.write_text(text)
    words = ["--nproc", ranks, "--mode", "auto", "--job", "j", "--checkpoints", str(tmp_path / "ckpt")]
    ended = subprocess.run(
        [*WARDEN, "launch", *words, "--json", str(out), "--", sys.executable, str(script), word],
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=150, cwd=tmp_path, check=False,
    )  # fmt: skip
    return json.loads(out.read_text()), ended.stdout + ended.stderr


def test_a_job_that_goes_on_from_its_checkpoint_ends_well(tmp_path: Path) -> None:
    result, said = launched(tmp_path, "obeys")
    assert result["exit_code"] == 0, said
    assert said.count("attempt 1 starts at 10") == 2
    assert [one["kind"] for one in result["actions"] if one["outcome"] == "started"] == []  # the rendezvous did it


def test_a_job_that_starts_over_is_stopped_and_not_started_again(tmp_path: Path) -> None:
    result, said = launched(tmp_path, "forgets")
    assert result["exit_code"] == 1, said
    assert "attempt 2 starts" not in said
    assert "started over at step 0 although the checkpoint of step 10 is complete" in said


def test_the_script_of_the_page_goes_on(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "checkpoints.md").read_text()
    found = re.search(r"\n((?:    .*\n|\n)*    import os, torch\n(?:    .*\n|\n)*)", page)
    assert found is not None
    script = "\n".join(line[4:] for line in found[1].splitlines()).replace("1000", "250")
    script += "print('first', first, flush=True)\n"
    for first in (0, 200):
        result, said = launched(tmp_path, "", script, ranks="1")
        assert result["exit_code"] == 0, said
        assert said.count(f"first {first}\n") == 1
