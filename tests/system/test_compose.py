"""docker/compose.yaml and what it hands to others, judged by the programs that read them."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest

from tests.places import ROOT
from tests.servers.go_tools import COMPOSE_SPEC, go_tool
from tests.servers.kafka import ServerMissing
from trainwarden.metrics_http.access import read_token

pytestmark = pytest.mark.system

DOCKER: Final = ROOT / "docker"
Refuse = Callable[[str], NoReturn]


def ran(*command: str | Path) -> str:
    """Standard output of a command that must succeed."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def program(name: str, require_servers: Refuse) -> str:
    found = shutil.which(name)
    if found is None:
        require_servers(f"{name} is not installed")
    return found


@pytest.fixture(scope="module")
def project(require_servers: Refuse) -> Callable[..., dict[str, Any]]:
    """Reads compose files with the reference implementation of the Compose Specification."""
    try:
        tool = go_tool(COMPOSE_SPEC)
    except ServerMissing as missing:
        require_servers(str(missing))

    def read(*names: str) -> dict[str, Any]:
        said = ran(tool, "-format", "json", *(DOCKER / name for name in names))
        read: dict[str, Any] = json.loads(said)
        return read

    return read


def test_the_project_is_a_compose_project(project: Callable[..., dict[str, Any]]) -> None:
    services = project("compose.yaml")["services"]
    assert {port["host_ip"] for one in services.values() for port in one.get("ports", ())} == {"127.0.0.1"}
    # What a service brings itself stands in place of what all of ours have.
    assert set(services["trainer"]["depends_on"]) == {"kafka", "mlflow"}
    assert not services["mlflow"].get("depends_on")
    gpu = project("compose.yaml", "compose.gpu.yaml")["services"]["agent"]["deploy"]["resources"]
    assert gpu["reservations"]["devices"][0]["driver"] == "nvidia"
    assert gpu["limits"]["memory"]


def test_its_settings_are_fine(tmp_path: Path) -> None:
    token, settings = tmp_path / "token", tmp_path / "trainwarden.toml"
    token.write_text("a-token-of-twenty-chars")
    token.chmod(0o600)
    text = (DOCKER / "trainwarden.toml").read_text()
    assert text.count('"/tmp/token"') == 1  # which each container makes
    settings.write_text(text.replace("/tmp/token", str(token)))
    said = ran(sys.executable, "-m", "trainwarden.cli.main", "check-config", settings)
    assert said.endswith("fine\n")


def test_engine_and_agents_share_a_token_that_the_containers_own_words_make_readable(
    project: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    """The words that each container begins with are run, with other folders and the command shown alone."""
    services = project("compose.yaml")["services"]
    asked = tomllib.loads((DOCKER / "trainwarden.toml").read_text())["engine"]["launcher_settings"]
    # A variable would override the settings of those who have another launcher.
    assert not [name for name in services["engine"]["environment"] if "LAUNCHER" in name]
    assert asked["endpoint"] == "rendezvous:29402"
    assert f"--token-file={asked['token_file']}" in services["rendezvous"]["command"]
    (tmp_path / "run" / "secrets").mkdir(parents=True)
    (tmp_path / "tmp").mkdir()
    secret = tmp_path / "run" / "secrets" / "rendezvous_token"
    for name in ("engine", "rendezvous"):
        assert services[name]["secrets"][0]["source"] == secret.name
        secret.write_text("a-token-of-twenty-chars")
        secret.chmod(0o644)
        shell, option, words, *rest = services[name]["entrypoint"]
        words = words.replace("$$", "$")
        here = words.replace("/tmp/", f"{tmp_path}/tmp/").replace(" /run/", f" {tmp_path}/run/")
        here = here.replace("exec trainwarden", "exec echo trainwarden")
        assert ran(shell, option, here, *rest, *services[name]["command"]).split() == [
            "trainwarden", *services[name]["command"],
        ]  # fmt: skip
        assert read_token(tmp_path / "tmp" / "token") == "a-token-of-twenty-chars"


def test_prometheus_takes_its_configuration_and_rules(tmp_path: Path, require_servers: Refuse) -> None:
    promtool = program("promtool", require_servers)
    rules = ROOT / "dashboards" / "prometheus"
    if not rules.is_dir():
        rules = tmp_path / "none"
        rules.mkdir()
    shutil.copytree(DOCKER / "prometheus", tmp_path / "etc")
    config = tmp_path / "etc" / "prometheus.yml"
    text = config.read_text(encoding="utf-8")
    assert "/etc/trainwarden/rules/" in text
    config.write_text(text.replace("/etc/trainwarden/rules/", f"{rules}/"), encoding="utf-8")
    assert "SUCCESS" in ran(promtool, "check", "config", config)


def test_alertmanager_takes_its_configuration(require_servers: Refuse) -> None:
    amtool = program("amtool", require_servers)
    assert "SUCCESS" in ran(amtool, "check-config", DOCKER / "alertmanager" / "alertmanager.yml")
    route = ran(
        amtool, "config", "routes", "test", f"--config.file={DOCKER / 'alertmanager' / 'alertmanager.yml'}", "a=b"
    )
    assert route.strip() == "trainwarden"


def test_secrets_are_made_once_and_tokens_kept_as_digests(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    said = ran(DOCKER / "make-secrets.sh", folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    kept = {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}
    assert set(kept) == {"tokens", "alertmanager_token", "grafana_password", "rendezvous_token"}
    people = {line.split()[0]: line.split()[1:] for line in kept["tokens"].splitlines() if not line.startswith("#")}
    token = said.splitlines()[0].rpartition(" ")[2]
    for name, clear in (("on-call", token), ("alertmanager", kept["alertmanager_token"])):
        assert len(clear) >= 32
        assert people[name] == ["act", f"sha256:{hashlib.sha256(clear.encode()).hexdigest()}"]
    ran(DOCKER / "make-secrets.sh", folder)
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == kept
