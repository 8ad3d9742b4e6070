"""Who is told of what, how often, and what when nobody answers."""

from __future__ import annotations

import html
import json
import subprocess
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import SEVERITY_NUMBER_FATAL, SEVERITY_NUMBER_INFO

from tests.doubles import metric_value
from tests.web_doubles import NOW_S, Web, action, heartbeat, incident, verdict
from trainwarden.commands.builders import silence
from trainwarden.dashboards.notices.notices import MOST_WAITING, WAITS_S, Notices
from trainwarden.dashboards.notices.targets import targets_of
from trainwarden.errors import ConfigError
from trainwarden.records import Suspect, Vote
from trainwarden.signing import signature

URL = "https://hooks.example.org/T0/secret"


class Told:
    """An overview with notices, and an endpoint that keeps what it is sent."""

    def __init__(self, *tables: dict[str, Any], reply: Callable[[int], int] = lambda _: 200) -> None:
        self.web = Web()
        self.requests: list[httpx.Request] = []
        self._reply = reply
        client = httpx.Client(transport=httpx.MockTransport(self._answer))
        targets = targets_of(tables or ({"url": URL},))
        self.notices = Notices(self.web.overview, targets, self.web.clock, self.web.metrics, client=client)
        self.web.overview.ready = True

    def _answer(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        status = self._reply(len(self.requests))
        if status == 0:
            raise httpx.ConnectTimeout("slow")
        return httpx.Response(status)

    def tell(self, *records: Any) -> list[str]:
        """The events that were sent of it."""
        before = len(self.requests)
        self.web.tell(*records)
        for courier in self.notices.couriers:
            courier.bring_all()
        return [json.loads(request.content).get("event") for request in self.requests[before:]]

    def counted(self, outcome: str) -> float | None:
        return metric_value(self.web.metrics, "notices_total", host="hooks.example.org", outcome=outcome)


def test_each_state_once():
    told = Told()
    assert told.tell(incident(), action()) == ["incident.opened", "action.proposed"]
    assert told.tell(incident(revision=1, state="updated"), action(outcome="started")) == []
    assert told.tell(action(outcome="done"), incident(revision=2, state="closed")) == ["action.done", "incident.closed"]
    assert told.tell(action(outcome="failed"), action(outcome="done")) == ["action.failed"]
    assert told.tell(heartbeat(), verdict(), action("other", plan_digest=None)) == []
    assert told.tell(action("third"), action("third", plan_digest="d2")) == ["action.proposed", "action.proposed"]
    assert told.counted("sent") == 7.0


def test_an_incident_whose_job_is_down_is_closed_for_nobody_until_it_is_resolved():
    """Else whoever is paged by it is told that all is well, and of what comes then nothing."""
    told, down = Told(), {"state": "closed", "unresolved": True}
    assert told.tell(incident(), incident(revision=1, **down)) == ["incident.opened"]
    assert told.tell(incident(revision=2, state="updated"), incident(revision=3, **down)) == []
    assert told.tell(incident(revision=4, state="closed")) == ["incident.closed"]
    assert told.tell(incident(revision=5, **down)) == ["incident.opened"]
    assert "closed, unresolved" in json.loads(told.requests[-1].content)["text"]
    assert json.loads(told.requests[-1].content)["incident"]["unresolved"] is True
    assert told.tell(incident(revision=6, state="closed")) == ["incident.closed"]


def test_history_is_told_to_nobody():
    told = Told()
    told.web.overview.ready = False
    assert told.tell(incident(), action()) == []
    told.web.overview.ready = True
    assert told.tell(incident(revision=1, state="closed")) == ["incident.closed"]


def test_an_incident_that_gets_graver_is_told_to_those_who_want_such():
    told = Told({"url": URL, "severity": "sev1"}, {"url": URL})
    assert told.tell(incident(severity="sev3")) == ["incident.opened"]
    graver = {"severity": "sev1", "state": "updated"}
    assert told.tell(incident(revision=1, **graver)) == ["incident.opened"]
    assert told.tell(incident(revision=2, **graver)) == []
    assert told.tell(incident(revision=3, severity="sev1", state="closed")) == ["incident.closed"] * 2


def test_an_old_incident_is_news_only_once_it_gets_graver():
    told = Told({"url": URL, "severity": "sev1"}, {"url": URL})
    told.web.overview.ready = False
    told.tell(incident(severity="sev3"))
    told.web.overview.ready = True
    assert told.tell(incident(revision=1, severity="sev3", state="updated")) == []
    assert told.tell(incident(revision=2, severity="sev1", state="updated")) == ["incident.opened"]


def test_the_evidence_and_the_exact_command():
    told = Told()
    named = (Suspect(score=0.9, reason="stands longest", rank=2, node="n1"),)
    told.tell(
        verdict(votes={"lof": Vote(opinion="anomalous", score=0.9)}, anomalous=True), incident(suspects=named), action()
    )
    said = json.loads(told.requests[-1].content)
    assert said["next"][0] == "trainwarden actions approve i1/restart_process/1  # restart_process"
    assert said["where"] == "rank 2, node n1"
    assert any("stands longest" in line for line in said["evidence"])
    assert (said["incident"]["id"], said["action"]["plan_digest"], said["version"]) == ("i1", "d1", 1)


def test_a_chat_gets_buttons_that_carry_the_plan_and_text_that_it_does_not_obey():
    told = Told({"url": URL, "style": "slack"})
    told.tell(incident(reason="<!channel> ``` & co"), action())
    opened, proposed = (json.loads(request.content) for request in told.requests)
    assert "&lt;!channel&gt;" in opened["text"]
    assert "<!" not in json.dumps(opened)
    buttons = proposed["blocks"][-1]["elements"]
    assert [(one["action_id"], json.loads(one["value"])["plan_digest"]) for one in buttons] == [
        ("approve", "d1"), ("deny", "d1"),
    ]  # fmt: skip


def test_a_collector_of_opentelemetry_gets_a_log_record_by_its_own_definition():
    told = Told({"url": URL, "style": "otlp"})
    named = (Suspect(score=0.9, reason="late", rank=2, node="n1"), Suspect(score=0.5, reason="late", node="n2"))
    told.tell(incident(suspects=named, severity="sev1"), action(), incident(revision=1, state="closed"))
    opened, proposed, closed = (
        json_format.Parse(request.content, ExportLogsServiceRequest()).resource_logs[0] for request in told.requests
    )
    record = opened.scope_logs[0].log_records[0]
    assert (opened.resource.attributes[0].key, opened.resource.attributes[0].value.string_value) == (
        "service.name", "trainwarden",
    )  # fmt: skip
    assert (record.event_name, record.severity_number) == ("trainwarden.incident.opened", SEVERITY_NUMBER_FATAL)
    assert record.time_unix_nano == int(incident().updated_at_s * 1e9)
    assert "hang" in record.body.string_value
    values = {one.key: one.value for one in record.attributes}
    assert [one.string_value for one in values["trainwarden.suspect.nodes"].array_value.values] == ["n1", "n2"]
    assert [one.int_value for one in values["trainwarden.suspect.ranks"].array_value.values] == [2]
    assert "trainwarden.suspect.devices" not in values
    asked = {one.key: one.value.string_value for one in proposed.scope_logs[0].log_records[0].attributes}
    assert (asked["trainwarden.action.id"], asked["trainwarden.incident.id"]) == (action().id, "i1")
    assert closed.scope_logs[0].log_records[0].severity_number == SEVERITY_NUMBER_INFO


def run_by_a_shell(commands: str) -> str:
    """What a shell makes of the words of each line; nothing of our own is run but `printf`."""
    script = "".join(f"printf '%s\\n' {line}\n" for line in commands.splitlines())
    return subprocess.run(["bash", "-c", script], check=False, capture_output=True, text=True, timeout=30).stdout


@pytest.mark.parametrize("evil", ["n`; {}; `", "n' `{}` '", "n\n{}\n", "$({})", "\x1b[2J'; {}; '"])
def test_no_name_breaks_out_of_a_command_that_a_chat_shows(evil):
    told, evil = Told({"url": URL, "style": "slack"}), evil.format("echo $((6*7))")
    told.tell(incident(job=evil, suspects=(Suspect(score=1.0, reason="r", node=evil, rank=1),)))
    code = json.loads(told.requests[0].content)["blocks"][-1]["text"]["text"].strip("`")
    assert all(letter.isprintable() for line in code.split("\n") for letter in line)
    said = run_by_a_shell(html.unescape(code))
    assert "42" not in said
    assert said.count("$((6*7))") == len(code.split("\n"))


def test_commands_that_are_too_long_for_a_chat_are_left_out_whole():
    told = Told({"url": URL, "style": "slack"})
    told.tell(incident(job="j" * 2_000))
    code = json.loads(told.requests[0].content)["blocks"][-1]["text"]["text"]
    assert code.startswith("```")
    assert code.endswith("```")
    assert all("  # " in line for line in code.strip("`").splitlines())


def test_only_what_is_wanted():
    told = Told({"url": URL, "severity": "sev2", "kinds": ["hang"]})
    wanted = ("i1", {}), ("i2", {"severity": "sev3"}), ("i3", {"kind": "crash"}), ("i4", {"severity": "sev1"})
    told.tell(*(incident(name, **more) for name, more in wanted))
    assert [json.loads(request.content)["incident"]["id"] for request in told.requests] == ["i1", "i4"]


def test_a_silence_keeps_still():
    told = Told()
    assert told.tell(silence("ann", NOW_S, NOW_S + 60.0, job="j"), incident(), action()) == []
    assert told.counted("silenced") == 2.0
    told.web.clock.sleep(61.0)
    assert told.tell(incident("i2")) == ["incident.opened"]


@pytest.mark.parametrize("trouble", [500, 503, 429, 0])
def test_trouble_that_passes_is_waited_out(trouble):
    told = Told(reply=lambda number: trouble if number < 4 else 200)
    told.tell(incident())
    assert len(told.requests) == 4
    assert told.web.clock.now_s() == NOW_S + sum(WAITS_S[:3])
    assert told.counted("sent") == 1.0


@pytest.mark.parametrize(
    ("status", "tries"), [(404, 1), (401, 1), (302, 1), (500, 1 + len(WAITS_S)), (0, 1 + len(WAITS_S))]
)
def test_what_is_never_taken_is_given_up_and_counted(status, tries):
    told = Told(reply=lambda _: status)
    told.tell(incident())
    assert (len(told.requests), told.counted("failed"), told.counted("sent")) == (tries, 1.0, None)


def test_a_target_that_cannot_be_asked_ends_nothing(monkeypatch):
    told = Told()
    courier = told.notices.couriers[0]
    monkeypatch.setattr(courier, "target", msgspec.structs.replace(courier.target, url="http://a..b/"))
    monkeypatch.setattr(courier, "_client", httpx.Client())
    assert told.tell(incident()) == []
    assert told.counted("failed") == 1.0


def test_an_address_that_is_a_secret_is_in_no_log(caplog):
    caplog.set_level("INFO")
    told = Told(reply=lambda _: 404)
    told.tell(incident())
    assert "hooks.example.org" in caplog.text or caplog.records
    assert "secret" not in caplog.text
    assert not [one for one in caplog.records if one.name.startswith("httpx")]


def test_a_flood_is_bounded():
    told = Told()
    told.web.tell(*(incident(f"i{number}") for number in range(MOST_WAITING + 5)))
    assert told.counted("dropped") == 5.0


def test_a_token_that_no_header_carries(tmp_path):
    (tmp_path / "token").write_text("schlüssel\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="ASCII characters alone"):
        targets_of([{"url": URL, "token_file": str(tmp_path / "token")}])


def test_tokens_and_signatures(tmp_path):
    for name, text in (("token", "a-token\n"), ("secret", "a-secret\n"), ("url", URL + "\n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
    files = {f"{name}_file": str(tmp_path / name) for name in ("token", "secret", "url")}
    told = Told(files)
    told.tell(incident())
    request = told.requests[0]
    assert (str(request.url), request.headers["authorization"]) == (URL, "Bearer a-token")
    stamp = request.headers["x-trainwarden-timestamp"]
    assert request.headers["x-trainwarden-signature"] == signature(b"a-secret", stamp.encode() + b":" + request.content)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "serve.notices: number 1: name either url or url_file"),
        ({"url": URL, "url_file": "f"}, "name either url or url_file"),
        ({"url": "ftp://x"}, "is not http:// or https://"),
        ({"url": "http://[::1"}, "is not http:// or https://"),
        ({"url": "http://a..b/"}, "is not http:// or https://"),
        ({"url": URL, "kinds": ["noise"]}, "invalid enum value 'noise'"),
        ({"url": URL, "styl": "slack"}, "unknown key `styl`"),
        ({"url": URL, "token_file": "/nowhere"}, "cannot be read"),
    ],
)
def test_mistakes(table, said):
    with pytest.raises(ConfigError, match=said):
        targets_of([table])
