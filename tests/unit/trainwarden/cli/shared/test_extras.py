"""What an installation lacks is said in one sentence before anything starts, by services of their own too."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.trainwarden.cli.test_main import run
from trainwarden.bus.kafka import client
from trainwarden.cli.shared import extras

KAFKA = 'bus = "kafka://127.0.0.1:9"\n[kafka]\ncompression = "lz4"\n'
SERVICES = [
    ("trainer", "", "mlflow", "trainer needs mlflow: pip install 'trainwarden[train]'"),
    ("trainer", '[trainer]\ndask = "tcp://s:8786"\n', "distributed", "trainer.dask needs distributed"),
    ("detector", '[detection]\nmodels = "http://127.0.0.1:9/"\n', "mlflow", "pip install 'trainwarden[train]'"),
    ("engine", '[engine]\nlauncher = "kubernetes"\n', "kubernetes", "pip install 'trainwarden[kubernetes]'"),
    *((name, KAFKA, "lz4", "pip install 'trainwarden[compression]'") for name in ("agent", "detector", "archive")),
]


@pytest.mark.parametrize(("service", "settings", "missing", "says"), SERVICES)
def test_a_service_that_lacks_something_says_what_and_ends(
    service: str, settings: str, missing: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == missing else object())
    monkeypatch.setitem(client._INSTALLED, "lz4", missing != "lz4")
    monkeypatch.setattr("trainwarden.cli.serve.process.StopFlag", lambda **_: lambda: True)
    (tmp_path / "t.toml").write_text(settings)
    assert run(monkeypatch, service, "--config", "t.toml") == 2
    (line,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("trainwarden: ")]
    assert says in line
    assert [one.name for one in tmp_path.iterdir()] == ["t.toml"]  # before it makes its folders
