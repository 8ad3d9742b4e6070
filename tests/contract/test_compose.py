"""What docker/compose.yaml promises of every container, read from the file."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
import yaml

from tests.places import ROOT
from trainwarden.cli.main import COMMANDS

DOCKER: Final = ROOT / "docker"
PROJECT: Final[dict[str, Any]] = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: Final[dict[str, Any]] = PROJECT["services"]
OURS: Final = sorted(name for name, one in SERVICES.items() if "build" in one)
SECRETIVE: Final = re.compile(r"(?i)pass(word)?|secret|token|api_?key|credential")


def test_all_of_it_is_there() -> None:
    theirs = {"kafka", "prometheus", "alertmanager", "grafana", "mlflow"}
    assert set(SERVICES) == {"agent", "detector", "engine", "archive", "trainer", "serve", "rendezvous", *theirs}


@pytest.mark.parametrize("name", SERVICES)
def test_a_container_is_pinned_limited_looked_after_and_has_no_new_rights(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"[a-z/]+:(v?\d+\.\d+\.\d+|\$\{TRAINWARDEN_VERSION:-\d+\.\d+\.\d+\})", service["image"])
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}
    assert service["restart"] == "unless-stopped"
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert "max-size" in service["logging"]["options"]
    assert "healthcheck" in service or "TRAINWARDEN_HEALTH_URL" in service["environment"]
    assert all(port.startswith("${TRAINWARDEN_BIND:-127.0.0.1}:") for port in service.get("ports", ()))
    assert not service.get("privileged", False)


@pytest.mark.parametrize("name", OURS)
def test_ours_write_nothing_but_their_volumes(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert ("user" in service) == (name == "agent")


@pytest.mark.parametrize("name", [name for name in OURS if name != "mlflow"])
def test_the_command_is_one_of_ours(name: str) -> None:
    assert SERVICES[name]["command"][0] == name
    assert name in COMMANDS or name == "serve"


@pytest.mark.parametrize("name", SERVICES)
def test_no_secret_stands_in_the_file(name: str) -> None:
    """Whatever is named like a secret is the path of a file that is handed out as one."""
    for key, value in SERVICES[name].get("environment", {}).items():
        if SECRETIVE.search(key):
            assert key.endswith("_FILE")
            assert str(value).startswith("/run/secrets/")
    assert all(secret in PROJECT["secrets"] for secret in SERVICES[name].get("secrets", ()))


def test_secrets_are_files_that_git_does_not_take() -> None:
    assert all(set(one) == {"file"} for one in PROJECT["secrets"].values())
    assert "/docker/secrets/" in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()


def test_prometheus_asks_every_service_of_ours_where_it_listens_and_lets_our_labels_stand() -> None:
    scrapes = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))["scrape_configs"]
    ours = [one for one in scrapes if one["job_name"].startswith("trainwarden")]
    assert len(ours) == 3
    assert all(one["honor_labels"] is True for one in ours)
    asked = {target for one in ours for group in one.get("static_configs", ()) for target in group["targets"]}
    agents = yaml.safe_load((DOCKER / "prometheus" / "targets" / "agents.yml").read_text(encoding="utf-8"))
    asked |= {target for group in agents for target in group["targets"]}
    told = {
        name: SERVICES[name]["environment"]["TRAINWARDEN_HEALTH_URL"].split(":")[2].partition("/")[0]
        for name in OURS
        if name not in ("mlflow", "rendezvous")  # the latter has no metrics
    }
    hosts = {name: "host.docker.internal" if name == "agent" else name for name in told}
    assert asked == {f"{hosts[name]}:{port}" for name, port in told.items()}


def test_alertmanager_shows_a_token_from_a_file() -> None:
    config = yaml.safe_load((DOCKER / "alertmanager" / "alertmanager.yml").read_text(encoding="utf-8"))
    (webhook,) = config["receivers"][0]["webhook_configs"]
    assert webhook["url"] == "http://serve:8760/hooks/alertmanager"
    (secret,) = SERVICES["alertmanager"]["secrets"]
    assert webhook["http_config"]["authorization"] == {
        "type": "Bearer",
        "credentials_file": f"/run/secrets/{secret}",
    }
