"""Requests that are signed in place of carrying a token: Grafana's webhooks and Slack's buttons."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Final

from trainwarden.dashboards.web.problems import Problem
from trainwarden.signing import signature

WINDOW_S: Final = 300.0
GRAFANA_SIGNATURE: Final = "x-grafana-alerting-signature"
GRAFANA_TIMESTAMP: Final = "x-grafana-alerting-timestamp"


def check_grafana(headers: Mapping[str, str], body: bytes, secret: bytes | None, now_s: float) -> None:
    """Grafana's signature: HMAC-SHA256 over the body, or over ``timestamp:body`` where it sends a timestamp.

    Raises
    ------
    Problem
        401 if there is none, it is another's, or it is old.
    """
    stamp = headers.get(GRAFANA_TIMESTAMP)
    if stamp is not None:
        _fresh(stamp, now_s)
        body = stamp.encode() + b":" + body
    _same(headers.get(GRAFANA_SIGNATURE, ""), body, secret)


def check_slack(headers: Mapping[str, str], body: bytes, secret: bytes | None, now_s: float) -> None:
    """Slack's signature: HMAC-SHA256 over ``v0:timestamp:body``, at most five minutes old.

    Raises
    ------
    Problem
        401 if there is none, it is another's, or it is old.
    """
    stamp = headers.get("x-slack-request-timestamp", "")
    _fresh(stamp, now_s)
    version, _, given = headers.get("x-slack-signature", "").partition("=")
    _same(given if version == "v0" else "", b"v0:" + stamp.encode() + b":" + body, secret)


def _same(given: str, text: bytes, secret: bytes | None) -> None:
    if secret is None or not hmac.compare_digest(given.lower().encode(), signature(secret, text).encode()):
        raise Problem(401, "a token or a signature by the secret of this hook is needed")


def _fresh(stamp: str, now_s: float) -> None:
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) < 16 and abs(now_s - int(stamp)) <= WINDOW_S):
        raise Problem(401, "the time stamp of this request is missing or more than five minutes off")
