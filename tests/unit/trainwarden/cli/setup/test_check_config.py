"""`check-config`: one sentence per mistake, with its line, and all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwarden.cli.setup.check_config import check_config
from trainwarden.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[agent.collectors.gpuu]", "t.toml:1: there is no collectors plug-in 'gpuu'"),
        ("[agent.collectors.host]\nintervall_s = 1.0", "t.toml:2: agent.collectors.host: unknown key `intervall_s`"),
        ("[detection.detectors.peer_deviation]\nminimum_share = 2.0", "t.toml:2: detection.detectors.peer_deviation:"),
        ("[detection.ensemble]\nmetric_votes = -1.0", "t.toml:2: detection.ensemble: expected"),
        ("[detection.ensemble.weights]\nnonesuch = 1.0", "t.toml:1: detection.ensemble.weights: there is no"),
        ("[engine.policy]\n\nstale_s = 0.0", "t.toml:3: engine.policy: expected"),
        ('[engine]\nremedies = "/nowhere/ours.toml"', "t.toml:2: engine.remedies: /nowhere/ours.toml: cannot be read"),
        (
            '[detection.detectors.device_limits]\n\ntable = "/nowhere/ours.toml"',
            "t.toml:1: detection.detectors.device_limits: /nowhere/ours.toml: cannot be read",
        ),
        ('[engine]\nlauncher = "slurmm"', "t.toml:2: there is no launchers plug-in 'slurmm'"),
        ("[engine.launcher_settings]\nquickly = true", "t.toml:2: engine.launcher_settings: unknown key `quickly`"),
        ("[kafka]\npartitons = 8", "t.toml:2: kafka: unknown key `partitons`"),
        ("[trainer.gate]\nfloor = 8", "t.toml:2: trainer: unknown key `floor` at gate"),
        ('[serve]\nlistn = "x"', "t.toml:2: unknown key `listn` at serve"),
        ('[[serve.notices]]\nurl = "http://x"\nstyl = "slack"', "t.toml:3: serve.notices: unknown key `styl`"),
        ('[[serve.notices]]\nstyle = "slack"', "t.toml:1: serve.notices: number 1: name either url or url_file"),
        ('bus = "kafka://fd00::1"', "t.toml:1: bus: kafka: 'fd00::1' is not HOST:PORT; an IPv6 address stands in"),
        ('bus = "kafka://a:9092,,b:9092"', "t.toml:1: bus: kafka: '' is not HOST:PORT"),
        ('bus = "rabbit://a:1"', "t.toml:1: bus: 'rabbit://a:1' is neither"),
        ('[serve]\nlisten = "8760"', "t.toml:2: serve.listen: '8760' is not HOST:PORT"),
        ("jobb = 'a'", "t.toml:1: unknown key `jobb`"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_line(
    tmp_path: Path, text: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.toml"
    path.write_text(text)
    assert check_config(path) == 2
    (said,) = [line for line in capsys.readouterr().err.splitlines() if " note: " not in line]
    assert sentence in said


def test_every_mistake_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.toml"
    path.write_text(
        """
        job = "a b"
        [engine]
        mode = "yolo"
        actions_per_hour = -1
        [engine.policy]
        stale = 3
        launcher_deadline_s = "soon"
        [agent.collectors.host]
        intervall_s = 1.0
        [detection.detectors]
        nonesuch = true
        [kafka]
        partitons = 8
        """
    )
    assert check_config(path) == 2
    said = capsys.readouterr().err
    lines = [int(line.split("t.toml:")[1].split(":")[0]) for line in said.splitlines()]
    assert sorted(lines) == [2, 4, 5, 7, 8, 10, 12, 14]


def test_a_file_without_a_mistake_is_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.toml"
    path.write_text('job = "a"\n[engine]\nmode = "confirm"\n[detection.detectors]\nlof = false\n')
    assert check_config(path) == 0
    assert capsys.readouterr().out.endswith("t.toml: fine\n")


def test_a_file_that_is_nested_without_end_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text("a = " + "[" * 50_000)
    with pytest.raises(ConfigError, match="is not valid TOML"):
        check_config(path)
