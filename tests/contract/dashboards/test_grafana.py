"""Dashboards and provisioning: the linter's rules, metrics that exist, and what Grafana's schema takes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.contract.dashboards.metric_names import known_names, names_in
from trainwarden.dashboards.alerts.table import ALERTS
from trainwarden.dashboards.generated import FOLDER

NAMES = ("fleet", "job", "incident", "node", "self")
BOARDS: dict[str, dict[str, Any]] = {
    name: json.loads((FOLDER / "grafana" / f"{name}.json").read_text(encoding="utf-8")) for name in NAMES
}
PANELS = [
    pytest.param(board, panel, id=f"{name}: {panel['title']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
]
BUILT_IN = {"__rate_interval", "datasource"}


def expressions() -> Iterator[str]:
    """Every expression of every dashboard, marks included."""
    for board in BOARDS.values():
        yield from (target["expr"] for panel in board["panels"] for target in panel["targets"])
        yield from (mark["expr"] for mark in board["annotations"]["list"])


def provisioned(name: str) -> Any:
    return yaml.safe_load((FOLDER / "provisioning" / name).read_text(encoding="utf-8"))


def test_there_are_no_others() -> None:
    assert {path.stem for path in (FOLDER / "grafana").glob("*.json")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_dashboard_is_what_the_schema_takes(name: str) -> None:
    """Read as the foundation SDK's types and written again, nothing is lost."""
    board = BOARDS[name]
    assert json.loads(JSONEncoder().encode(Dashboard.from_json(board))) == board
    assert (board["uid"], board["tags"]) == (f"trainwarden-{name}", ["trainwarden"])


@pytest.mark.parametrize("name", NAMES)
def test_panels_have_numbers_of_their_own_and_do_not_overlap(name: str) -> None:
    panels = BOARDS[name]["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    cells: set[tuple[int, int]] = set()
    for at in (panel["gridPos"] for panel in panels):
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert max(x for x, _ in own) < 24
        assert not own & cells
        cells |= own


@pytest.mark.parametrize("name", NAMES)
def test_variables_begin_with_the_source_and_are_all_used(name: str) -> None:
    board = BOARDS[name]
    first, *others = board["templating"]["list"]
    assert (first["name"], first["type"], first["query"]) == ("datasource", "datasource", "prometheus")
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(board["panels"]))) - {"__data", "__url_time_range"}
    assert used - BUILT_IN == {one["name"] for one in others}
    for one in others:
        assert names_in(re.sub(r"label_values\((\w+),.*", r"\1", one["query"]["query"])) <= known_names()


@pytest.mark.parametrize(("board", "panel"), PANELS)
def test_a_panel_keeps_the_linters_rules(board: dict[str, Any], panel: dict[str, Any]) -> None:
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert panel["title"]
    assert panel["datasource"] == source
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    for target in panel["targets"]:
        assert not re.search(r"\b(rate|irate|increase)\([^\[]*\[(?!\$__rate_interval\])", target["expr"])
        assert target.get("instant") or target.get("legendFormat"), "a line without a name"
        assert names_in(target["expr"])
        assert names_in(target["expr"]) - known_names() == set()
        picked = set(re.findall(r'(\w+)[=!]~?"\$(\w+)"', target["expr"]))
        assert {label for label, _ in picked} <= {"training_job", "kind", "node", "hostname", "Hostname"}
    assert board["annotations"]["list"][0]["datasource"] == source


@pytest.mark.parametrize("name", NAMES)
def test_incidents_and_actions_are_marks(name: str) -> None:
    marks = BOARDS[name]["annotations"]["list"]
    assert [mark["name"] for mark in marks] == ["Incidents", "Actions"]
    for mark in marks:
        assert names_in(mark["expr"]) <= known_names()
        assert mark["step"] == "1m"


@pytest.mark.thorough
def test_promtool_parses_every_expression(tmp_path: Path, require_servers: Callable[[str], NoReturn]) -> None:
    if shutil.which("promtool") is None:
        require_servers("promtool is not installed (Debian's package prometheus has it)")
    asked = sorted(
        {re.sub(r"\$__rate_interval", "1m", expr) for expr in expressions()} | {one["expr"] for one in _own()}
    )
    rules = [{"record": f"r{number}", "expr": expr} for number, expr in enumerate(asked)]
    path = tmp_path / "all.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}), encoding="utf-8")
    command = ["promtool", "check", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(asked)} rules found" in done.stdout


def _own() -> Iterator[dict[str, Any]]:
    """The first query of each of Grafana's own alerts."""
    for group in provisioned("alerting/rules.yml")["groups"]:
        yield from (rule["data"][0]["model"] for rule in group["rules"])


def test_grafanas_alerts_are_those_of_the_table() -> None:
    rules = [rule for group in provisioned("alerting/rules.yml")["groups"] for rule in group["rules"]]
    source = provisioned("datasources/trainwarden.yml")["datasources"][0]["uid"]
    assert [rule["title"] for rule in rules] == [alert.name for alert in ALERTS]
    for rule, alert in zip(rules, ALERTS, strict=True):
        assert len(rule["uid"]) <= 40
        asked, threshold = rule["data"]
        assert asked["model"]["expr"] == f"({alert.expr}) ^ 0"
        assert (asked["datasourceUid"], threshold["datasourceUid"]) == (source, "__expr__")
        assert (rule["condition"], threshold["model"]["expression"]) == (threshold["refId"], asked["refId"])
        assert rule["annotations"] == alert.annotations()
        assert "$" not in json.dumps(rule["labels"]), "Grafana fills in the environment there"
        assert rule["labels"].get("severity") == alert.severity


def test_notices_go_to_us_with_a_token_of_the_environment() -> None:
    (point,) = provisioned("alerting/contact_points.yml")["contactPoints"]
    (receiver,) = point["receivers"]
    assert receiver["settings"]["url"] == "${TRAINWARDEN_URL}/hooks/grafana"
    assert receiver["settings"]["authorization_credentials"] == "${TRAINWARDEN_GRAFANA_BEARER}"
    (policy,) = provisioned("alerting/policies.yml")["policies"]
    (route,) = policy["routes"]
    assert route["receiver"] == point["name"]
    ((label, compare, pattern),) = route["object_matchers"]
    assert (label, compare) == ("alertname", "=~")
    assert all(re.fullmatch(pattern, alert.name) for alert in ALERTS)


def test_the_provider_reads_the_folder_that_compose_mounts() -> None:
    (provider,) = provisioned("dashboards/trainwarden.yml")["providers"]
    compose = yaml.safe_load((FOLDER.resolve().parent / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    grafana = compose["services"]["grafana"]
    assert f"../dashboards/grafana:{provider['options']['path']}:ro" in grafana["volumes"]
    asked = set(
        re.findall(r"\$\{(TRAINWARDEN_\w+)\}", "".join(path.read_text() for path in FOLDER.glob("provisioning/*/*")))
    )
    assert asked == {"TRAINWARDEN_PROMETHEUS_URL", "TRAINWARDEN_URL", "TRAINWARDEN_GRAFANA_BEARER"}
    assert asked <= set(grafana["environment"])
