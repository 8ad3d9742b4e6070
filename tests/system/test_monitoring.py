"""A real Prometheus scrapes a running job: rules, dashboards and alerts are of use on what it finds there."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from tests.contract.dashboards.metric_names import names_in
from tests.places import ROOT
from tests.servers.alertmanager import Alertmanager, ask, free_port
from tests.servers.kafka import ServerMissing
from tests.servers.prometheus import Prometheus
from tests.system.runs import WARDEN, steps_done
from trainwarden.cli.run.demo_fault import pid_of_rank
from trainwarden.dashboards.generated import FOLDER

pytestmark = [pytest.mark.system, pytest.mark.timeout(240)]

WAIT_S = 150.0  # most of it is the start of a training job on a machine that others use
SETTLE_S = 5.0  # then everything was scraped often enough for rates
JOB = "gpt"
HEALTHY_STEPS = 20
TOKEN = "a-token-of-this-test-alone"
FIRING = {"TrainwardenIncident", "TrainwardenActionWaits"}
RULES = FOLDER / "prometheus" / "trainwarden.rules.yml"
ABSENT = re.compile(
    r"DCGM_|trainwarden_(trainer|archive|keeper|coordinator)_|trainwarden_model_info|trainwarden_\w+_errors_total"
)
"""What this run has not: GPUs, trainer, archive, keeper, coordinator, trained models, and errors that never were."""


class Scene:
    """A training job of two ranks under `launch`, whose engine waits for a person's word; and the servers."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run_dir = folder, folder / "run"
        ports = {name: free_port() for name in ("AGENT", "DETECTION", "ENGINE", "SERVE")}
        self._serve_at = f"127.0.0.1:{ports['SERVE']}"
        who = {"authorization": {"type": "Bearer", "credentials": TOKEN}}
        webhook = {"url": f"http://{self._serve_at}/hooks/alertmanager", "send_resolved": False, "http_config": who}
        self.alertmanager = Alertmanager(folder / "alertmanager", webhook)
        targets = [f"127.0.0.1:{port}" for port in ports.values()]
        job = {"job_name": "trainwarden", "honor_labels": True, "static_configs": [{"targets": targets}]}
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [self.alertmanager.address]}]}]},
            "scrape_configs": [job],
        }
        self.prometheus = Prometheus(folder / "prometheus", config=config)
        told = {f"TRAINWARDEN_{name}_METRICS_PORT": str(port) for name, port in ports.items() if name != "SERVE"}
        self._environ = {**os.environ, **told, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """The training job and `serve`, on one bus."""
        bus = f"embedded:{self.folder / 'bus.db'}"
        tokens = self.folder / "tokens"
        tokens.touch(mode=0o600)
        tokens.write_text(f"alertmanager act {TOKEN}\n", encoding="utf-8")
        where = ("--listen", self._serve_at, "--tokens", str(tokens), "--run-dir", str(self.folder / "serve"))
        self._run("serve", *where, "--bus", bus)
        script = [sys.executable, str(ROOT / "examples" / "train_gpt.py"), "--steps", "1000", "--micro-batches", "4"]
        self._environ |= {"TRAINWARDEN_BUS": bus, "TRAINWARDEN_RUN_DIR": str(self.run_dir)}
        self._run("launch", "--nproc", "2", "--mode", "confirm", "--job", JOB, "--", *script)

    def hang(self) -> None:
        """Stop rank 1 by a signal, once the job has taken some steps."""
        self.prometheus.until("the job's first steps", lambda: steps_done(self.run_dir, 1) > HEALTHY_STEPS, WAIT_S)
        pid = pid_of_rank(self.run_dir, 1)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)

    def _run(self, *arguments: str) -> None:
        with (self.folder / f"{arguments[0]}.log").open("wb") as log:
            process = subprocess.Popen(
                [*WARDEN, *arguments], env=self._environ, cwd=self.folder, stdout=log, stderr=log
            )
        self._processes.append(process)

    def alert(self, name: str) -> dict[str, Any]:
        """The one of this name that the Alertmanager has, once it has one."""
        try:
            kept = self.prometheus.until(f"alert {name}", lambda: self.alertmanager.alerts(name), WAIT_S)
        except AssertionError:
            print("\n".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log")))
            raise
        (alert,) = kept
        return dict(alert)

    def actions(self, *outcomes: str) -> list[dict[str, Any]]:
        """What `serve` knows of actions with these outcomes."""
        asked = urllib.request.Request(
            f"http://{self._serve_at}/api/v1/actions", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        with urllib.request.urlopen(asked, timeout=10) as answered:
            return [one for one in json.load(answered)["actions"] if one["outcome"] in outcomes]

    def end(self) -> None:
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def scene(tmp_path: Path, require_servers: Callable[[str], NoReturn]) -> Iterator[Scene]:
    try:
        made = Scene(tmp_path)
    except ServerMissing as missing:
        require_servers(str(missing))
    with made.alertmanager, made.prometheus:
        try:
            made.start()
            yield made
        finally:
            made.end()


def test_the_alert_of_a_fault_fires_and_every_dashboard_has_something_to_show(scene: Scene) -> None:
    """One test for all: each start of the scene takes a training job."""
    scene.hang()
    names_the_fault(scene.alert("TrainwardenIncident"))
    scene.alert("TrainwardenActionWaits")
    time.sleep(SETTLE_S)
    now_s = time.time()
    rules_are_evaluated_and_nothing_else_fires(scene.prometheus)
    labels_stand_as_we_give_them(scene.prometheus)
    dashboards_are_answered(scene.prometheus, now_s)
    grafanas_own_alerts_are_answered(scene.prometheus, now_s)
    a_word_through_the_alertmanager_makes_it_happen(scene)


def names_the_fault(alert: dict[str, Any]) -> None:
    """Who it is, what to run, and where to read on."""
    labels, said = alert["labels"], alert["annotations"]
    assert (labels["kind"], labels["severity"]) == ("hang", "sev2")
    assert labels["training_job"] == JOB
    assert said["suspects"].startswith("Most likely: rank 1 ")
    assert said["command"] == f"trainwarden incidents --open --job {labels['training_job']}"
    assert (ROOT / said["runbook_url"]).is_file()


def rules_are_evaluated_and_nothing_else_fires(prometheus: Prometheus) -> None:
    """No rule has an error, no target is down, and none of our own failures is told."""
    rules = [rule for group in ask(f"{prometheus.url}/api/v1/rules")["data"]["groups"] for rule in group["rules"]]
    assert {rule["name"]: rule.get("lastError") for rule in rules if rule["health"] != "ok"} == {}
    firing = {rule["name"] for rule in rules if rule["type"] == "alerting" and rule["state"] == "firing"}
    assert firing == FIRING
    targets = ask(f"{prometheus.url}/api/v1/targets")["data"]["activeTargets"]
    assert {one["scrapeUrl"]: one["lastError"] for one in targets if one["health"] != "up"} == {}


def labels_stand_as_we_give_them(prometheus: Prometheus) -> None:
    """Prometheus has renamed none of them."""
    labels = ask(f"{prometheus.url}/api/v1/labels")["data"]
    assert [label for label in labels if label.startswith("exported_")] == []
    assert {"training_job", "service", "kind", "rank", "node"} <= set(labels)


def dashboards_are_answered(prometheus: Prometheus, now_s: float) -> None:
    """Every expression is one, and has an answer where this run has what it asks for."""
    empty = []
    for place, expr in expressions():
        asked = re.sub(r'"\$\w+"', '".*"', expr.replace("$__rate_interval", "1m"))
        found = answer(prometheus, asked, now_s)
        if (
            not found
            and not all(ABSENT.match(name) for name in names_in(expr))
            and not place.endswith("marks: Actions")
        ):
            empty.append(f"{place}: {asked}")
    assert empty == []


def a_word_through_the_alertmanager_makes_it_happen(scene: Scene) -> None:
    """An alert that names the action and its plan approves it; those that fired before have approved nothing."""
    (waiting,) = scene.actions("proposed")
    assert scene.actions("started", "done", "failed") == []
    word = {"action": "approve", "action_id": waiting["id"], "plan_digest": waiting["plan_digest"]}
    said = {f"trainwarden_{key}": value for key, value in word.items()}
    scene.alertmanager.raise_alert("Approval", **said)
    (done,) = scene.prometheus.until("the action", lambda: scene.actions("done", "failed", "skipped"), WAIT_S)
    assert (done["id"], done["kind"], done["outcome"]) == (waiting["id"], "restart_process", "done"), done["why"]
    assert done["by"] == "alertmanager (alertmanager)"


def answer(prometheus: Prometheus, expr: str, now_s: float) -> list[dict[str, Any]]:
    """The instant vector of `expr` then; an expression that is none is an AssertionError."""
    found = ask(f"{prometheus.url}/api/v1/query", query=expr, time=f"{now_s:.3f}")
    return list(found["data"]["result"])


def expressions() -> Iterator[tuple[str, str]]:
    """Where it stands, and the expression."""
    for path in sorted((FOLDER / "grafana").glob("*.json")):
        board = json.loads(path.read_text(encoding="utf-8"))
        for panel in board["panels"]:
            yield from ((f"{path.stem}: {panel['title']}", target["expr"]) for target in panel["targets"])
        yield from ((f"{path.stem}: marks: {mark['name']}", mark["expr"]) for mark in board["annotations"]["list"])


def grafanas_own_alerts_are_answered(prometheus: Prometheus, now_s: float) -> None:
    """The same table, as Grafana asks: a series that fires is 1, whatever its value."""
    groups = yaml.safe_load((FOLDER / "provisioning/alerting/rules.yml").read_text(encoding="utf-8"))["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        found = answer(prometheus, rule["data"][0]["model"]["expr"], now_s)
        assert {one["value"][1] for one in found} <= {"1"}, rule["title"]
        if rule["for"] == "0s":
            assert bool(found) == (rule["title"] in FIRING), rule["title"]
