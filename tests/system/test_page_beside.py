"""The page that watch and up bring with them: said once, there while they run, gone with them, never in their way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = [pytest.mark.system, pytest.mark.timeout(120)]

WARDEN = [sys.executable, "-m", "trainwarden.cli.main"]
# No terminal is listening to a job, so the file that holds the token is said instead.
PAGE_OF_UP = re.compile(r"^page: http://localhost:(\d+)/enter\?token=\S+$", re.MULTILINE)
PAGE = re.compile(
    r"^(?:trainwarden: )?page: http://localhost:(\d+)/ \(its address with the token: (\S+)\)$", re.MULTILINE
)
# A stand-in for an environment without the extra: the first of its imports fails.
MISSING = "raise ModuleNotFoundError(\"No module named 'uvicorn'\", name='uvicorn')"


@contextmanager
def running(place: Path, words: Sequence[str], environ: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    with (place / "said").open("wb") as said:
        process = subprocess.Popen(
            [*WARDEN, *words], env={**os.environ, **environ}, cwd=place, stdout=said, stderr=said
        )
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def said(place: Path, pattern: re.Pattern[str], within_s: float = 120.0) -> re.Match[str]:
    end_s = time.monotonic() + within_s
    while time.monotonic() < end_s:
        if found := pattern.search((place / "said").read_text()):
            return found
        time.sleep(0.1)
    raise AssertionError(f"{pattern.pattern} was not said:\n{(place / 'said').read_text()[-3000:]}")


def answers(port: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://localhost:{port}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def test_watch_has_a_page_as_long_as_it_runs(tmp_path: Path) -> None:
    command = ["watch", "--job", "seen", "--", "sh", "-c", "while [ ! -e enough ]; do sleep 0.1; done; exit 3"]
    with running(tmp_path, command, {}) as process:
        port, kept = said(tmp_path, PAGE).groups()
        entrance = Path(kept).read_text().strip()
        assert entrance.startswith(f"http://localhost:{port}/enter?token=")
        assert Path(kept).stat().st_mode & 0o777 == 0o600
        assert "token=" not in (tmp_path / "said").read_text()
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(entrance, timeout=20) as first:
            assert (first.url, first.status) == (f"http://localhost:{port}/", 200)
        (tmp_path / "enough").touch()
        assert process.wait(60) == 3
    assert not answers(port)


def test_without_the_extra_watch_says_so_and_goes_on(tmp_path: Path) -> None:
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "uvicorn.py").write_text(MISSING)
    path = os.pathsep.join([str(shadow), os.environ.get("PYTHONPATH", "")])
    command = ["watch", "--", "sh", "-c", "while [ ! -e enough ]; do sleep 0.1; done; exit 4"]
    with running(tmp_path, command, {"PYTHONPATH": path}) as process:
        said(
            tmp_path, re.compile(r"^trainwarden: no page: trainwarden: serve: uvicorn is not installed; ", re.MULTILINE)
        )
        (tmp_path / "enough").touch()
        assert process.wait(60) == 4


def test_a_run_can_do_without(tmp_path: Path) -> None:
    with running(tmp_path, ["watch", "--", "true"], {"TRAINWARDEN_RUNS_PAGE": "false"}) as process:
        assert process.wait(60) == 0
    assert "page:" not in (tmp_path / "said").read_text()


def test_up_prints_its_page_and_lives_without_one_where_the_port_is_taken(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    up = ["up", "--run-dir", "run"]
    with running(tmp_path / "one", up, {"TRAINWARDEN_SERVE_LISTEN": "'127.0.0.1:0'"}):
        port = said(tmp_path / "one", PAGE_OF_UP)[1]
        with running(tmp_path / "two", up, {"TRAINWARDEN_SERVE_LISTEN": f"'127.0.0.1:{port}'"}) as second:
            said(
                tmp_path / "two",
                re.compile(r"^no page: trainwarden: serve.listen: .*cannot be listened on", re.MULTILINE),
            )
            assert second.poll() is None
    assert not answers(port)
