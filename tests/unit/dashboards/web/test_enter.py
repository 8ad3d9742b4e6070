"""Signing in by link and by form."""

from __future__ import annotations

import pytest

from tests.asgi import ask
from tests.page_world import overview_of
from tests.unit.dashboards.page.test_pages import ACT, OBSERVE, Site

COOKIE = "trainwarden_token_8760"


@pytest.fixture(scope="module")
def site() -> Site:
    return Site(overview_of([]))


def test_the_printed_address_sets_a_cookie_and_goes_on(site: Site) -> None:
    answer = ask(site.app, f"/enter?token={ACT}")
    assert (answer.status, answer.headers["location"]) == (303, "/")
    said = answer.headers["set-cookie"].lower()
    assert said.startswith(f"{COOKIE}={ACT};")
    assert {"httponly", "samesite=strict"} <= {word.strip() for word in said.split(";")}
    assert "secure" not in said
    assert ask(site.app, "/", cookie=f"{COOKIE}={ACT}", accept="text/html").status == 200


def test_the_form_does_the_same(site: Site) -> None:
    answer = ask(site.app, "/enter", method="POST", body=f"token=+{OBSERVE}+".encode())
    assert (answer.status, answer.headers["location"]) == (303, "/")


def test_a_form_that_is_not_ours_is_no_trouble_of_ours(site: Site) -> None:
    answer = ask(site.app, "/enter", method="POST", body=b"&".join(b"a=1" for _ in range(50)))
    assert answer.status == 401


@pytest.mark.parametrize("token", ["wrong", "", "x" * 5_000, "a-token-that-may-act%00"])
def test_a_wrong_token_is_said_and_counted(site: Site, token: str) -> None:
    answer = ask(site.app, f"/enter?token={token}")
    assert answer.status == 401
    assert "does not know that token" in answer.text
    assert "set-cookie" not in answer.headers
    assert ask(site.app, "/enter", method="POST", body=b"token=" + token.encode()).status == 401
    counted = ask(site.app, "/metrics").text
    assert 'trainwarden_serve_requests_refused_total{status="401"}' in counted


def test_a_browser_gets_a_form_and_a_program_a_problem(site: Site) -> None:
    browser, program = ask(site.app, "/jobs/j", accept="text/html,*/*"), ask(site.app, "/jobs/j", accept="*/*")
    assert (browser.status, program.status) == (401, 401)
    assert 'action="/enter"' in browser.text
    assert program.headers["content-type"] == "application/problem+json"
    assert "form-action 'self'" in browser.headers["content-security-policy"]


def test_two_ports_of_one_host_are_two_sign_ins(site: Site) -> None:
    assert ask(site.app, "/", cookie=f"trainwarden_token_9999={ACT}", accept="text/html").status == 401
