"""The page in a real browser: a person signs in, looks, and acts; by keyboard, in the dark, on a phone."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from tests.page_world import EVIL, hostile, incident, publish, world
from tests.servers import axe
from tests.servers.chromium import Chromium
from tests.servers.kafka import ServerMissing
from tests.servers.page import PageServer
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.cli.ask.report import report
from trainwarden.dashboards.page.events import MOST_LISTENERS
from trainwarden.records import CommandRecord
from trainwarden.topics import COMMANDS, INCIDENTS

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

SLOW = "/incidents/llama-70b%2Fslow_compute%2F1"
PAGES = ["/", "/jobs/llama-70b", SLOW, "/incidents", f"/jobs/{quote(EVIL, safe='')}"]
# The requests that the page makes, as it makes them.
OVERHEAR = """
window.made = [];
const real = window.fetch;
window.fetch = async (url, told) => {
  const answer = await real(url, told);
  if (told && told.method === 'POST') window.made.push([url, told.body, answer.status]);
  return answer;
}
"""
FOCUSED = "return document.activeElement.id || document.activeElement.tagName"
LUMA = """
const [r, g, b] = getComputedStyle(document.body).backgroundColor.match(/[0-9]+/g).map(Number);
return 0.3 * r + 0.6 * g + 0.1 * b
"""
OPAQUE = """
const canvas = document.querySelector('.plot.heat canvas');
const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
let orange = 0;
for (let at = 0; at < data.length; at += 4) if (data[at] > 200 && data[at + 2] < 80) orange++;
return orange / (data.length / 4)
"""


class Stage(NamedTuple):
    server: PageServer
    browser: Chromium
    bus: Path

    def show(self, path: str, scheme: str = "light", width: int = 1280, height: int = 900) -> Chromium:
        self.browser.look(scheme, width, height)
        self.browser.open(self.server.uri + path)
        return self.browser


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, require_servers: Callable[[str], Any]) -> Iterator[Stage]:
    place = tmp_path_factory.mktemp("page")
    try:
        browser = Chromium(place / "browser")
    except ServerMissing as missing:
        require_servers(str(missing))
    now_s = time.time()
    told = sorted([*world(now_s, ranks=16), *hostile(now_s)], key=lambda one: one[0])
    address = publish(place / "bus.db", told)
    with PageServer(place / "serve", address) as server, browser:
        browser.open(server.entrance)
        browser.shows("All jobs", "llama-70b")
        yield Stage(server, browser, place / "bus.db")


@pytest.fixture(scope="module")
def checker(require_servers: Callable[[str], Any]) -> str:
    try:
        return axe.script()
    except ServerMissing as missing:
        require_servers(str(missing))
        raise


def test_the_printed_address_leads_in_and_leaves_no_token_in_it(stage: Stage) -> None:
    stage.browser.open(stage.server.entrance)
    assert stage.browser.run("return location.pathname + location.search") == "/"
    assert stage.browser.run("return document.cookie") == ""


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(
    stage: Stage, checker: str, path: str, scheme: str, width: int
) -> None:
    browser = stage.show(path, scheme, width)
    assert axe.violations(browser, checker) == []
    wide, screen = browser.run("return [document.documentElement.scrollWidth, innerWidth]")
    assert (wide, screen) == (width, width)
    assert (browser.run(LUMA) > 128) == (scheme == "light")


def test_hostile_words_are_text(stage: Stage) -> None:
    name = quote(f"i/{EVIL}", safe="")
    for path in ("/", f"/jobs/{quote(EVIL, safe='')}", f"/incidents/{name}"):
        browser = stage.show(path)
        browser.shows("<script>window.evil=1</script>")
        if path.startswith("/incidents"):
            browser.shows("Tried to allocate 2.00 GiB. <script>window.evil=1</script>")
        assert browser.run("return [window.evil, document.querySelectorAll('img').length]") == [None, 0]


def test_the_heat_map_shows_the_slow_rank(stage: Stage) -> None:
    browser = stage.show("/jobs/llama-70b")
    share = browser.until("the slow rank", lambda: browser.run(OPAQUE))
    assert 0.34 / 16 / 2 < share < 0.34 / 16 * 2


def test_the_keyboard_reaches_the_buttons_and_an_approval_names_the_plan(stage: Stage) -> None:
    browser = stage.show("/jobs/llama-70b")
    browser.run(OVERHEAR)
    order = []
    for _ in range(12):
        browser.press("Tab")
        order.append(browser.run(FOCUSED))
        if order[-1].startswith("approve"):
            break
    assert order[-1] == "approve-rebalance%2F1"
    assert browser.run("return document.activeElement.matches(':focus-visible')")
    browser.press("Enter")
    ((url, body, status),) = browser.until("the request", lambda: browser.run("return window.made"))
    assert (url, status) == ("/api/v1/actions/rebalance%2F1/approve", 202)
    assert json.loads(body) == {"plan_digest": "5f0c9a1be2d34477"}
    browser.until("what came of it", lambda: browser.run("return document.getElementById('said').textContent"))
    bus = EmbeddedBus(str(stage.bus))
    words = [message.record for message in bus.read(COMMANDS)]
    bus.close()
    approved = [one for one in words if isinstance(one, CommandRecord) and one.action == "rebalance/1"]
    assert [(one.kind, one.by, one.plan_digest) for one in approved] == [("approve", "local", "5f0c9a1be2d34477")]


def test_a_stop_is_said_by_one_button_and_ended_by_another(stage: Stage) -> None:
    browser = stage.show("/")
    browser.run("document.getElementById('stop').click()")
    browser.shows("Acting is stopped by local")
    browser.run("document.getElementById('resume').click()")
    browser.until("the end of it", lambda: "Acting is stopped by" not in browser.text())


def test_the_first_key_skips_to_the_content(stage: Stage) -> None:
    browser = stage.show("/")
    browser.press("Tab")
    assert browser.run("return document.activeElement.textContent") == "Skip to content"
    browser.press("Enter")
    assert browser.run(FOCUSED) == "main"


def test_news_appear_without_a_reload(stage: Stage) -> None:
    browser = stage.show("/")
    browser.shows("live")
    browser.run("window.stays = 1")
    bus = EmbeddedBus(str(stage.bus))
    bus.publish(INCIDENTS, "late", incident("late/1", "late", time.time(), closed=False, text="It has just happened."))
    bus.flush()
    bus.close()
    browser.shows("It has just happened.")
    assert browser.run("return window.stays") == 1


def test_a_stream_that_was_refused_is_asked_for_again(stage: Stage) -> None:
    """A browser gives an EventSource up at the first answer that is none, and says nothing."""
    head = f"GET /events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {stage.server.token}\r\n\r\n"
    stage.browser.open("about:blank")  # and listens no more itself
    with ExitStack() as others:
        for _ in range(MOST_LISTENERS):
            other = others.enter_context(socket.create_connection(("127.0.0.1", stage.server.port), timeout=10.0))
            other.sendall(head.encode())
            other.recv(1_024)
        page = stage.show("/")
        page.shows("reconnecting")
    page.shows("live")


def test_who_has_no_token_gets_a_form(stage: Stage) -> None:
    elsewhere = stage.server.uri.replace("localhost", "127.0.0.1")
    stage.browser.open(f"{elsewhere}/jobs/llama-70b")
    stage.browser.shows("Sign in", "Token")
    stage.browser.run("document.getElementById('token').value = 'wrong'; document.forms[0].submit()")
    stage.browser.shows("This server does not know that token.")
    stage.browser.run("document.getElementById('token').value = arguments[0]", stage.server.entrance.rpartition("=")[2])
    stage.browser.run("document.forms[0].submit()")
    stage.browser.shows("All jobs")


@pytest.mark.parametrize("width", [1280, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_is_the_same_page_in_one_file(
    stage: Stage, checker: str, tmp_path: Path, scheme: str, width: int
) -> None:
    file = tmp_path / "report.html"
    assert report(bus=f"embedded:{stage.bus}", job="llama-70b", out=file) == 0
    browser = stage.browser
    browser.look(scheme, width, 900)
    browser.open(file.as_uri())
    browser.shows("slow_compute", "CUDA out of memory")
    assert browser.until("the slow rank", lambda: browser.run(OPAQUE) if scheme == "light" else 1) > 0
    assert axe.violations(browser, checker) == []
    assert browser.run("return document.documentElement.scrollWidth") == width
    asked = "return performance.getEntriesByType('resource').length"
    assert browser.run(asked) == 0


def test_a_hostile_report_runs_nothing(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert report(bus=f"embedded:{stage.bus}", incident=f"i/{EVIL}", out=file) == 0
    stage.browser.open(file.as_uri())
    stage.browser.shows("<script>window.evil=1</script>")
    assert stage.browser.run("return [window.evil, document.querySelectorAll('img').length]") == [None, 0]
