"""Who is let in: host, size, token, role; each refusal counted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.asgi import scope_of
from tests.doubles import metric_value
from tests.web_doubles import ACT, OBSERVE, Web, bearer
from trainwarden.dashboards.web.guard import MAX_BODY_BYTES

COOKIE = "trainwarden_token_8760"


@pytest.fixture
def web():
    return Web()


def refusals(web: Web, status: int) -> float | None:
    return metric_value(web.metrics, "requests_refused_total", status=str(status))


def assert_refused(web: Web, response, status: int) -> None:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status
    assert refusals(web, status) == 1.0


@pytest.mark.parametrize(
    "headers", [{}, bearer("a-token-of-nobody"), {"authorization": f"Basic {ACT}"}, {"authorization": ACT}]
)
def test_without_a_token_401(web, headers):
    response = web.client.get("/api/v1/jobs", headers=headers)
    assert_refused(web, response, 401)
    assert response.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("path", ["/api/v1/nothing", "/", "/api/v1/incidents/i1"])
def test_without_a_token_nobody_learns_what_there_is(web, path):
    assert web.client.get(path).status_code == 401


@pytest.mark.parametrize("path", ["/healthz", "/metrics"])
def test_open_to_all(web, path):
    assert web.client.get(path).status_code == 200


def test_the_wrong_role_403(web):
    assert_refused(web, web.act("/api/v1/stop", {}, token=OBSERVE), 403)


def test_both_roles_may_look(web):
    for token in (OBSERVE, ACT):
        assert web.ask("/api/v1/jobs", token)["jobs"] == []


def test_too_large_413(web):
    body = b" " * (MAX_BODY_BYTES + 1)
    assert_refused(web, web.client.post("/api/v1/stop", content=body, headers=bearer(ACT)), 413)


def test_too_large_without_saying_so_413(web):
    pieces = (b" " * 1024 for _ in range(MAX_BODY_BYTES // 1024 + 1))
    assert_refused(web, web.client.post("/api/v1/stop", content=pieces, headers=bearer(ACT)), 413)


def test_who_leaves_in_the_midst_of_a_request_is_no_trouble_of_ours(web):
    said = iter([{"type": "http.request", "body": b"to", "more_body": True}, {"type": "http.disconnect"}])

    async def receive() -> Any:
        return next(said)

    async def send(_message: Any) -> None:
        return None

    asyncio.run(web.app(scope_of("POST", "/enter", {}), receive, send))
    assert metric_value(web.metrics, "errors_total") is None


@pytest.mark.parametrize("host", ["evil.example", "", "[::1", "localhost.evil.example", "[", "[x]:1", "%"])
def test_a_name_that_is_not_ours_421(web, host):
    """A page from elsewhere may make a browser ask us by a name of its own (DNS rebinding)."""
    assert_refused(web, web.client.get("/api/v1/jobs", headers={**bearer(ACT), "host": host}), 421)


@pytest.mark.parametrize("host", ["localhost/healthz?x=", "localhost/static/?", "127.0.0.1:1/metrics#"])
def test_a_host_that_holds_a_path_opens_nothing(web, host):
    assert_refused(web, web.client.get("/api/v1/jobs", headers={"host": host}), 401)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1:8760", "10.0.0.7", "[::1]:8760", "a.lan"])
def test_names_and_addresses_that_are_ours(host):
    response = Web(hosts=("a.lan",)).client.get("/api/v1/jobs", headers={**bearer(ACT), "host": host})
    assert response.status_code == 200


@pytest.mark.parametrize("origin", [None, "http://evil.example", "null", "http://localhost.evil:8760"])
def test_a_cookie_acts_from_our_own_page_alone(web, origin):
    headers = {"cookie": f"{COOKIE}={ACT}"} | ({"origin": origin} if origin else {})
    assert_refused(web, web.client.post("/api/v1/stop", json={}, headers=headers), 403)


def test_a_cookie_from_our_own_page_is_let_in(web):
    headers = {"cookie": f"{COOKIE}={ACT}", "origin": "http://localhost:8760"}
    assert web.client.post("/api/v1/nothing", json={}, headers=headers).status_code == 404
    assert web.client.get("/api/v1/jobs", headers={"cookie": f"{COOKIE}={OBSERVE}"}).status_code == 200


def test_every_answer_has_the_headers_of_safety(web):
    for response in (
        web.client.get("/api/v1/jobs"),
        web.client.get("/healthz"),
        web.client.get("/x", headers=bearer(ACT)),
    ):
        assert response.headers["content-security-policy"].startswith("default-src 'none'")
        assert response.headers["x-content-type-options"] == "nosniff"
