"""The report: one file that fetches nothing, lets nothing from a record through as markup, and stays small."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from tests.page_world import EVIL, NOW_S, Told, hostile, incident, proposed, world
from tests.unit.dashboards.page.test_pages import Tags
from trainwarden.dashboards.overview.job import JobOverview
from trainwarden.dashboards.page.frozen import write_report
from trainwarden.protocols import Message
from trainwarden.records import IncidentRecord
from trainwarden.topics import topic_of


def told_of(told: Iterable[Told], job: str) -> JobOverview:
    overview = JobOverview(job, whole=True)
    for at, (time_s, name, record) in enumerate(told):
        if name == job:
            overview.apply(Message(topic_of(record).name, 0, at, time_s, name, record))
    return overview


def logs_of(told: Iterable[Told]) -> list[Message]:
    return [
        Message("trainwarden.logs", 0, at, time_s, name, record)
        for at, (time_s, name, record) in enumerate(told)
        if topic_of(record).name == "trainwarden.logs"
    ]


def written(path: Path, told: list[Told], job: str, one: IncidentRecord | None = None, text: str = "s") -> str:
    logs = logs_of(told)
    write_report(path, told_of(told, job), lambda _from_s: logs, title=text, summary=text, incident=one)
    return path.read_text(encoding="utf-8")


def test_it_stands_alone_and_escapes_everything(tmp_path: Path) -> None:
    text = written(tmp_path / "r.html", hostile(NOW_S), EVIL, text=EVIL)
    tags = Tags(text)
    assert tags.open == []
    assert "img" not in tags.names
    assert "link" not in tags.names
    assert [value for name, value in tags.attributes if name == "src"] == []
    assert all(value.startswith("#") for name, value in tags.attributes if name == "href"), tags.attributes
    assert {name for name, _ in tags.attributes if name.startswith("on") or name == "style"} == set()
    assert tags.names.count("script") == 3
    assert len(tags.ids) == len(set(tags.ids))
    assert "Tried to allocate 2.00 GiB. &lt;script&gt;" in text


def test_its_policy_lets_in_its_own_script_and_style_alone(tmp_path: Path) -> None:
    text = written(tmp_path / "r.html", world(ranks=2), "llama-70b")
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    for tag in ("style", "script"):
        (body,) = re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src &#39;sha256-{digest}&#39;" in policy[1]
    assert "default-src &#39;none&#39;" in policy[1]
    assert "unsafe" not in policy[1]


def test_it_tells_the_whole_run_with_each_incident_in_full(tmp_path: Path) -> None:
    text = written(tmp_path / "r.html", world(ranks=8), "llama-70b")
    for words in ("healthy level, 1.60 s", "cuda.out_of_memory", "Slowest ranks", "restart_process", "6 7 7 6 6 3 6 7"):
        assert words in text
    assert text.count('id="incident-') == 2
    assert "data-post=" not in text


def test_one_incident_alone(tmp_path: Path) -> None:
    told = world(ranks=2)
    one = next(r for _, _, r in told if isinstance(r, IncidentRecord) and r.state == "opened")
    text = written(tmp_path / "r.html", told, "llama-70b", one)
    assert text.count('id="incident-') == 1
    assert '<th scope="row" class="kind">restart_process</th>' not in text


def test_an_empty_run_has_a_report_too(tmp_path: Path) -> None:
    text = written(tmp_path / "r.html", [], "j")
    assert "No iteration was recorded" in text


@pytest.mark.thorough
def test_it_stays_below_three_megabytes(tmp_path: Path) -> None:
    """1,024 ranks, 10,000 incidents and 10,000 actions, every word of them as long as may be."""
    overview = told_of([], "j")
    ranks, seconds = 1_024, np.random.default_rng(0).uniform(0.5, 2.0, (3, 1_024, 360))
    overview.pace._rows = {rank: rank for rank in range(ranks)}
    overview.pace._sums, overview.pace._counts = seconds, np.ones_like(seconds)
    overview.pace._newest = int(NOW_S / overview.pace.bin_s)
    for number in range(10_000):
        one = incident(f"i{number}", "j", NOW_S - number, text="long " * 1_000)
        overview.apply(Message("trainwarden.incidents", 0, number, NOW_S, "j", one))
        action = proposed(f"a{number}", one, NOW_S, why="long " * 1_000)
        overview.apply(Message("trainwarden.actions", 0, number, NOW_S, "j", action))
    path = tmp_path / "r.html"
    write_report(path, overview, lambda _from_s: [], title="t", summary="s")
    assert 300_000 < path.stat().st_size < 3_000_000


@pytest.mark.parametrize("ranks", [0, 1])
def test_a_job_without_steps_or_with_one_rank(tmp_path: Path, ranks: int) -> None:
    told = [one for one in world(ranks=max(1, ranks)) if ranks or topic_of(one[2]).name != "trainwarden.iterations"]
    assert "llama-70b" in written(tmp_path / "r.html", told, "llama-70b", text="llama-70b")
