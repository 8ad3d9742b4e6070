"""The webhook launcher against answers of every kind, without a network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.doubles import ManualClock
from tests.memory_launcher import MemoryLauncher
from tests.places import ROOT
from trainwarden.actions.launchers.webhook.client import Answer, WebhookConfig, WebhookLauncher, document
from trainwarden.errors import ConfigError, LauncherError, LauncherUnavailable
from trainwarden.launching import Operation, Report
from trainwarden.protocols import Scope

PROBLEM = "application/problem+json"


class Service:
    """What is answered, in the place of an `Exchange`."""

    host = "service"

    def __init__(self) -> None:
        self.launcher = MemoryLauncher(only="job")
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.instead: Answer | LauncherUnavailable | None = None

    def ask(self, body: bytes, **headers: str) -> Answer:
        asked = json.loads(body)
        self.asked.append(asked)
        self.headers.append(headers)
        if isinstance(self.instead, LauncherUnavailable):
            raise self.instead
        return self.instead or Answer(200, "application/json", msgspec.json.encode(self._said(asked)))

    def _said(self, asked: dict[str, Any]) -> object:
        match asked["ask"]:
            case "capabilities":
                return self.launcher.capabilities()
            case "state":
                return self.launcher.state(asked["job"])
            case "poll":
                return self.launcher.poll(asked["job"], asked["operation"])
        return self.launcher.submit(msgspec.convert(asked["operation"], Operation))


class Desk:
    """A launcher, the service that it asks, and the clock that its pauses go by."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.service, self.clock = folder, Service(), ManualClock(1000.0)
        (folder / "secret").write_bytes(b"sixteen bytes of it\n")
        self.launcher = self.made()

    def made(self, **settings: Any) -> WebhookLauncher:
        config = WebhookConfig(url="https://service/x", secret_file=str(self.folder / "secret"), **settings)
        launcher = WebhookLauncher(config, Scope(job="job", node="n0", run_dir="."))
        launcher._exchange, launcher._clock = self.service, self.clock  # type: ignore[assignment]
        return launcher

    def operation(self, name: str = "i1/restart/1") -> Operation:
        return Operation(id=name, job="job", kind="restart", expected_generation=self.service.launcher.generation)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_the_page_of_the_docs_is_of_today() -> None:
    today = json.dumps(document(), indent=1) + "\n"
    assert (ROOT / "docs" / "webhook.openapi.json").read_text() == today, f"it should be:\n{today}"


def test_an_operation_goes_out_under_its_id_and_only_a_submission_has_a_key(desk: Desk) -> None:
    assert desk.launcher.submit(desk.operation("i1/é/1")).state == "done"
    assert desk.launcher.poll("job", "i1/é/1").state == "done"
    assert desk.service.headers == [{"Idempotency-Key": "i1/?/1"}, {}]
    assert desk.service.asked[0]["operation"]["id"] == "i1/é/1"


def test_a_job_that_there_is_not_is_said_to_be_none(desk: Desk) -> None:
    desk.service.instead = Answer(404, PROBLEM, b'{"title": "no such job", "detail": "there is no job x"}')
    with pytest.raises(LauncherError, match=r"^service answers 404: there is no job x$") as caught:
        desk.launcher.state("x")
    assert not isinstance(caught.value, LauncherUnavailable)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answer(404, "text/html", b"<html>nginx</html>"), "service answers 404"),
        (Answer(401, PROBLEM, b'{"detail": "the signature is another\'s"}'), "401: the signature is another's"),
        (Answer(503, PROBLEM, b'{"title": "later"}'), "service answers 503: later"),
        (Answer(500, PROBLEM, b"[[["), "service answers 500"),
        (Answer(404, PROBLEM, b'{"x": ' + b"[" * 100_000), "service answers 404"),
        (Answer(302, "text/html", b""), "service answers 302"),
        (Answer(200, "application/json", b"{}"), "service answers no Report"),
        (Answer(200, "application/json", b'{"operation": "\xff", "state": "done"}'), "service answers no Report"),
        (Answer(200, "application/json", b"[" * 100_000), "service answers no Report"),
        (Answer(200, "application/json", b'{"operation": "o", "state": "maybe"}'), "service answers no Report"),
        (Answer(200, "application/json", b'{"operation": "other", "state": "done"}'), "tells of other"),
    ],
)
def test_whatever_is_no_answer_says_nothing_of_the_operation(desk: Desk, answer: Answer, said: str) -> None:
    desk.service.instead = answer
    for question in (lambda: desk.launcher.submit(desk.operation("o")), lambda: desk.launcher.poll("job", "o")):
        with pytest.raises(LauncherUnavailable, match=said):
            question()


def test_an_older_state_is_no_answer_and_neither_is_anothers(desk: Desk) -> None:
    assert desk.launcher.state("job").generation == 1
    desk.service.launcher.generation = 0
    with pytest.raises(LauncherUnavailable, match="an older state: generation 0 of job job after 1"):
        desk.launcher.state("job")
    desk.service.instead = Answer(200, "application/json", b'{"job": "y", "phase": "running", "generation": 7}')
    with pytest.raises(LauncherUnavailable, match="was asked of job job and tells of y"):
        desk.launcher.state("job")


def test_what_was_accepted_and_forgotten_is_not_submitted_again(desk: Desk) -> None:
    desk.service.launcher.slow = True
    assert desk.launcher.submit(desk.operation()).state == "running"
    desk.service.launcher = MemoryLauncher(only="job")
    with pytest.raises(LauncherUnavailable, match="service has forgotten i1/restart/1, which it had accepted"):
        desk.launcher.poll("job", "i1/restart/1")
    assert desk.launcher.poll("job", "i1/restart/2").state == "unknown"


def test_one_that_was_silent_is_left_alone_for_as_long(desk: Desk) -> None:
    desk.service.instead = LauncherUnavailable("service did not answer within 5 s")
    for _ in range(10):
        with pytest.raises(LauncherUnavailable, match="did not answer within 5 s"):
            desk.launcher.state("job")
    assert len(desk.service.asked) == 1
    desk.clock.sleep(5.0)
    desk.service.instead = None
    assert desk.launcher.state("job").generation == 1


def test_a_dry_run_asks_and_submits_nothing(desk: Desk) -> None:
    dry = desk.made(dry_run=True)
    stale = msgspec.structs.replace(desk.operation("stale"), expected_generation=9)
    assert dry.submit(stale).reason == "stale"
    report = dry.submit(desk.operation())
    assert (report.state, report.reason) == ("refused", "unsupported")
    assert report.text == ("this is a dry run: nothing was done; else service would be asked for restart of job job")
    assert "submit" not in {asked["ask"] for asked in desk.service.asked}
    desk.launcher.submit(desk.operation())
    assert dry.submit(desk.operation()) == Report(operation="i1/restart/1", state="done")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("url", "ftp://service/x", "is no address like https://HOST:PORT/PATH"),
        ("url", "service", "is no address like"),
        ("url", "https://ann:word@service/", "is no address like"),
        ("url", "https://service:99999/", "is no address"),
        ("url", "https://[::1/", "is no address"),
        ("secret_file", "/no/such/file", "cannot be read"),
        ("secret_file", "short", "holds fewer than 16 bytes; that can be guessed"),
    ],
)
def test_mistakes_in_settings_are_one_sentence(tmp_path: Path, field: str, value: str, said: str) -> None:
    (tmp_path / "secret").write_bytes(b"sixteen bytes of it\n")
    (tmp_path / "short").write_bytes(b"short\n")
    settings = {"url": "https://service/x", "secret_file": str(tmp_path / "secret")}
    settings[field] = str(tmp_path / value) if value == "short" else value
    with pytest.raises(ConfigError, match=said):
        WebhookLauncher(WebhookConfig(**settings), Scope(job="job", node="n0", run_dir="."))
