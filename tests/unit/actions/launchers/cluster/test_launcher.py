"""One node's launcher, before anything of it runs."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from actions.launchers.cluster import orders
from actions.launchers.cluster.attempts import found
from actions.launchers.cluster.launcher import Meeting, NodeLauncher
from actions.launchers.cluster.ledger import Ledger, LedgerEntry
from actions.launchers.cluster.words import Attempt, Report, Shape
from actions.launchers.local.ranks import Place
from tests.doubles import ManualClock
from trainwarden.errors import ConfigError

ASIDE = Ledger(epoch=3, number=2, paused=True, aside=("n2",), entries=(LedgerEntry(id="o", kind="evict", attempt=1),))
STOPPED = Ledger(epoch=3, number=2, aside=("n2",), entries=(LedgerEntry(id="o", kind="stop", attempt=1),))


def launcher(folder: Path, rdzv: str = "127.0.0.1:29401", job: str = "j") -> NodeLauncher:
    place = Place(command=("python",), ranks=1, run_dir=folder, job=job, node="n")
    meeting = Meeting(rdzv=rdzv, shape=Shape(nodes=1, least_nodes=1))
    node = NodeLauncher(place, meeting, ManualClock(), {}, stop_grace_s=1.0)
    node._reporter = SimpleNamespace(wake=lambda: None)  # type: ignore[assignment]
    return node


def test_a_port_that_somebody_took_while_the_node_waited_is_offered_no_more(tmp_path: Path) -> None:
    node = launcher(tmp_path)
    with socket.create_server(("127.0.0.1", node.report().port)) as taken:
        assert node.report().port != taken.getsockname()[1]


def test_what_was_obeyed_before_a_kill_is_remembered(tmp_path: Path) -> None:
    (tmp_path / "allegiance.json").write_text('{"epoch":7,"holder":"n/1"}')
    assert (launcher(tmp_path).report().obeyed_epoch, launcher(tmp_path).report().obeyed_holder) == (7, "n/1")
    (tmp_path / "allegiance.json").write_text('{"epoch":"x"}')
    assert launcher(tmp_path).report().obeyed_epoch == 0


@pytest.mark.parametrize(
    ("rdzv", "why"),
    [
        ("10.0.0.1:29401", "only with a token"),
        ("10.0.0.1", "HOST:PORT"),
        ("127.0.0.1:0", "HOST:PORT"),
        ("127.0.0.1:99999", "HOST:PORT"),
        ("127.0.0.1:00000170000", "HOST:PORT"),
        (":1", "HOST:PORT"),
    ],
)
def test_a_meeting_place_that_is_none_is_refused(tmp_path: Path, rdzv: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        launcher(tmp_path, rdzv)


def test_what_is_asked_of_the_job_is_told_on_every_node_once_with_who_and_why(tmp_path: Path) -> None:
    node = launcher(tmp_path)
    asked = LedgerEntry(id="o", kind="evict", attempt=1, node="n2", by="ann (act)", why="its fan is loud")
    for number, done in enumerate((False, False, True, True), 1):
        entries = (msgspec.structs.replace(asked, done=done),)
        node._orders.ledger = Ledger(epoch=1, number=number, entries=entries)
        node._advance()
    told = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(one["id"], one["kind"], one["fields"]["stage"]) for one in told] == [
        ("operation/o/accepted", "operation", "accepted"), ("operation/o/done", "operation", "done"),
    ]  # fmt: skip
    assert told[0]["message"] == "an evict of n2 was asked for by ann (act): its fan is loud"
    fields = told[0]["fields"]
    assert (fields["by"], fields["why"], fields["verb"], fields["target"]) == ("ann (act)", asked.why, "evict", "n2")


def hears(node: NodeLauncher, ledger: Ledger) -> None:
    node._orders.ledger = ledger
    assert node.report().ledger is None, "not before it is on disk: who was killed now would have forgotten it"
    node._advance()


def test_what_was_asked_of_the_job_is_known_to_the_next_process_of_the_node(tmp_path: Path) -> None:
    hears(launcher(tmp_path), ASIDE)
    after = launcher(tmp_path)
    assert after.report().ledger == ASIDE
    assert after._memory.sentence == "n2 set aside and the job suspended"
    assert launcher(tmp_path, job="another").report().ledger is None


def test_of_a_job_that_was_to_end_nothing_is_known_to_one_that_is_begun_later(tmp_path: Path) -> None:
    hears(launcher(tmp_path), STOPPED)
    assert launcher(tmp_path).report().ledger is None
    hears(launcher(tmp_path), ASIDE)
    launcher(tmp_path)._memory.forget()
    assert launcher(tmp_path).report().ledger is None


@pytest.mark.parametrize("text", ["", "{", '{"job":"j"}', '{"job":"j","ledger":{"epoch":"x"}}', "[" * 9000])
def test_a_damaged_ledger_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "ledger.json").write_text(text)
    assert launcher(tmp_path).report().ledger is None


def test_a_disk_that_takes_nothing_holds_no_word_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = launcher(tmp_path)
    monkeypatch.setattr(orders, "save_json", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    hears(node, ASIDE)
    assert node.report().ledger == ASIDE
    assert launcher(tmp_path).report().ledger is None


def test_a_report_before_the_ranks_of_an_attempt_start_tells_no_first_step_of_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader took it for a job that started over, and ended a healthy one for good."""
    node = launcher(tmp_path)
    node._first_step, node._awaits_step = 40, True
    attempt = Attempt(epoch=1, number=2, roster=(node._life,), master="n", port=1, checkpoint="step-60", step=60)
    node._orders._wanted = attempt
    told: list[Report] = []
    monkeypatch.setattr(node, "_start", lambda _attempt: told.append(node.report()))
    node._advance()
    assert [(one.ran, one.first_step) for one in told] == [((1, 2), None)]
    assert found(attempt, told) is None
