"""The table of alerts: built files are of today, ask only for what is told, and fire when they should."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from typing import NoReturn

import pytest
import yaml

from tests.contract.dashboards.metric_names import known_names, names_in
from trainwarden.dashboards.alerts.prometheus import RECORDINGS
from trainwarden.dashboards.alerts.table import ALERTS
from trainwarden.dashboards.generated import FOLDER, generated, main

TEST = FOLDER / "prometheus" / "trainwarden.test.yml"


TODAY = generated()


@pytest.mark.parametrize("name", sorted(TODAY))
def test_a_built_file_is_of_today(name: str) -> None:
    """`make dashboards` writes them."""
    assert (FOLDER / name).read_text(encoding="utf-8") == TODAY[name]


def test_what_is_not_of_today_is_said_and_written(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--to", str(tmp_path), "--runbooks", "https://wiki.example/r"]
    assert main(where) == 1
    assert "prometheus/trainwarden.rules.yml" in capsys.readouterr().out
    assert main([*where, "--write"]) == 0
    assert main(where) == 0
    assert "https://wiki.example/r/TrainwardenDown.md" in (tmp_path / "prometheus/trainwarden.rules.yml").read_text()


@pytest.mark.parametrize("one", [*ALERTS, *RECORDINGS], ids=lambda one: one.name)
def test_an_expression_asks_only_for_what_is_told(one) -> None:
    asked = names_in(one.expr)
    assert asked
    assert asked - known_names() == set()


def test_every_alert_is_seen_to_fire() -> None:
    text = TEST.read_text(encoding="utf-8")
    assert {alert.name for alert in ALERTS} - set(re.findall(r"Trainwarden\w+", text)) == set()
    assert len({alert.name for alert in ALERTS}) == len(ALERTS)


def test_what_an_alert_says_needs_nothing_of_the_other_system() -> None:
    """Both expand `$labels`, `with` and `reReplaceAll`; `$value` and `query` are another thing, or none, in Grafana."""
    for alert in ALERTS:
        said = " ".join(alert.annotations().values())
        assert not re.search(r"\$value|query", said), alert.name
        pasted = alert.command.replace('reReplaceAll "[^A-Za-z0-9._-]" "_" $labels', "")
        assert "$labels" not in pasted, f"{alert.name}: a label goes into a shell as it is"


@pytest.mark.thorough
def test_promtool_agrees(require_servers: Callable[[str], NoReturn]) -> None:
    if shutil.which("promtool") is None:
        require_servers("promtool is not installed (Debian's package prometheus has it)")
    for command in (["check", "rules", "trainwarden.rules.yml"], ["test", "rules", TEST.name]):
        done = subprocess.run(
            ["promtool", *command], cwd=TEST.parent, capture_output=True, text=True, timeout=900, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_rule_file_is_plain_yaml() -> None:
    groups = yaml.safe_load((FOLDER / "prometheus" / "trainwarden.rules.yml").read_text(encoding="utf-8"))["groups"]
    assert sum(len(group["rules"]) for group in groups) == len(ALERTS) + len(RECORDINGS)
