"""The contract checks find what is wrong with a detector, and say it in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from trainwarden.detectors.job.packed import pack, unpack
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.protocol import Role
from trainwarden.detectors.testing import checks
from trainwarden.detectors.testing.checks import Case, check_detector
from trainwarden.records import Vote
from trainwarden.settings import Config


class Exits:
    """Votes when a process has ended."""

    class Config(Config, frozen=True, kw_only=True):
        """Nothing to set."""

    role: ClassVar[Any] = Role(reads="events", opens=("hard",))
    page = "exits.md"
    more = False
    found: Any = Vote(opinion="anomalous", score=1.0, kind="crash", severity="sev2", reason="gone", hard=True)

    def __init__(self, config: Config) -> None:
        self.seen = 0

    def update(self, window: Window) -> None:
        self.seen += sum(event.kind == "process_exit" for event in window.events)

    def score(self, window: Window) -> Vote:
        vote: Vote = self.found if self.seen else Vote(opinion="normal")
        return vote

    def state(self) -> bytes:
        return pack("exits", {"seen": self.seen})

    def restore(self, state: bytes) -> None:
        self.seen = unpack("exits", state)[0]["seen"]


class Roleless(Exits):
    """As it says."""

    role = "hard"


class Boastful(Exits):
    """Claims more than its role."""

    role = Role(reads="events")


class Nervous(Exits):
    """Sees faults in everything."""

    def score(self, window: Window) -> Vote:
        return self.found


class Silent(Exits):
    """Gives no reason."""

    found = Vote(opinion="anomalous", score=1.0, kind="crash", severity="sev2", hard=True)


class Blind(Exits):
    """Sees nothing."""

    def update(self, window: Window) -> None:
        """Nothing."""


class Curious(Exits):
    """Learns by being asked."""

    def score(self, window: Window) -> Vote:
        self.seen += 1
        return super().score(window)


class Forgetful(Exits):
    """Keeps nothing."""

    def restore(self, state: bytes) -> None:
        unpack("exits", state)
        self.seen = 1


class Trusting(Exits):
    """Takes any state."""

    def restore(self, state: bytes) -> None:
        """Nothing."""


def stream(sick: bool) -> Any:
    """An exit, which a healthy job does not have."""
    from trainwarden.detectors.testing.streams import START_S, event

    return [(START_S + place, event("process_exit" if sick else "phase", START_S + place, 1)) for place in range(4)]


@pytest.mark.parametrize(
    ("plugin", "check", "sentence"),
    [
        (
            Roleless,
            checks.it_says_what_its_votes_may_do,
            r"Roleless\.role must be a trainwarden\.detectors\.protocol\.Role",
        ),
        (Boastful, checks.it_says_what_its_votes_may_do, "a vote is hard, but its role does not open by that: gone"),
        (Nervous, checks.it_is_calm_when_there_is_nothing, "an empty window is anomalous: gone"),
        (Nervous, checks.it_is_calm_while_all_is_well, "a healthy job is anomalous: gone"),
        (Blind, checks.it_says_what_and_why, "Blind finds nothing: give it a contract_stream"),
        (Silent, checks.it_says_what_and_why, "an anomalous vote must say why"),
        (Curious, checks.scoring_changes_nothing, "asked twice"),
        (Forgetful, checks.its_state_can_be_cut_anywhere, "restored from its state it votes differently"),
        (Trusting, checks.foreign_state_is_refused, "restore must raise DetectorError"),
    ],
)
def test_a_fault_is_one_sentence(
    plugin: type[Any], check: Callable[[Case], None], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if plugin is Curious:
        monkeypatch.setattr(Curious, "found", property(lambda self: Vote(opinion="normal", score=self.seen / 1e6)))
    with pytest.raises(AssertionError, match=sentence):
        check(Case(plugin))


def test_its_own_stream_goes_before_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exits, "contract_stream", staticmethod(stream), raising=False)
    case = Case(Exits)
    assert sum(len(window.events) for window in case.eventful) == 4
    checks.it_says_what_and_why(case)
    checks.it_is_calm_while_all_is_well(case)


def test_a_sound_one_passes_and_needs_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match=r"the page of Exits is not there: .*exits\.md"):
        check_detector(Exits)
    page = tmp_path / "exits.md"
    page.write_text("# exits\n")
    monkeypatch.setattr("trainwarden.plugins.beside", lambda plugin, name: page if name == "page" else None)
    check_detector(Exits)
