"""Settings: one clear sentence per mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwarden import collectors, plugins
from trainwarden.errors import ConfigError
from trainwarden.settings import Settings, load


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trainwarden.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults_need_no_file() -> None:
    settings = load(None, {})
    assert settings.engine.mode == "observe"
    assert settings.bus.startswith("embedded:")
    assert "iterations" in plugins.chosen(collectors.CATALOG, collectors.ENTRY_POINTS, settings.agent.collectors)


def test_file_then_environment(tmp_path: Path) -> None:
    path = written(tmp_path, 'job = "a"\n[engine]\nmode = "confirm"\nactions_per_hour = 3\n')
    settings = load(path, {"TRAINWARDEN_JOB": "b", "TRAINWARDEN_ENGINE_ACTIONS_PER_HOUR": "5"})
    assert (settings.job, settings.engine.mode, settings.engine.actions_per_hour) == ("b", "confirm", 5)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('jobb = "a"', "unknown key `jobb`"),
        ("[engine]\nmod = 1", "unknown key `mod` at engine"),
        ('[engine]\nmode = "yolo"', "invalid enum value 'yolo' at engine.mode"),
        ("[engine]\nactions_per_hour = -1", "expected `int` >= 0 at engine.actions_per_hour"),
        ("[engine]\nactions_per_hour = 1.5", "expected `int`, got `float` at engine.actions_per_hour"),
        ('[agent]\nflush_timeout_s = "5 s"', "expected `float`, got `str` at agent.flush_timeout_s"),
        ("[agent]\nflush_timeout_s = 0.0", "expected `float` > 0.0 at agent.flush_timeout_s"),
        ('job = "a b"', "expected `str` matching regex"),
        ("job = ", "is not valid TOML"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(path, {})
    message = str(caught.value)
    assert message.startswith(str(path))
    assert sentence in message
    assert "\n" not in message


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.toml", {})


def test_top_level_keys_come_from_the_environment_too() -> None:
    settings = load(None, {"TRAINWARDEN_BUS": "embedded:x", "TRAINWARDEN_NODE": "n1", "TRAINWARDEN_RUN_DIR": "r"})
    assert (settings.bus, settings.node, settings.run_dir) == ("embedded:x", "n1", "r")
    assert Settings().run_dir is None


def test_unknown_plugin_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match="no detectors plug-in 'magic'; there are: a, b"):
        plugins.load({"b": "m:B", "a": "m:A"}, "trainwarden.detectors", "magic")
