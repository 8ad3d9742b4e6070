"""The table of commands: each entry leads to its file, and nothing is imported for what was not asked."""

from __future__ import annotations

import inspect
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from tests.places import ROOT
from tests.unit.trainwarden.test_imports import modules_after
from trainwarden import __version__
from trainwarden.cli import main as command_line
from trainwarden.cli.lazy import load
from trainwarden.cli.main import COMMANDS

ROOMS = ROOT / "trainwarden" / "cli"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The console script with `arguments`; its exit code."""
    monkeypatch.setattr(sys, "argv", ["trainwarden", *arguments])
    with pytest.raises(SystemExit) as ended:
        command_line.run()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_lives_in_the_file_of_its_name_and_the_list_says_its_first_line(name: str) -> None:
    module, _, function = COMMANDS[name].place.partition(":")
    assert module.rpartition(".")[2] == function == name.replace("-", "_")
    documented = inspect.getdoc(getattr(import_module(module), function))
    assert documented is not None
    assert documented.splitlines()[0] == COMMANDS[name].line


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_explained_or_hidden(name: str) -> None:
    command = load(name, COMMANDS[name])
    assert command.name == name
    options = [one for one in command.params if one.param_type_name == "option"]
    assert all(one.help or one.hidden for one in options)


def test_the_list_shows_every_command_and_imports_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--help") == 0
    listed = capsys.readouterr().out.partition("Commands:")[2].split("\n")
    names = [line.split()[0] for line in listed if line.startswith("  ") and not line.startswith("   ")]
    assert names == list(COMMANDS)
    purposes = [line.rstrip(":") for line in listed if line and not line.startswith(" ")]
    assert purposes == ["Start", "Ask", "Operate", "Train models", "Set up"]


@pytest.mark.parametrize(("words", "own"), [("['--help']", set()), ("['plan', '--help']", {"learn", "learn.plan"})])
def test_only_the_file_of_the_command_is_imported(words: str, own: set[str]) -> None:
    asked = f"import contextlib, io; sys.argv[1:] = {words}; from trainwarden.cli import main; out = io.StringIO()"
    call = "exec('with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit): main.run()')"
    loaded = {name.removeprefix("trainwarden.cli.") for name in modules_after(f"{asked}; {call}")}
    rooms = {place.name for place in ROOMS.iterdir() if place.is_dir()} - {"shared", "__pycache__"}
    assert {name for name in loaded if name.partition(".")[0] in rooms} == own


@pytest.mark.parametrize(
    ("words", "says"), [(("statu",), "Did you mean 'status'"), (("nothing",), "No such command 'nothing'")]
)
def test_a_command_that_is_not_there_is_wrong_use(
    words: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *words) == 2
    assert says in capsys.readouterr().err


def test_what_a_command_returns_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TRAINWARDEN_BUS", f"embedded:{tmp_path}/none/bus.db")
    assert run(monkeypatch, "doctor") == 1
    assert " bad  bus: " in capsys.readouterr().out


def test_a_full_disk_behind_standard_output_is_one_sentence_and_no_anomaly() -> None:
    """Exit code 1 says that something was found."""
    with open("/dev/full", "wb") as full:
        said = subprocess.run(
            [sys.executable, "-m", "trainwarden.cli.main", "plan", "microbatches", "--json", "-"],
            input=b'{"micro_batch_s": [1.0, 2.0], "total": 4}', stdout=full, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    assert said.returncode == 2
    last = said.stderr.decode().splitlines()[-1]
    assert last == "trainwarden: standard output cannot be written (No space left on device)"


def test_the_version_is_the_wheels() -> None:
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert about["version"] == __version__


@pytest.mark.thorough
def test_python_m_trainwarden_is_the_command(tmp_path: Path) -> None:
    """Where scripts are not on PATH; arguments, exit codes and errors of use are those of the command."""
    wrong = tmp_path / "t.toml"
    wrong.write_text("jobb = 'a'")
    command = [sys.executable, "-m", "trainwarden"]
    version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
    assert (version.returncode, version.stdout, version.stderr) == (0, f"trainwarden {__version__}\n", "")
    mistaken = subprocess.run([*command, "check-config", str(wrong)], capture_output=True, text=True, check=False)
    assert (mistaken.returncode, mistaken.stdout) == (2, "")
    assert mistaken.stderr.startswith(f"trainwarden: {wrong}:1: unknown key `jobb`")


WITH_A_JOB = {
    "watch": ["--", "true"],
    "launch": ["--", "true"],
    "job": ["status", "--rdzv", "127.0.0.1:1"],
    "keeper": [],
    "incidents": [],
    "check": [],
    "explain": [],
    "report": [],
    "actions": [],
    "silences": [],
    "cordon": ["n1"],
    "uncordon": ["n1"],
    "detect": [],
    "checkpoints": [],
    "annotate": ["add", "--label", "normal"],
    "simulate": ["--ranks", "8", "--to", "folder"],
}


def test_all_commands_that_are_asked_about_a_job_are_in_the_table() -> None:
    commands = {name: load(name, entry) for name, entry in COMMANDS.items()}
    assert WITH_A_JOB.keys() == {
        name for name, command in commands.items() if any("--job" in one.opts for one in command.params)
    }


@pytest.mark.parametrize("job", ["a/b", "", "../x", "a b", "-x", "x" * 129, "j\n", "a\x1b[2J", "\u0661"])
@pytest.mark.parametrize("command", WITH_A_JOB)
def test_a_name_that_no_job_can_have_is_one_sentence_and_wrong_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, command: str, job: str
) -> None:
    monkeypatch.chdir(tmp_path)
    rest = WITH_A_JOB[command]
    words = [f"--job={job}", *rest] if "--" in rest else [*rest, f"--job={job}"]
    code = run(monkeypatch, command, *words)
    said = capsys.readouterr()
    assert code == (3 if command == "check" else 2), said  # to a Nagios 2 is CRITICAL, and wrong use UNKNOWN
    (line,) = (said.out + said.err).splitlines()
    assert "a job's name has up to 128 letters" in line
    assert line.isprintable()
    assert not list(tmp_path.iterdir())
