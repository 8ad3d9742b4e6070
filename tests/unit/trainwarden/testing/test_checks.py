"""The contract checks find what is wrong with a collector or a launcher, and say it in one sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from tests.doubles import ScriptedCollector
from trainwarden.launching import Capabilities, LauncherState, Operation, Report, refusal
from trainwarden.protocols import Scope
from trainwarden.records import EventRecord, MetricsRecord, Record
from trainwarden.settings import Config
from trainwarden.testing import collector as collectors
from trainwarden.testing import launcher as launchers
from trainwarden.testing.plugin import check_plugin


class Sized(msgspec.Struct):
    """Fields of an event."""

    size: int


class Base(ScriptedCollector):
    """Yields what the class says."""

    class Config(ScriptedCollector.Config, frozen=True, kw_only=True):
        """An interval."""

        def __post_init__(self) -> None:
            if self.interval_s <= 0:
                raise ValueError("interval_s must be positive")

    yields: ClassVar[tuple[Record, ...]] = ()
    events: ClassVar[dict[str, type[msgspec.Struct]]] = {"mine.sized": Sized}

    def collect(self, now_s: float) -> Iterable[Record]:
        yield from self.yields


def event(**more: Any) -> EventRecord:
    return EventRecord(**{"id": "e", "job": "job", "node": "n0", "time_s": 1.0, "kind": "xid", **more})


def metrics(**more: Any) -> MetricsRecord:
    about = {"job": "job", "node": "n0", "time_s": 1.0, "devices": ("a",), "names": ("gpu_power_watts",)}
    return MetricsRecord(**{**about, "values": ((1.0,),), **more})


@pytest.mark.parametrize("record", [event(), event(kind="mine.sized", fields={"size": 1}), metrics()])
def test_a_sound_collector_passes(record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Base, "yields", (record,))
    for check in collectors.CHECKS:
        check(collectors.Case(Base, tmp_path))


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        (event(kind="mine.other"), "event kind 'mine.other' is not declared"),
        (event(kind="mine.sized", fields={"size": "x"}), "kind mine.sized: Expected `int`, got `str`"),
        (event(node="n1"), "of the collector's own job and node"),
        (metrics(names=("made_up",)), r"metrics that no catalogue knows are dropped by the agent: \['made_up'\]"),
        (metrics(values=((1.0, 2.0),)), "one value of each metric for each device"),
        (metrics(ranks=(1, 2)), "one rank for each device"),
    ],
)
def test_a_collectors_fault_is_one_sentence(
    record: Record, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Base, "yields", (record,))
    with pytest.raises(AssertionError, match=sentence):
        collectors.what_it_yields_fits(collectors.Case(Base, tmp_path))


def test_names_of_ones_own_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "table.toml"
    table.write_text(
        '[[metric]]\nname = "queue_bytes"\nunit = "bytes"\nkind = "gauge"\nper = "host"\nmeaning = "Bytes that wait."\n'
    )
    monkeypatch.setattr("trainwarden.plugins.beside", lambda plugin, name: table)
    monkeypatch.setattr("trainwarden.plugins.admit", lambda plugin, name: None)
    with pytest.raises(AssertionError, match="metric queue_bytes must begin with 'host_' and end in '_bytes'"):
        check_plugin(Base)
    monkeypatch.setattr("trainwarden.plugins.beside", lambda plugin, name: None)
    monkeypatch.setattr(Base, "events", {"sized": Sized})
    with pytest.raises(AssertionError, match="event kind 'sized' must carry its plug-in's name and a dot"):
        check_plugin(Base)


class Desk:
    """A launcher that restarts on paper."""

    class Config(Config, frozen=True, kw_only=True):
        """Nothing to set."""

    kept: ClassVar[dict[str, Report]] = {}
    job = None

    def __init__(self, config: Config, scope: Scope) -> None:
        """Everything is kept by the class."""

    def capabilities(self) -> Capabilities:
        return Capabilities(can=frozenset({"restart"}), cannot={"evict": "a desk has one node"})

    def state(self, job: str) -> LauncherState:
        return LauncherState(job=job, phase="running", generation=len(self.kept))

    def submit(self, operation: Operation) -> Report:
        if (known := self.poll(operation.job, operation.id)).state != "unknown":
            return known
        if no := refusal(operation, self.capabilities(), len(self.kept)):
            return no
        self.kept[operation.id] = Report(operation=operation.id, state="done")
        return self.kept[operation.id]

    def poll(self, job: str, operation: str) -> Report:
        return self.kept.get(operation, Report(operation=operation, state="unknown"))


class Eager(Desk):
    """Does all that it is asked, every time."""

    def submit(self, operation: Operation) -> Report:
        self.kept[f"{operation.id}/{len(self.kept)}"] = Report(operation=operation.id, state="done")
        self.kept[operation.id] = Report(operation=operation.id, state="done")
        return self.kept[operation.id]


class Torn(Desk):
    """Says yes and no."""

    def capabilities(self) -> Capabilities:
        return Capabilities(can=frozenset({"restart"}), cannot={"restart": "not today"})


@pytest.fixture(autouse=True)
def empty_desk() -> None:
    Desk.kept.clear()


def test_a_sound_launcher_passes() -> None:
    for check in launchers.CHECKS:
        check(launchers.Case(Desk, "job"))


@pytest.mark.parametrize(
    ("plugin", "check", "sentence"),
    [
        (Torn, launchers.it_says_what_it_can_do, "it says both that it can and that it cannot restart"),
        (Eager, launchers.what_it_cannot_do_is_refused, "it cannot .*, but it answers done"),
        (Eager, launchers.what_is_stale_is_refused, "a stale restart is answered"),
        (Eager, launchers.an_operation_is_done_once_by_its_id, "the generation must rise once, not 3 times"),
    ],
)
def test_a_launchers_fault_is_one_sentence(
    plugin: type[Any], check: Callable[[launchers.Case], None], sentence: str
) -> None:
    with pytest.raises(AssertionError, match=sentence):
        check(launchers.Case(plugin, "job"))
