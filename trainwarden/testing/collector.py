"""The contract of collectors: `check_collector` asks one everything, `CHECKS` are the questions one by one.

A third party's test is three lines::

    from trainwarden.testing.collector import check_collector

    def test_contract(tmp_path: Path) -> None:
        check_collector(MyCollector, tmp_path, {"root": "made/by/the/test"}, absent={"root": "/nonexistent"})
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from trainwarden import plugins
from trainwarden.catalogue import CATALOGUE
from trainwarden.errors import ConfigError, RecordError
from trainwarden.protocols import Collector, Scope
from trainwarden.records import EVENT_KINDS, EventRecord, MetricsRecord, Record
from trainwarden.testing.plugin import check_page, check_plugin, refused
from trainwarden.topics import EVENTS, fields_as, topic_of

START_S: Final = 1000.0
SCOPE: Final = {"job": "job", "node": "n0"}


class _StillClock:
    """Nobody waits in a check."""

    def now_s(self) -> float:
        return START_S

    def monotonic_s(self) -> float:
        return START_S

    def sleep(self, seconds: float) -> None:
        """No time passes."""


@dataclass
class Case:
    """A collector under test.

    Parameters
    ----------
    plugin : type
        Its class.
    folder : Path
        Its run folder; may hold what it reads.
    settings : mapping
        Settings under which its source is there.
    absent : mapping
        Settings under which it is not.
    """

    plugin: type[Any]
    folder: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    absent: Mapping[str, Any] = field(default_factory=dict)

    def made(self) -> Collector:
        """A new one on a clock that stands still."""
        return self._made(self.settings, self.folder)

    def without(self) -> Collector:
        """A new one that finds nothing."""
        return self._made(self.absent, self.folder / "absent")

    def _made(self, settings: Mapping[str, Any], folder: Path) -> Collector:
        config = plugins.configure(self.plugin, settings, "settings")
        collector: Collector = self.plugin(config, Scope(run_dir=str(folder), **SCOPE), _StillClock())
        return collector

    def there(self) -> str | None:
        """Why its source is not there, if it is not."""
        collector = self.made()
        reason = collector.supported()
        collector.close()
        return reason


def check_collector(
    plugin: type[Any], folder: Path, settings: Mapping[str, Any], absent: Mapping[str, Any] | None = None
) -> None:
    """Ask a third party's collector everything; `settings` are such that its source is there.

    Raises
    ------
    AssertionError
        With one sentence on what is not as it should be.
    """
    check_page(plugin)
    case = Case(plugin, folder, settings, absent or {})
    assert (reason := case.there()) is None, f"with {dict(settings)} its source should be there, but: {reason}"
    if absent is not None:
        reason = case.without().supported()
        assert reason is not None, f"with {dict(absent)} `supported` must say that its source is not there"
    for check in CHECKS:
        check(case)


def it_has_a_checked_config(case: Case) -> None:
    """`check_plugin`, and an interval that is a positive number."""
    check_plugin(case.plugin)
    for raw in ({"interval_s": "often"}, {"interval_s": -1.0}):
        says = refused(ConfigError, lambda raw=raw: plugins.configure(case.plugin, raw, "here"))  # type: ignore[misc]
        assert says.startswith("here: "), f"a mistake is one sentence that begins with its place, not {says!r}"


def it_says_why_its_source_is_absent(case: Case) -> None:
    """Without its source it says so in one sentence, or yields nothing wrong."""
    collector = case.without()
    reason = collector.supported()
    assert reason is None or ("\n" not in reason and len(reason) > 10), f"not one clear sentence: {reason!r}"
    if reason is None:
        list(collector.collect(START_S + 1.0))
    collector.close()


def closing_is_safe_twice(case: Case) -> None:
    """With and without a collection before."""
    collector = case.made()
    collector.close()
    collector.close()
    used = case.made()
    if used.supported() is None:
        list(used.collect(START_S + 1.0))
    used.close()
    used.close()
    assert list(used.wake_fds()) == [], "a closed collector must not name file descriptors"


def its_position_survives_a_restart(case: Case) -> None:
    """The position is JSON, and another one goes on from it."""
    first = case.made()
    if first.supported() is not None:
        return
    list(first.collect(START_S + 1.0))
    position = json.loads(json.dumps(first.position()))
    first.close()
    second = case.made()
    second.supported()
    second.restore(position)
    again = json.loads(json.dumps(second.position()))
    assert again == position, f"restored from {position} its position is {again}"
    list(second.collect(START_S + 2.0))
    second.close()


def what_it_yields_fits(case: Case) -> None:
    """Records of its scope that a topic takes, metrics of the catalogue, events that are declared."""
    collector = case.made()
    if collector.supported() is not None:
        return
    records: list[Record] = [*collector.collect(START_S + 1.0), *collector.collect(START_S + 2.0)]
    for record in records:
        decoded = topic_of(record).decode(topic_of(record).encode(record))
        assert decoded == record, f"not the same after a journey over the bus: {record}"
        scope = {name: getattr(record, name) for name in SCOPE}
        assert scope == SCOPE, f"a record must be of the collector's own job and node, not of {scope}"
        if isinstance(record, MetricsRecord):
            _check_metrics(record)
        elif isinstance(record, EventRecord):
            _check_event(case.plugin, record)
    assert 0.0 < collector.interval_s <= 60.0, f"an interval must be within a minute, not {collector.interval_s} s"
    assert all(isinstance(fd, int) and fd >= 0 for fd in collector.wake_fds()), "wake_fds are file descriptors"
    collector.close()


CHECKS: Final[tuple[Callable[[Case], None], ...]] = (
    it_has_a_checked_config,
    it_says_why_its_source_is_absent,
    closing_is_safe_twice,
    its_position_survives_a_restart,
    what_it_yields_fits,
)


def _check_metrics(record: MetricsRecord) -> None:
    unknown = set(record.names) - set(CATALOGUE)
    assert not unknown, f"metrics that no catalogue knows are dropped by the agent: {sorted(unknown)}"
    assert len(record.names) == len(record.values) == len(set(record.names)), "one row of values for each name"
    fits = all(len(row) == len(record.devices) for row in record.values)
    assert fits, "one value of each metric for each device"
    assert record.ranks == () or len(record.ranks) == len(record.devices), "one rank for each device, or none at all"
    assert record.models == () or len(record.models) == len(record.devices), "one model for each device, or none at all"


def _check_event(plugin: type[Any], event: EventRecord) -> None:
    own: Mapping[str, type[msgspec.Struct]] = getattr(plugin, "events", {})
    assert event.kind in EVENT_KINDS or event.kind in own, f"event kind '{event.kind}' is not declared in `events`"
    if event.kind in own:
        try:
            fields_as(EVENTS.decode(EVENTS.encode(event)), own[event.kind])
        except RecordError as error:
            raise AssertionError(str(error)) from error
