"""Programs that fail before they train, told by real services: under `watch` behind a shell, and under `up`."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.system.runs import LEAN, WARDEN
from tests.system.torchrun_nodes import until
from trainwarden.bus import address as buses
from trainwarden.records import IncidentRecord
from trainwarden.settings import Settings
from trainwarden.topics import INCIDENTS

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]
JOINING = re.compile(r"^a job joins it by its environment: env (.+) python train\.py$", re.MULTILINE)
RAISES = "raise ValueError('no lr')"
WAITS = "input()"


@pytest.mark.parametrize(
    ("command", "answer", "kinds"),
    [
        ("$PYTHON train.py; true", "incident", ["exception"]),
        ("$PYTHON train.py || true; echo done", "incident", ["exception"]),
        ("$PYTHON -c 'import nothing' || echo without", "not judged", []),
        ("$PYTHON exits.py || true; grep nothing train.py; true", "not judged", []),
        ("$PYTHON train.py || $PYTHON well.py", "not judged", []),
    ],
)
def test_behind_a_shell_that_ends_well_only_the_last_word_is_an_incident(
    command: str, answer: str, kinds: list[str], tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(RAISES)
    (tmp_path / "exits.py").write_text("import sys; sys.exit(3)")
    (tmp_path / "well.py").write_text("print('well')")
    environ = {**os.environ, **LEAN, "PYTHON": sys.executable, "XDG_STATE_HOME": str(tmp_path / "state")}
    done = subprocess.run(
        [*WARDEN, "watch", "--json", "out.json", "--", "sh", "-c", command], cwd=tmp_path, env=environ,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    result = json.loads((tmp_path / "out.json").read_text())
    assert (done.returncode, result["exit_code"]) == (0, 0)
    assert (result["answer"], [one["kind"] for one in result["incidents"]]) == (answer, kinds), done.stderr[-3000:]
    if "exits.py" in command:
        assert "exits.py ended before it trained: exit code 3" in result["not_judged"][0]["reason"]


def test_under_up_a_plain_python_that_ends_before_it_trains_is_an_incident_of_its_own_each_time(tmp_path: Path) -> None:
    bus = f"embedded:{tmp_path / 'bus.db'}"
    environ = {**os.environ, **LEAN, "TRAINWARDEN_BUS": bus}
    (tmp_path / "settings.toml").write_text('[engine]\nmode = "observe"\n')

    def said() -> str:
        found = JOINING.search((tmp_path / "up.log").read_text())
        return "" if found is None else found[1]

    def incidents() -> list[IncidentRecord]:
        connected = buses.connect(bus, Settings().kafka)
        try:
            newest = {one.record.id: one.record for one in connected.read(INCIDENTS)}
        finally:
            connected.close()
        return [one for one in newest.values() if isinstance(one, IncidentRecord)]

    with ExitStack() as over, (tmp_path / "up.log").open("wb") as log:
        words = [*WARDEN, "up", "--config", "settings.toml", "--run-dir", str(tmp_path / "run")]
        up = subprocess.Popen(words, cwd=tmp_path, env=environ, stdout=log, stderr=log)
        over.callback(up.wait, 60)
        over.callback(up.terminate)
        until(said, "up does not say how a job joins it")
        joined = {**os.environ, **dict(word.split("=", 1) for word in shlex.split(said()))}

        def start(program: str) -> subprocess.Popen[bytes]:
            (tmp_path / "train.py").write_text(program)
            command = [sys.executable, "train.py"]
            return subprocess.Popen(command, cwd=tmp_path, env=joined, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)

        start(RAISES).communicate(timeout=60)
        until(lambda: any("no lr" in one.reason for one in incidents()), "the exception is not told")
        until(lambda: incidents()[0].state == "closed", "nobody sees that all is over")
        waits = start(WAITS)
        until(lambda: list((tmp_path / "run" / "hook").glob(f"*-{waits.pid}.begun")), "the program leaves no file")
        waits.send_signal(signal.SIGKILL)
        waits.communicate()
        until(lambda: any("SIGKILL" in one.reason for one in incidents()), "the kill is not told")
    assert [one.kind for one in incidents()] == ["exception", "crash"]
    assert all(one.reason.endswith("before its first step") for one in incidents())
