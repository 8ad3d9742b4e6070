"""Webhooks of others: what they may do, once, and what they may not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.doubles import metric_value
from tests.web_doubles import APPROVE as APPROVER
from tests.web_doubles import NOW_S, OBSERVE, Web, action, incident
from trainwarden.dashboards.web.hooks import HookSecrets
from trainwarden.errors import ConfigError
from trainwarden.signing import read_secret, signature

SECRET = b"a-secret-of-a-test"
SECRETS = HookSecrets(grafana=SECRET, slack=SECRET, slack_users=("U1",))
APPROVE = {
    "trainwarden_action": "approve",
    "trainwarden_action_id": "i1/restart_process/1",
    "trainwarden_plan_digest": "d1",
}


@pytest.fixture
def web():
    web = Web(secrets=SECRETS)
    web.tell(incident(), action())
    return web


def alert(annotations: dict[str, str] | None = None, status: str = "firing", **labels: str) -> dict[str, Any]:
    return {
        "status": status, "labels": {"alertname": "TrainwardenIncident", **labels}, "annotations": annotations or {},
        "startsAt": "2026-11-22T00:00:00Z", "endsAt": "0001-01-01T00:00:00Z", "generatorURL": "http://p/g",
        "fingerprint": "f1",
    }  # fmt: skip


def batch(*alerts: dict[str, Any]) -> dict[str, Any]:
    return {
        "version": "4", "groupKey": "{}", "truncatedAlerts": 0, "status": "firing", "receiver": "trainwarden",
        "groupLabels": {}, "commonLabels": {}, "commonAnnotations": {}, "externalURL": "http://a",
        "notification_reason": "new", "alerts": list(alerts),
    }  # fmt: skip


def outcomes(response) -> dict[str, int]:
    assert response.status_code == 200, response.text
    return response.json()["outcomes"]


def test_an_alert_that_carries_the_plan_approves_it_once(web):
    for expected in ("approve", "repeated"):
        assert outcomes(web.act("/hooks/alertmanager", batch(alert(APPROVE)))) == {expected: 1}
    assert [(one.kind, one.plan_digest, one.by) for one in web.published] == [
        ("approve", "d1", "on-call (alertmanager)")
    ]
    assert metric_value(web.metrics, "hook_alerts_total", hook="alertmanager", outcome="repeated") == 1.0


@pytest.mark.parametrize("missing", ["trainwarden_action_id", "trainwarden_plan_digest"])
def test_an_alert_firing_without_a_plan_approves_nothing(web, missing):
    lacking = {name: value for name, value in APPROVE.items() if name != missing}
    assert outcomes(web.act("/hooks/alertmanager", batch(alert(lacking)))) == {"refused": 1}
    assert web.published == []


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ({}, "nothing to do"),
        ({"summary": "rank 2 hangs", "plan_digest": "d1"}, "nothing to do"),
        (APPROVE | {"trainwarden_plan_digest": "older"}, "refused"),
        (APPROVE | {"trainwarden_action_id": "none"}, "refused"),
        (APPROVE | {"trainwarden_action": "explode"}, "refused"),
        ({"trainwarden_action": "silence", "trainwarden_for_s": "600"}, "refused"),
        ({"trainwarden_action": "silence", "trainwarden_for_s": "nan", "node": "n"}, "refused"),
        ({"trainwarden_action": "silence", "trainwarden_for_s": "1e9", "node": "n"}, "refused"),
        ({"trainwarden_action": "silence", "trainwarden_for_s": "9", "kind": "noise"}, "refused"),
        ({"trainwarden_action": "silence", "trainwarden_for_s": "9", "node": "n" * 600}, "refused"),
    ],
)
def test_all_else_does_nothing_and_is_counted(web, said, outcome):
    assert outcomes(web.act("/hooks/alertmanager", batch(alert(said)))) == {outcome: 1}
    assert web.published == []


def test_an_alert_that_has_ended_asks_for_nothing(web):
    assert outcomes(web.act("/hooks/alertmanager", batch(alert(APPROVE, status="resolved")))) == {"nothing to do": 1}
    assert web.published == []


def test_silence_and_maintenance_are_not_prolonged_by_repeats(web):
    silence = alert({"trainwarden_action": "silence", "trainwarden_for_s": "600"}, training_job="j", kind="hang")
    care = alert({"trainwarden_action": "maintenance", "trainwarden_for_s": "60"}, node="n1", kind="hang")
    care["fingerprint"] = "f2"
    assert outcomes(web.act("/hooks/alertmanager", batch(silence, care))) == {"silence": 2}
    web.clock.sleep(300.0)
    assert outcomes(web.act("/hooks/alertmanager", batch(silence, care))) == {"repeated": 2}
    told = [(one.job, one.incident_kind, one.node, one.until_s) for one in web.published]
    assert told == [("j", "hang", None, NOW_S + 600.0), ("*", None, "n1", NOW_S + 60.0)]


def at(moment_s: float) -> str:
    return datetime.fromtimestamp(moment_s, UTC).isoformat().replace("+00:00", "Z")


@pytest.mark.parametrize(("later_s", "outcome"), [(300.0, "silence"), (600.0, "nothing to do"), (9e5, "nothing to do")])
def test_another_process_prolongs_no_silence_by_an_alert_that_is_sent_again(web, later_s, outcome):
    """Nor does somebody who has kept a signed request and sends it later."""
    silence = alert({"trainwarden_action": "silence", "trainwarden_for_s": "600"}, training_job="j")
    silence["startsAt"] = at(NOW_S)
    assert outcomes(web.act("/hooks/alertmanager", batch(silence))) == {"silence": 1}
    restarted = Web(secrets=SECRETS)
    restarted.clock.sleep(later_s)
    assert outcomes(restarted.act("/hooks/alertmanager", batch(silence))) == {outcome: 1}
    assert {one.until_s for one in (*web.published, *restarted.published)} == {NOW_S + 600.0}


@pytest.mark.parametrize("moment", ["", "soon", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", at(NOW_S + 60.0)])
def test_a_silence_without_a_moment_of_ours_begins_now(web, moment):
    silence = alert({"trainwarden_action": "silence", "trainwarden_for_s": "600"}, training_job="j")
    silence["startsAt"] = moment
    assert outcomes(web.act("/hooks/alertmanager", batch(silence))) == {"silence": 1}
    assert [one.until_s for one in web.published] == [NOW_S + 600.0]


def test_our_own_trouble_is_a_5xx_and_what_is_sent_again_is_done(web):
    web.away = True
    assert web.act("/hooks/alertmanager", batch(alert(APPROVE))).status_code == 503
    web.away = False
    assert outcomes(web.act("/hooks/alertmanager", batch(alert(APPROVE)))) == {"approve": 1}


@pytest.mark.parametrize(
    "body", [{}, {"alerts": [{}]}, {"alerts": [{"status": "on fire"}]}, {"alerts": [alert()] * 1_001}]
)
def test_no_batch_of_alerts(web, body):
    assert web.act("/hooks/alertmanager", body).status_code in (400, 413)


def test_an_alert_may_approve_with_a_token_for_that_and_silence_nothing(web):
    silence = {"trainwarden_action": "maintenance", "trainwarden_for_s": "3600"}
    said = web.act("/hooks/alertmanager", batch(alert(silence, node="n7"), alert(APPROVE)), token=APPROVER)
    assert outcomes(said) == {"refused": 1, "approve": 1}
    assert said.json()["refused"] == ["a silence takes the role 'act'; this token's is 'approve'"]
    assert [one.kind for one in web.published] == ["approve"]


def test_alertmanager_needs_a_token_that_may_more_than_look(web):
    assert web.act("/hooks/alertmanager", batch(), token=OBSERVE).status_code == 403
    assert web.client.post("/hooks/alertmanager", json=batch()).status_code == 401


def grafana(web: Web, body: bytes, secret: bytes = SECRET, stamp: str | None = None, signed: str | None = None):
    text = body if stamp is None else stamp.encode() + b":" + body
    headers = {"x-grafana-alerting-signature": signature(secret, text) if signed is None else signed}
    headers |= {"x-grafana-alerting-timestamp": stamp} if stamp is not None else {}
    return web.client.post("/hooks/grafana", content=body, headers=headers)


def test_grafana_signs(web):
    body = json.dumps(batch(alert(APPROVE)) | {"version": "1", "orgId": 1}).encode()
    assert outcomes(grafana(web, body)) == {"approve": 1}
    assert web.published[0].by == "signed (grafana)"
    assert outcomes(grafana(web, body, stamp=str(int(NOW_S)))) == {"repeated": 1}
    assert outcomes(web.act("/hooks/grafana", json.loads(body))) == {"repeated": 1}


@pytest.mark.parametrize(
    "asked",
    [
        {"secret": b"of somebody else"},
        {"signed": ""},
        {"signed": "é"},
        {"stamp": str(int(NOW_S - 400.0))},
        {"stamp": str(int(NOW_S + 400.0))},
        {"stamp": "soon"},
        {"stamp": "9" * 40},
    ],
)
def test_a_signature_of_somebody_else_or_an_old_one(web, asked):
    if asked.get("signed") == "é":
        asked = {"signed": "é".encode("latin-1").decode("latin-1")}
        headers = {b"x-grafana-alerting-signature": asked["signed"].encode("latin-1")}
        assert web.client.post("/hooks/grafana", json=batch(), headers=headers).status_code == 401
        return
    assert grafana(web, json.dumps(batch(alert(APPROVE))).encode(), **asked).status_code == 401
    assert web.published == []
    assert metric_value(web.metrics, "requests_refused_total", status="401") == 1.0


def test_without_a_secret_no_signature_is_good():
    web = Web()
    assert grafana(web, json.dumps(batch()).encode(), secret=b"").status_code == 401


def slack(web: Web, user: str = "U1", value: Any = None, **more: Any):
    value = {"action": "i1/restart_process/1", "plan_digest": "d1"} if value is None else value
    pressed = {
        "type": "block_actions",
        "user": {"id": user, "username": "ann"},
        "actions": [{"action_id": "approve", "value": json.dumps(value)}],
    }
    body = urlencode({"payload": json.dumps(pressed | more)}).encode()
    stamp = str(int(NOW_S))
    signed = "v0=" + signature(SECRET, b"v0:" + stamp.encode() + b":" + body)
    headers = {"x-slack-request-timestamp": stamp, "x-slack-signature": signed}
    return web.client.post("/hooks/slack", content=body, headers=headers)


def test_a_button_of_the_chat(web):
    reply = slack(web)
    assert reply.json() == {"replace_original": True, "text": "approve: i1/restart_process/1, said by ann (slack)"}
    assert [one.by for one in web.published] == ["ann (slack)"]


def test_a_button_of_an_old_plan_says_so(web):
    reply = slack(web, value={"action": "i1/restart_process/1", "plan_digest": "<old>"})
    assert "nothing was done" in reply.json()["text"]
    assert web.published == []


def test_who_may_press(web):
    assert slack(web, user="U2").status_code == 403
    web.clock.sleep(400.0)
    assert slack(web).status_code == 401
    assert web.published == []


@pytest.mark.parametrize(
    "more", [{"actions": []}, {"user": None}, {"actions": [{"action_id": "explode", "value": "{}"}]}]
)
def test_a_press_that_is_none(web, more):
    assert slack(web, **more).status_code == 400


def test_files_of_secrets(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(SECRET + b"\n")
    assert read_secret(str(path), "x") == SECRET
    path.write_bytes(b"short\n")
    with pytest.raises(ConfigError, match="fewer than 16 bytes"):
        read_secret(str(path), "x")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_secret(str(tmp_path / "none"), "x")
