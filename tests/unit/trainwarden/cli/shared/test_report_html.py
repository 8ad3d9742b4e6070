"""The HTML report stands alone and lets nothing from logs or names through as markup."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from trainwarden.cli.shared.follow import JobView
from trainwarden.cli.shared.report_html import write_report
from trainwarden.records import ActionRecord, IncidentRecord, IterationRecord, Suspect, VerdictRecord, Vote

EVIL = "<script>alert(1)</script>"


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]


def evil_view() -> JobView:
    view = JobView("j")
    steps = tuple(range(1, 31))
    for rank in range(3):
        view.feed(
            IterationRecord(
                job="j", node="n", rank=rank, incarnation="1-1", steps=steps, end_s=tuple(float(s) for s in steps),
                duration_s=tuple(0.5 for _ in steps), compute_s=tuple(0.4 for _ in steps),
            )
        )  # fmt: skip
    suspect = Suspect(score=1.0, reason=EVIL, rank=1, node=EVIL)
    view.feed(
        IncidentRecord(
            id="i", job="j", kind="exception", severity="sev2", state="opened", revision=0, opened_at_s=9.0,
            updated_at_s=9.0, onset_step=9, reason=EVIL, suspects=(suspect,), votes={"hard_event": 1.0},
        )
    )  # fmt: skip
    view.feed(ActionRecord(id="a", incident="i", job="j", kind="restart_job", outcome="done", at_s=10.0, why=EVIL))
    vote = Vote(opinion="anomalous", score=1.0, reason=EVIL)
    for time_s in (1.0, 2.0):
        view.feed(
            VerdictRecord(
                id=f"v{time_s}", job="j", time_s=time_s, window_s=1.0, anomalous=True, reason="r", votes={EVIL: vote}
            )
        )
    return view


def test_the_report_stands_alone_and_escapes_everything(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, evil_view(), title=EVIL, summary=EVIL)
    tags = Tags()
    tags.feed(path.read_text(encoding="utf-8"))
    assert "script" not in tags.seen
    assert tags.links == []
    assert tags.seen.count("svg") == 3
    assert tags.seen.count("table") == 2


def test_an_empty_run_has_a_report_too(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, JobView("j"), title="t", summary="s")
    assert "No iteration was recorded" in path.read_text(encoding="utf-8")


def test_who_did_not_vote_is_said_with_the_reason_and_a_plan_in_words(tmp_path: Path) -> None:
    view = JobView("j")
    votes = {
        "hard_event": Vote(opinion="normal", score=0.1),
        "lof": Vote(opinion="abstain", reason="no model is loaded"),
        "pca": Vote(opinion="abstain", reason="no model is loaded"),
    }
    view.feed(VerdictRecord(id="v", job="j", time_s=1.0, window_s=1.0, anomalous=False, reason="r", votes=votes))
    plan = {"micro_batches": [7, 7, 3, 7], "before": [6, 6, 6, 6]}
    view.feed(
        ActionRecord(id="a", incident="i", job="j", kind="rebalance", outcome="done", at_s=1.0, why="w", plan=plan)
    )
    path = tmp_path / "report.html"
    write_report(path, view, title="t", summary="s")
    text = path.read_text(encoding="utf-8")
    assert "did not vote: lof, pca: no model is loaded" in text
    assert text.count(">lof<") == 0
    assert "micro batches: 7 7 3 7; before: 6 6 6 6" in text
