"""docker/helm/trainwarden: linted and rendered by Helm, and taken by a real Kubernetes API server."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest
import yaml

from tests.places import ROOT
from tests.servers.helm import helm_program
from tests.servers.kafka import ServerMissing
from tests.servers.kubernetes import Kubernetes, job_crds, monitoring_crds
from tests.servers.missing import refuse

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]

CHART: Final = ROOT / "docker" / "helm" / "trainwarden"
VERSION: Final = "1.34.2"
NEEDED: Final = {"bus": "kafka://broker:9092", "serve.tokensSecret": "tokens", "rendezvous.tokenSecret": "word"}
PARTS: Final = ("agent", "detector", "engine", "archive", "serve", "rendezvous")
EVERYTHING: Final = {
    "serviceMonitor.enabled": "true",
    "networkPolicy.enabled": "true",
    "engine.kubernetes.enabled": "true",
    "engine.kubernetes.namespaces": "{jobs}",
    "secrets": "{kafka}",
    "serve.hosts": "{trainwarden.example}",
    "prometheusRule.enabled": "true",
}
RULES: Final = """
groups:
  - name: trainwarden
    rules:
      - alert: TrainwardenIncident
        expr: trainwarden_incidents_open > 0
        annotations:
          summary: "{{ $labels.training_job }}"
"""
Object = dict[str, Any]
Refuse = Callable[[str], NoReturn]


@pytest.fixture(scope="module")
def helm(require_servers: Refuse) -> Callable[..., subprocess.CompletedProcess[str]]:
    try:
        program = helm_program()
    except ServerMissing as missing:
        require_servers(str(missing))

    def call(verb: str, *words: str, **values: str) -> subprocess.CompletedProcess[str]:
        sets = itertools.chain.from_iterable(("--set", f"{key}={value}") for key, value in values.items())
        place = ["trainwarden", str(CHART), "--namespace", "warden"] if verb == "template" else [str(CHART)]
        return subprocess.run(
            [str(program), verb, *place, "--kube-version", VERSION, *words, *sets],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return call


@pytest.fixture(scope="module")
def rendered(
    helm: Callable[..., subprocess.CompletedProcess[str]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., list[Object]]:
    rules = tmp_path_factory.mktemp("rules") / "a.rules.yml"
    rules.write_text(RULES, encoding="utf-8")

    def render(**values: str) -> list[Object]:
        done = helm("template", "--set-file", f"prometheusRule.rules={rules}", **{**NEEDED, **values})
        assert done.returncode == 0, done.stderr
        return [one for one in yaml.safe_load_all(done.stdout) if one]

    return render


def test_helm_has_nothing_to_say_against_the_chart(helm: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = helm("lint", "--strict", **NEEDED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 chart(s) failed" in done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"bus": ""}, "bus: name Apache Kafka"),
        ({"bus": "embedded:x"}, "at '/bus'"),
        ({"serve.tokensSecret": ""}, "serve.tokensSecret: name a Secret"),
        ({"rendezvous.tokenSecret": ""}, "rendezvous.tokenSecret: name a Secret"),
        ({"agent.nonsense": "1"}, "additional properties 'nonsense' not allowed"),
        ({"engine.mode": "yolo"}, "at '/engine/mode'"),
        ({"archive.replicas": "2"}, "at '/archive/replicas'"),
        ({"prometheusRule.enabled": "true"}, "prometheusRule.rules"),
    ],
)
def test_wrong_values_are_refused_with_a_word(
    helm: Callable[..., subprocess.CompletedProcess[str]], values: dict[str, str], says: str
) -> None:
    done = helm("template", **{**NEEDED, **values})
    assert done.returncode != 0
    assert says in done.stderr


def pods(objects: list[Object]) -> dict[str, Object]:
    """Pod templates' specs by component."""
    return {
        one["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]: one["spec"]["template"]["spec"]
        for one in objects
        if one["kind"] in ("Deployment", "DaemonSet")
    }


def test_only_the_agent_is_root_and_only_an_acting_engine_has_a_token(rendered: Callable[..., list[Object]]) -> None:
    for acting in (False, True):
        specs = pods(rendered(**(EVERYTHING if acting else {})))
        assert set(specs) == set(PARTS)
        for component, spec in specs.items():
            (container,) = spec["containers"]
            assert container["args"][0] == component
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
            assert spec.get("hostPID", False) == (component == "agent")
            assert spec["automountServiceAccountToken"] == (acting and component == "engine")
            assert spec["enableServiceLinks"] is False  # TRAINWARDEN_SERVE_PORT would be a setting
            root = spec.get("securityContext", {}).get("runAsNonRoot", False) is not True
            assert root == (component == "agent")
    assert not [one for one in rendered() if one["kind"] in ("ClusterRole", "Role")]


def test_parts_may_be_left_out(rendered: Callable[..., list[Object]]) -> None:
    assert set(pods(rendered(**{f"{part}.enabled": "false" for part in PARTS if part != "agent"}))) == {"agent"}


def test_the_engine_acts_by_the_rendezvous_unless_the_values_say_otherwise(
    rendered: Callable[..., list[Object]],
) -> None:
    for values, joins in (
        ({}, True),
        ({"rendezvous.engine": "false"}, False),
        ({"rendezvous.enabled": "false"}, False),
    ):
        (engine,) = pods(rendered(**values))["engine"]["containers"]
        told = [one["value"] for one in engine["env"] if one["name"] == "TRAINWARDEN_ENGINE_LAUNCHER_SETTINGS"]
        assert ("command" in engine) == bool(told) == joins, values
    (service,) = [
        one for one in rendered() if one["metadata"]["name"].endswith("-rendezvous") and one["kind"] == "Service"
    ]
    (engine,) = pods(rendered())["engine"]["containers"]
    (told,) = [one["value"] for one in engine["env"] if one["name"] == "TRAINWARDEN_ENGINE_LAUNCHER_SETTINGS"]
    asked = tomllib.loads(f"its = {told}")["its"]
    (port,) = service["spec"]["ports"]
    assert asked["endpoint"] == f"{service['metadata']['name']}:{port['port']}"
    (serves,) = pods(rendered())["rendezvous"]["containers"]
    assert f"--token-file={asked['token_file']}" in serves["args"]
    assert serves["startupProbe"]["tcpSocket"] == {"port": "rendezvous"}


def test_its_settings_are_fine(rendered: Callable[..., list[Object]], tmp_path: Path) -> None:
    (config,) = [one for one in rendered() if one["kind"] == "ConfigMap"]
    path = tmp_path / "trainwarden.toml"
    path.write_text(config["data"]["trainwarden.toml"], encoding="utf-8")
    command = [sys.executable, "-m", "trainwarden.cli.main", "check-config", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, f"{path}: fine\n"), done.stderr


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    """An API server that knows the Prometheus Operator and jobs."""
    try:
        server = Kubernetes(tmp_path_factory.mktemp("kubernetes") / "server")
        crds = [*monitoring_crds(), *job_crds()]
    except ServerMissing as missing:
        refuse(str(missing), "kubernetes")
    try:
        server.start()
        server.apply(crds)
        for name in ("warden", "jobs", "others"):
            assert server.kubectl("create", "namespace", name).returncode == 0
        level = "pod-security.kubernetes.io/warn=restricted"
        assert server.kubectl("label", "namespace", "warden", level).returncode == 0
        yield server
    finally:
        server.stop()


def applied(cluster: Kubernetes, objects: list[Object], *words: str) -> subprocess.CompletedProcess[str]:
    """What comes of server-side apply; as Helm does, what names no namespace goes to the release's."""
    for one in objects:
        if not one["kind"].startswith("Cluster"):
            one["metadata"].setdefault("namespace", "warden")
    done = cluster.kubectl("apply", "--server-side", *words, "--filename", "-", stdin=yaml.safe_dump_all(objects))
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["as it comes", "with everything"])
def test_a_cluster_takes_all_of_it(
    cluster: Kubernetes, rendered: Callable[..., list[Object]], values: dict[str, str]
) -> None:
    objects = rendered(**values)
    done = applied(cluster, objects, "--dry-run=server")
    assert len(done.stdout.splitlines()) == len(objects)
    # Of our pods the agent's alone is more than Kubernetes' most restricted level allows.
    warnings = [line for line in done.stderr.splitlines() if line.startswith("Warning:")]
    assert len(warnings) == 1, done.stderr
    assert '"agent"' in warnings[0]


def test_rights_are_those_that_acting_needs(cluster: Kubernetes, rendered: Callable[..., list[Object]]) -> None:
    rights = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    applied(cluster, [one for one in rendered(**EVERYTHING) if one["kind"] in rights])

    def may(component: str, verb: str, what: str, namespace: str = "jobs") -> bool:
        person = f"--as=system:serviceaccount:warden:trainwarden-{component}"
        what, _, part = what.partition("/")
        words = (verb, what, f"--subresource={part}", person, "--namespace", namespace)
        said = cluster.kubectl("auth", "can-i", *words).stdout
        return said.strip() == "yes"

    assert may("engine", "list", "pods")
    assert may("engine", "patch", "jobsets.jobset.x-k8s.io")
    assert may("engine", "patch", "pytorchjobs.kubeflow.org")
    assert may("engine", "patch", "nodes/status")
    assert not may("engine", "delete", "pods")
    assert not may("engine", "delete", "jobsets.jobset.x-k8s.io")
    assert may("engine", "create", "pods/eviction")
    assert may("engine", "patch", "nodes")
    assert not may("engine", "delete", "pods", "others")
    assert not may("engine", "create", "pods")
    assert not may("engine", "get", "secrets")
    assert not may("engine", "delete", "nodes")
    assert not may("agent", "get", "pods")
    assert not may("serve", "get", "secrets", "warden")
