"""The page: what it shows of a world, to whom, and that nothing from a record comes out as markup."""

from __future__ import annotations

import html
import shlex
from collections.abc import Iterable
from html.parser import HTMLParser
from urllib.parse import quote

import msgspec
import pytest

from tests.asgi import Answer, ask
from tests.doubles import ManualClock
from tests.page_world import EVIL, NOW_S, Told, hostile, incident, overview_of, proposed, world
from trainwarden.dashboards.overview.overview import Overview
from trainwarden.dashboards.page.pages import Pages
from trainwarden.dashboards.web.app import Parts, build
from trainwarden.metrics_http.access import Person, Tokens, digest_of
from trainwarden.protocols import Message
from trainwarden.records import ActionRecord, CommandRecord, TaskRecord, TaskStatus
from trainwarden.self_metrics import SelfMetrics
from trainwarden.topics import topic_of

ACT, OBSERVE, APPROVE = "a-token-that-may-act", "a-token-that-may-look", "a-token-that-may-approve"
VOID = {"meta", "link", "br", "input", "img", "hr"}


class Site:
    """The application over an overview."""

    def __init__(self, overview: Overview, told: Iterable[Told] = (), here: str | None = None) -> None:
        self.overview = overview
        self.asked_s: list[float] = []
        self._told = list(told)
        clock = ManualClock(NOW_S)
        tokens = Tokens({digest_of(ACT): Person("on-call", "act"), digest_of(OBSERVE): Person("guest", "observe"),
                         digest_of(APPROVE): Person("pager", "approve")})  # fmt: skip
        pages = Pages(overview, clock, self._logs, self._metrics, here)
        self.said: list[CommandRecord] = []
        parts = Parts(
            overview, tokens, SelfMetrics("serve"), clock, self.said.append, routes=tuple(pages.routes())
        )  # fmt: skip
        self.app = build(parts)

    def _logs(self, from_s: float) -> Iterable[Message]:
        self.asked_s.append(from_s)
        for at, (time_s, job, record) in enumerate(self._told):
            if time_s >= from_s and topic_of(record).name == "trainwarden.logs":
                yield Message("trainwarden.logs", 0, at, time_s, job, record)

    def _metrics(self, from_s: float) -> Iterable[Message]:
        for at, (time_s, job, record) in enumerate(self._told):
            if time_s >= from_s and topic_of(record).name == "trainwarden.metrics":
                yield Message("trainwarden.metrics", 0, at, time_s, job, record)

    def get(self, url: str, token: str = ACT, accept: str = "text/html") -> Answer:
        return ask(self.app, url, authorization=f"Bearer {token}", accept=accept)


class Tags(HTMLParser):
    """What is markup, and whether it is whole."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def site() -> Site:
    told = sorted([*world(ranks=8), *hostile(NOW_S)], key=lambda one: one[0])
    return Site(overview_of(told), told)


ADDRESSES = [
    "/", "/incidents", "/incidents?open=true", "/jobs/llama-70b", f"/jobs/{quote(EVIL, safe='')}",
    "/incidents/llama-70b%2Fslow_compute%2F1", f"/incidents/{quote('i/' + EVIL, safe='')}",
    f"/logs/{quote('i/' + EVIL, safe='')}", f"/incidents?job={quote(EVIL, safe='')}", "/enter",
]  # fmt: skip


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_page_is_whole_and_nothing_of_a_record_is_markup(site: Site, address: str) -> None:
    answer = site.get(address)
    assert answer.status == 200, answer.text
    tags = Tags(answer.text)
    assert tags.open == []
    assert "img" not in tags.names
    assert {name for name, _ in tags.attributes if name.startswith("on") or name == "style"} == set()
    assert len(tags.ids) == len(set(tags.ids))
    assert all(value.startswith(("/", "#")) for name, value in tags.attributes if name in ("href", "src"))
    scripts = [value for name, value in tags.attributes if name == "src"]
    assert scripts == ([] if address.startswith("/logs") else ["/static/page.js"])


def test_the_first_page_says_what_is_wrong_and_what_waits(site: Site) -> None:
    text = site.get("/").text
    for words in ("llama-70b", "slow_compute", "Rank 5 on node-00", "6 7 7 6 6 3 6 7", "vit-sweep.17", "ended"):
        assert words in text


def test_only_who_may_act_gets_buttons_and_they_name_the_plan(site: Site) -> None:
    text = site.get("/jobs/llama-70b").text
    assert 'data-post="/api/v1/actions/rebalance%2F1/approve"' in text
    assert "{&#34;plan_digest&#34;: &#34;5f0c9a1be2d34477&#34;}" in text
    assert "data-post" not in site.get("/jobs/llama-70b", OBSERVE).text
    approver = site.get("/jobs/llama-70b", APPROVE).text
    assert 'data-post="/api/v1/actions/rebalance%2F1/approve"' in approver
    assert 'data-post="/api/v1/stop"' in site.get("/").text
    assert 'data-post="/api/v1/stop"' not in site.get("/", APPROVE).text


def test_an_incident_has_numbers_beside_its_peers_and_a_choice_of_time(site: Site) -> None:
    name = "llama-70b%2Fslow_compute%2F1"
    page = site.get(f"/incidents/{name}?before=900").text
    assert f'data-load="/numbers/{name}?before=900"' in page
    assert 'before=900#numbers-title" aria-current="true"' in page
    assert "lof abstains" in page.partition("<details")[2].partition("</details>")[0]
    numbers = site.get(f"/numbers/{name}?before=900").text
    Tags(numbers)
    assert numbers.count("<figure") >= 7
    assert "gpu_sm_clock_hertz" in numbers
    assert "throughput" in numbers
    assert site.get(f"/numbers/{name}?before=1e9").status == 200
    assert site.get("/numbers/none").status == 404


def test_a_job_has_charts_with_a_table_beside_each(site: Site) -> None:
    text = site.get("/jobs/llama-70b").text
    assert text.count('role="img"') >= 3
    assert text.count("the table below") >= 3
    assert "healthy level, 1.60 s" in text
    assert "Times of steps are as the host sees them." in text
    folded = text.partition('<details id="votes-silent">')[2].partition("</details>")[0]
    assert "lof, pca: no model is loaded" in folded


def test_what_is_unknown_is_said_to_be() -> None:
    slow = incident("i1", "quiet", NOW_S, closed=False)
    site = Site(overview_of([(NOW_S, "quiet", slow)]))
    text = site.get("/jobs/quiet").text
    assert "No iteration was recorded" in text
    assert "No detector has voted yet" in text
    for wrong in ("nan", "None<", ">-1<", "inf "):
        assert wrong not in text


def test_an_incident_whose_job_is_down_by_it_is_listed_as_open_and_said_to_be_unresolved() -> None:
    down = msgspec.structs.replace(incident("i1", "j", NOW_S, closed=True), unresolved=True)
    over = incident("i2", "j", NOW_S, closed=True)
    site = Site(overview_of([(NOW_S, "j", down), (NOW_S, "j", over)]))
    badge = '<span class="badge state-open">closed, unresolved</span>'
    listed = site.get("/incidents?open=true").text
    assert badge in listed
    assert "/incidents/i2" not in listed
    assert badge in site.get("/incidents/i1").text
    assert badge not in site.get("/incidents/i2").text


def test_an_incident_is_told_in_plain_words_with_what_to_do(site: Site) -> None:
    text = site.get("/incidents/llama-70b%2Fslow_compute%2F1").text
    for words in ("In plain words", "lof abstains: no model is loaded", "trainwarden actions approve rebalance/1"):
        assert words in text


@pytest.mark.thorough
def test_who_reads_on_the_node_itself_is_sent_to_it_by_no_ssh() -> None:
    address = "/incidents/llama-70b%2Fslow_compute%2F1"
    there, here = (Site(overview_of(world()), here=node).get(address).text for node in (None, "node-00"))
    assert "ssh node-00 top -b -n 1" in there
    assert "top -b -n 1" in here
    assert "ssh" not in here


def test_commands_hold_names_as_one_word_of_a_shell(site: Site) -> None:
    shown = html.unescape(site.get(f"/incidents/{quote('i/' + EVIL, safe='')}").text)
    assert f"trainwarden report --incident {shlex.quote('i/' + EVIL)}</code>" in shown


def test_what_nobody_waits_for_has_no_buttons() -> None:
    slow = incident("i1", "j", NOW_S, closed=False)
    shown = msgspec.structs.replace(proposed("a1", slow, NOW_S), plan_digest=None)
    site = Site(overview_of([(NOW_S, "j", slow), (NOW_S, "j", shown)]))
    for address in ("/", "/jobs/j", "/incidents/i1"):
        assert "/approve" not in site.get(address).text


def test_log_lines_around_the_first_error_are_read_when_asked_for(site: Site) -> None:
    answer = site.get("/logs/llama-70b%2Fslow_compute%2F1")
    assert "cuda.out_of_memory" in answer.text
    assert answer.text.count("<li") < 60
    assert site.asked_s[-1] == pytest.approx(NOW_S - 490.0 - 8.0 - 120.0)


def test_who_is_not_there_is_404(site: Site) -> None:
    assert site.get("/jobs/nobody").status == 404
    assert site.get("/incidents/nothing").status == 404
    assert site.get("/static/..%2fpages.py").status == 404


def test_ten_thousand_incidents_come_a_page_at_a_time() -> None:
    told = [(NOW_S, "j", incident(f"i{number}", "j", NOW_S - number)) for number in range(1_001)]
    site = Site(overview_of(told))
    first, last = site.get("/incidents").text, site.get("/incidents?page=11").text
    assert "page 1 of 11" in first
    assert first.count("<tr>") == 101
    assert last.count("<tr>") == 2
    assert site.get("/incidents?page=99999999999").status == 200
    assert "All 1001 incidents of this job" in site.get("/jobs/j").text


def test_a_stop_is_shown_with_who_said_it() -> None:
    overview = overview_of(world(ranks=2))
    command = CommandRecord(id="c", job="*", at_s=NOW_S, kind="stop", by="<b>ada</b>")
    overview.handle([Message("trainwarden.commands", 0, 0, NOW_S, "*", command)])
    text = Site(overview).get("/").text
    assert "Acting is stopped</strong> by &lt;b&gt;ada&lt;/b&gt;" in text
    assert 'data-post="/api/v1/resume"' in text
    assert 'data-post="/api/v1/stop"' not in text


def test_what_a_person_asked_for_leads_to_no_incident() -> None:
    action = ActionRecord(
        id="command/c/cordon/1", command="command/c", job="llama-70b", kind="cordon_node", outcome="done", at_s=NOW_S,
        why="its fan is loud", plan={"nodes": ["node-03"]}, by="ann",
    )  # fmt: skip
    page = Site(overview_of([*world(), (NOW_S, action.job, action)])).get("/jobs/llama-70b")
    assert page.status == 200
    assert "cordon_node" in page.text
    assert "its fan is loud</td>" in page.text


@pytest.mark.thorough
def test_what_a_person_asked_for_waits_for_nobody_and_breaks_no_page() -> None:
    """Anybody may write an action down so, with the digest of a plan."""
    action = ActionRecord(
        id="command/c/cordon/1", command="command/c", job="llama-70b", kind="cordon_node", outcome="proposed",
        at_s=NOW_S, why="its fan is loud", plan={"nodes": ["node-03"]}, plan_digest="d", by="ann",
    )  # fmt: skip
    site = Site(overview_of([*world(), (NOW_S, action.job, action)]))
    for path in ("/", "/jobs/llama-70b"):
        page = site.get(path)
        assert page.status == 200
        assert "command%2Fc" not in page.text


def of_the_coordinator(number: int, at_s: float, job: str, **more: object) -> Message:
    status = TaskStatus(
        nodes=("n1",), planned=2, restart_only=1, throughput=(0.0, 10.0, 18.75), assumed=(2,),
        waf={"now": 10.0, "planned": 18.75, "restart_only": 10.5},
    )  # fmt: skip
    task = TaskRecord(id=job, job=job, at_s=at_s, maximum=2, **{"status": status, **more})  # type: ignore[arg-type]
    return Message("trainwarden.tasks", 0, number, at_s, job, task)


def test_nodes_of_jobs_are_shown_with_what_they_are_worth_now_as_planned_and_if_only_restarted() -> None:
    site = Site(overview := Overview(ManualClock(NOW_S)))
    assert "Nodes shared out" not in site.get("/").text
    overview.handle([of_the_coordinator(0, NOW_S, "a"), of_the_coordinator(1, NOW_S, "b", weight=2.5)])
    shown = site.get("/").text
    assert (shown.count(">10.5<"), shown.count(">21<"), shown.count(">37.5<"), shown.count(">2.5<")) == (2, 1, 1, 1)
    assert "has said nothing" not in shown
    overview.handle([of_the_coordinator(2, NOW_S, "b", finished=True), of_the_coordinator(3, NOW_S, "c", status=None)])
    assert set(overview.tasks) == {"a"}
    assert not overview.jobs  # a task alone is no job that trains


def test_a_coordinator_that_is_away_is_said_to_be() -> None:
    site = Site(overview := Overview(ManualClock(NOW_S)))
    overview.handle([of_the_coordinator(0, NOW_S - 61.0, "a")])
    assert "The coordinator has reported nothing for a minute." in site.get("/").text
