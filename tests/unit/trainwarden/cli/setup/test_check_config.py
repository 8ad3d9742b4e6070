"""`check-config`: one sentence per mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwarden.cli.setup.check_config import check_config
from trainwarden.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[agent.collectors.gpuu]", "no collectors plug-in 'gpuu'"),
        ("[agent.collectors.host]\nintervall_s = 1.0", "agent.collectors.host: unknown key"),
        ("[detection.detectors.peer_deviation]\nminimum_share = 2.0", "minimum_share"),
        ("[detection.ensemble]\nmetric_votes = -1.0", "detection.ensemble: expected"),
        ("[engine.policy]\nstale_s = 0.0", "engine.policy: expected"),
        ('[engine]\nremedies = "/nowhere/ours.toml"', "engine.remedies: /nowhere/ours.toml: cannot be read"),
        ('[engine]\nlauncher = "slurmm"', "no launchers plug-in 'slurmm'"),
    ],
)
def test_mistakes_in_plug_in_settings_are_found(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "t.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        check_config(path)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
