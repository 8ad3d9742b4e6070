"""What a person sees of `trainwarden train`: bars, lines, the table, and one sentence after Ctrl-C."""

from __future__ import annotations

import io
import re
import signal

import pytest
from rich.console import Console

from trainwarden.cli.learn import train as command
from trainwarden.cli.learn.progress import TrainingProgress
from trainwarden.cli.learn.table import table_of_versions
from trainwarden.cli.shared.output import Voice
from trainwarden.detectors.metrics.bundle.preparation import CONSTANT
from trainwarden.errors import ConfigError
from trainwarden.trainer_offline.registry import publish as register

GATE = {"passed": True, "reasons": ["fine"], "metrics": {"recall": 0.875, "false_alarms_per_machine_day": 0.5}}
LONG = "recall 0.1 of injected anomalies is below the floor of 0.5"
REJECTED = {
    "passed": False,
    "provisional": False,
    "reasons": [LONG, "0 false alarms in 0.1 machine-days"],
    "metrics": {"injected": True},
}
UNSURE = {
    "passed": False, "provisional": True, "reasons": ["too little to tell: x"],
    "metrics": {"false_alarms_per_machine_day": 4_432.0, "machine_days": 0.002},
}  # fmt: skip
ANSWERS = [
    {"detector": "neighbor_profile", "version": "12", "aliases": ["challenger", "champion"], "gate": GATE},
    {"detector": "lof", "version": "3", "aliases": [], "gate": REJECTED},
    {"detector": "pca", "version": "2", "aliases": ["provisional"], "gate": UNSURE},
    {"detector": "dtw", "version": "1", "aliases": [], "gate": {"passed": False, "reasons": [], "metrics": {}}},
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(width: int, stages) -> str:
    """The text that a terminal of `width` columns gets of a run, without its control sequences."""
    stream = Terminal()
    console = Console(file=stream, width=width, force_terminal=True, legacy_windows=False, _environ={"TERM": "xterm"})
    with TrainingProgress(Voice(stream=io.StringIO()), console=console) as progress:
        assert progress.drawn
        stages(progress)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue())


def run(progress: TrainingProgress) -> None:
    progress.begin("reading", "loading libraries")
    progress("preparing", "preparing 2 jobs", 0, 2)
    progress("preparing", "a job with [brackets] and a name that is far too long for a line " * 3, 1, 2)
    progress("fitting", "fitting host", 0, 3)
    progress("judging", "judging on the [last] job")
    progress("registering", "registering", 7, 8)


@pytest.mark.parametrize("address", ["scheduler:8786", "http://scheduler:8786", "tcp://scheduler", "tcp://a b:1"])
@pytest.mark.parametrize("how", ["option", "settings"])
def test_an_address_that_is_none_is_refused_before_anything_is_loaded(address, how, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "_trained", lambda *_: pytest.fail("libraries are loaded"))
    config = tmp_path / "site.toml"
    config.write_text(f'[trainer]\ndask = "{address}"\n' if how == "settings" else "")
    with pytest.raises(ConfigError, match="no address of a Dask scheduler"):
        command.train(data=tmp_path, dask=address if how == "option" else None, config=config)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_bars_fit_the_terminal_and_end_full(width):
    lines = [line for part in shown(width, run).split("\n") for line in part.split("\r")]
    bars = [line for line in lines if line.strip() and "judging on" not in line]
    assert max(map(len, bars)) <= width - 3, "the ^C that a terminal writes has room on the line"
    last = {line.split()[1]: line for line in lines if len(line.split()) > 2}
    for stage, count in (("preparing", "2/2"), ("fitting", "3/3"), ("registering", "8/8")):
        assert count in last[stage]
    assert any("judging on the [last] job" in line for line in lines), "a remark stands above the bars"


def test_an_error_leaves_the_bars_where_they_were():
    def fails(progress):
        progress("fitting", "fitting", 1, 3)
        raise ValueError

    stream = Terminal()
    console = Console(file=stream, width=80, force_terminal=True, legacy_windows=False, _environ={"TERM": "xterm"})
    with pytest.raises(ValueError), TrainingProgress(Voice(stream=io.StringIO()), console=console) as progress:
        fails(progress)
    assert "1/3" in stream.getvalue()
    assert "3/3" not in stream.getvalue()


@pytest.mark.parametrize(
    ("bars", "console"),
    [
        (False, Console(file=Terminal(), force_terminal=True, _environ={"TERM": "xterm"})),
        (True, Console(file=io.StringIO())),
        (True, Console(file=Terminal(), force_terminal=True, _environ={"TERM": "dumb"})),
    ],
)
def test_elsewhere_there_are_lines(bars, console):
    out = io.StringIO()
    with TrainingProgress(Voice(stream=out), bars=bars, console=console) as progress:
        run(progress)
        assert not progress.drawn
    assert out.getvalue().splitlines()[0] == "[0/2] preparing 2 jobs"
    assert "judging on the [last] job" in out.getvalue().splitlines()
    assert console.file.getvalue() == ""


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits_and_says_why(width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    measured = {"gpu": {"weight": 0.5, "why": "right in 3 of 9 alarms"}, "nic": {"weight": 1.0, "why": "no alarm"}}
    weighed = [one | {"weights": measured if one["detector"] == "neighbor_profile" else {}} for one in ANSWERS]
    table_of_versions(Voice(stream=out), weighed)
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    lines = text.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= width
    assert lines[0].split() == ["detector", "weight", "version", "aliases", "gate", "recall", "false/day"]
    whole = next(line for line in lines if line.startswith("neighbor_profile"))
    assert "0.5 to 1" in whole
    assert "neighbor_profile 12 weighs 0.5 of gpu: right in 3 of 9 alarms" in " ".join(text.split())
    assert "0.875" in whole
    assert LONG in " ".join(text.split())
    assert "pca 2 provisional: too little to tell: x" in text
    assert "4.43e" not in text, "minutes tell no rate per day"
    assert "serves with a seventh of its weight" in " ".join(text.split())
    assert "dtw 1 unfinished: its training run was stopped" in text
    assert "injected anomalies of known size" in text


def test_metrics_that_never_moved_are_named(monkeypatch, tmp_path, capsys):
    dropped = [
        {"name": "GPU/errors", "why": CONSTANT},
        {"name": "power_twice", "why": "near-duplicate of power"},
    ]
    card = {"rows": 9, "jobs": 1, "metrics_kept": ["power"], "metrics_dropped": dropped, "notes": []}
    answer = {"data": card, "wall_s": 1.0, "registry": "r", "models": ANSWERS[2:3]}
    monkeypatch.setattr(command, "_trained", lambda asked, progress: answer)
    assert command.train(data=tmp_path) == 0, "a provisional version serves"
    said = "1 metrics never moved, so models learn nothing of them and still_metrics watches them live: GPU/errors"
    assert said in capsys.readouterr().out.splitlines()
    card["metrics_dropped"] = dropped[1:]
    answer["models"] = ANSWERS[1:2]
    assert command.train(data=tmp_path) == 1, "all were rejected"
    assert "never moved" not in capsys.readouterr().out


def test_in_a_file_no_line_is_folded():
    out = io.StringIO()
    table_of_versions(Voice(stream=out), ANSWERS)
    assert f"lof 3 rejected: {LONG}; 0 false alarms in 0.1 machine-days" in out.getvalue().splitlines()


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        ([], "stopped while starting: nothing was registered"),
        ([("fitting", "x", 1, 2)], "stopped while fitting: nothing was registered"),
        ([("registering", "x", 1, 2)], "no alias has moved"),
        ([("registering", "x", 2, 2)], "stopped when everything was registered"),
    ],
)
def test_ctrl_c_is_one_sentence_and_130(steps, sentence, monkeypatch, tmp_path, capsys):
    def stopped(asked, progress):
        progress._stage = None
        for one in steps:
            progress(*one)
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_trained", stopped)
    code = command.train(data=tmp_path, json="-")
    assert code == 130
    said = capsys.readouterr()
    assert said.out == ""
    assert sentence in said.err.splitlines()[-1]
    assert said.err.splitlines()[-1].startswith("trainwarden: ")


@pytest.fixture
def heard():
    """SIGINT is heard, though these tests may have been started in the background, where shells ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_ctrl_c_waits_until_all_aliases_have_moved():
    moved = []

    def move():
        with register._uninterrupted():
            signal.raise_signal(signal.SIGINT)
            moved.append("all")

    with pytest.raises(KeyboardInterrupt):
        move()
    assert moved == ["all"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
