"""The wheel alone, without any extra: what it promises to run runs, and what it cannot run names the extra."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import tomllib
import urllib.request
from importlib.metadata import distribution, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.places import ROOT
from tests.system.test_wheel import BELOW, wheel  # noqa: F401 - a fixture
from tests.unit.detectors import recordings

pytestmark = [pytest.mark.system, pytest.mark.timeout(280)]

HERE_S = 60.0  # that a service may take to be there, on a machine with more work than processors
TRAINING = """
import time
from trainwarden import hook
for step in range(40):
    time.sleep(0.05)
    hook.iteration(step)
"""


class Installed:
    """The wheel in an environment of its own, with its core dependencies alone, or those of one extra beside them."""

    def __init__(self, folder: Path, built: Path, extra: str | None = None) -> None:
        self.folder = folder
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "env")], check=True, timeout=120)
        self.python = folder / "env" / "bin" / "python"
        site = next((folder / "env" / "lib").glob("python*")) / "site-packages"
        pip = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(self.python),
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
        ]
        subprocess.run([*pip, str(built)], check=True, timeout=120, capture_output=True)
        (site / "core.pth").write_text(str(core_packages(folder / "core", extra)))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRAINWARDEN"))}
        self.environ = {**kept, "XDG_STATE_HOME": str(folder / "state")}

    def command(self, *words: str) -> list[str]:
        return [str(self.python), "-P", "-m", "trainwarden", *words]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words), env=self.environ, cwd=self.folder, capture_output=True, text=True, timeout=150,
            check=False,
        )  # fmt: skip

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*words), env=self.environ, cwd=self.folder, text=True, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )  # fmt: skip


def core_packages(folder: Path, extra: str | None = None) -> Path:
    """A folder with links to what the base installation requires, with `extra` beside it, and no more."""
    folder.mkdir()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + ([] if extra is None else project["optional-dependencies"][extra])
    todo, seen = [Requirement(one) for one in wanted], set[tuple[str, frozenset[str]]]()
    while todo:
        wants = todo.pop()
        name, extras = re.sub(r"[-_.]+", "-", wants.name).lower(), frozenset({"", *wants.extras})
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        todo += [
            one
            for one in map(Requirement, requires(name) or ())
            if one.marker is None or any(one.marker.evaluate({"extra": each}) for each in extras)
        ]
        for file in distribution(name).files or ():
            top = file.parts[0]
            source = Path(str(distribution(name).locate_file(top)))
            if top not in ("..", "__pycache__") and source.exists() and not (folder / top).exists():
                (folder / top).symlink_to(source)
    return folder


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:  # noqa: F811
    return Installed(tmp_path_factory.mktemp("bare"), wheel)


@pytest.fixture(scope="module")
def with_torch(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:  # noqa: F811
    return Installed(tmp_path_factory.mktemp("torch"), wheel, "example")


def test_nothing_of_an_extra_is_there(installed: Installed) -> None:
    names = ("torch", "mlflow", "pytest")
    code = f"import importlib.util as u, sys; sys.exit(sum(u.find_spec(name) is not None for name in {names}))"
    assert subprocess.run([str(installed.python), "-c", code], env=installed.environ, check=False).returncode == 0
    assert sysconfig.get_path("purelib") not in installed.run("--version").stdout


def test_watch_judges_a_job(installed: Installed) -> None:
    done = installed.run("watch", "--json", "watch.json", "--", str(installed.python), "-c", TRAINING)
    made = json.loads((installed.folder / "watch.json").read_text())
    assert done.returncode == 0, done.stderr
    assert made["answer"] == "healthy", done.stderr
    assert made["watched"]["steps"] >= 30
    assert "change_point" in made["watched"]["detectors"] or "hard_event" in made["watched"]["detectors"]
    assert "healthy, no incident: " in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", ["status", "incidents", "explain", "report", "runs", "nodes", "actions"])
def test_where_nothing_has_run_a_question_is_not_judged(command: str, installed: Installed, tmp_path: Path) -> None:
    done = subprocess.run(
        installed.command(command), env={**installed.environ, "XDG_STATE_HOME": str(tmp_path)}, cwd=tmp_path,
        capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert (done.returncode, "NOT JUDGED: " in done.stdout + done.stderr) == (3, True), done.stdout + done.stderr


def test_a_failed_job_is_explained_and_its_status_told(installed: Installed) -> None:
    done = installed.run("watch", "--json", "failed.json", "--", str(installed.python), "-c", "import dta")
    (incident,) = json.loads((installed.folder / "failed.json").read_text())["incidents"]
    assert (done.returncode, incident["kind"]) == (1, "user_error")
    assert installed.run("status").returncode == 1
    explained = installed.run("explain")
    assert explained.returncode == 0, explained.stderr
    assert "No module named 'dta'" in explained.stdout
    assert "docs/" not in explained.stdout  # an installation has no such folder
    assert "## What you do" in installed.run("explain", "--all").stdout
    reported = installed.run("report", "--out", "report.html")
    assert reported.returncode == 0, reported.stderr


def test_launch_runs_ranks(with_torch: Installed) -> None:
    python = str(with_torch.python)
    done = with_torch.run("launch", "--nproc", "2", "--json", "launch.json", "--", python, "-c", "1 / 0")
    made = json.loads((with_torch.folder / "launch.json").read_text())
    assert (done.returncode, made["answer"]) == (1, "incident"), done.stdout + done.stderr
    assert "ZeroDivisionError" in made["incidents"][0]["reason"]
    assert made["incidents"][0]["suspects"][0]["rank"] in (0, 1)


def test_launch_without_torch_names_what_watches_the_command(installed: Installed) -> None:
    done = installed.run("launch", "--nproc", "1", "--", "touch", "started")
    assert (done.returncode, done.stdout) == (2, "")
    (said,) = done.stderr.strip().splitlines()
    assert "a command without it is watched by trainwarden watch" in said
    assert not (installed.folder / "started").exists()


def test_detect_judges_a_recording(installed: Installed) -> None:
    folder = recordings.write(recordings.job(iterations=recordings.iterations()), installed.folder / "calm")
    done = installed.run("detect", "--data", str(folder))
    assert done.returncode == 0, done.stderr
    assert "healthy: no incident" in done.stdout


def test_up_brings_every_service_and_the_page(installed: Installed) -> None:
    with installed.start("up", "--run-dir", "up") as up:
        try:
            assert up.stdout is not None
            page, said, until_s = "", "", time.monotonic() + HERE_S
            while not page and time.monotonic() < until_s:
                line = up.stdout.readline()
                assert line, "up has ended"
                said, page = said + line, line.partition("page: ")[2].strip()
            assert "a job joins it by its environment: env TRAINWARDEN_JOB=" in said
            browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
            with browser.open(page, timeout=30) as answer:
                assert b"trainwarden" in answer.read()
        finally:
            up.send_signal(signal.SIGINT)
            assert up.wait(60) == 0


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A user's own packages, all with names of folders of ours, and a training that imports them."""
    for name in BELOW:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(f"OWNER = 'user of {name}'\n")
    own = "".join(f"import {name}\nassert {name}.OWNER == 'user of {name}'\n" for name in BELOW)
    (tmp_path / "train.py").write_text(own + TRAINING)
    return tmp_path


@pytest.mark.parametrize("words", [("watch",), ("launch", "--nproc", "2", "--mode", "auto")], ids=["watch", "launch"])
def test_packages_of_the_users_own_with_names_of_ours_stay_apart(
    words: tuple[str, ...], request: pytest.FixtureRequest, repository: Path
) -> None:
    """`python -m` puts the working directory first on the path, and so does PYTHONPATH=. for all that is started."""
    installed: Installed = request.getfixturevalue("with_torch" if words[0] == "launch" else "installed")
    python = str(installed.python)
    done = subprocess.run(
        [python, "-m", "trainwarden", *words, "--json", "out.json", "--", python, "train.py"],
        env={**installed.environ, "PYTHONPATH": "."}, cwd=repository, capture_output=True, text=True, timeout=150,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((repository / "out.json").read_text())["answer"] == "healthy"


@pytest.mark.parametrize("python", ["the wheel", "this environment"])
def test_importing_such_a_name_finds_nothing_of_ours(python: str, installed: Installed, tmp_path: Path) -> None:
    """Neither by the wheel nor, in a clone's environment, by the editable installation."""
    code = f"import importlib.util as u, trainwarden; print([one for one in {BELOW} if u.find_spec(one)])"
    command = [str(installed.python) if python == "the wheel" else sys.executable, "-c", code]
    done = subprocess.run(command, env=installed.environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("demo",), "example"),
        (("train", "--data", "calm"), "train"),
        (("models", "list"), "train"),
        (("watch", "--config", "models.toml", "--", "touch", "started"), "train"),
        (("launch", "--nproc", "1", "--config", "models.toml", "--", "touch", "started"), "train"),
        (("up", "--config", "models.toml"), "train"),
        (("trainer",), "train"),
        (("detector", "--config", "models.toml"), "train"),
        (("engine", "--config", "kubernetes.toml"), "kubernetes"),
        (("agent", "--config", "lz4.toml"), "compression"),
    ],
)
def test_what_needs_an_extra_names_it_before_anything_starts(
    words: tuple[str, ...], extra: str, request: pytest.FixtureRequest
) -> None:
    installed: Installed = request.getfixturevalue("with_torch" if words[0] == "launch" else "installed")
    (installed.folder / "models.toml").write_text('[detection]\nmodels = "http://127.0.0.1:9/"\n')
    (installed.folder / "kubernetes.toml").write_text('[engine]\nlauncher = "kubernetes"\n')
    (installed.folder / "lz4.toml").write_text('bus = "kafka://127.0.0.1:9"\n[kafka]\ncompression = "lz4"\n')
    done = installed.run(*words)
    assert done.returncode == 2, done.stdout + done.stderr
    (said,) = done.stderr.strip().splitlines()
    assert f"pip install 'trainwarden[{extra}]'" in said
    assert not (installed.folder / "started").exists()
