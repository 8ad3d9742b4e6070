"""The way to the bus: what the bus refuses for good is counted and left, and everything else goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.doubles import ManualClock, MemoryBus, log_record, metric_value
from trainwarden.collectors.agent.delivery import Delivery
from trainwarden.collectors.agent.spool import Spool
from trainwarden.errors import BusUnavailable, RecordsRefused
from trainwarden.records import LogRecord
from trainwarden.self_metrics import SelfMetrics


class Refusing(MemoryBus):
    """Never takes the record of line 3: says so at a flush, and lets go of it."""

    def flush(self, timeout_s: float = 30.0) -> None:
        if self.away:
            raise BusUnavailable("away by the test")
        bad = [one for one in self.queued if isinstance(one[2], LogRecord) and one[2].ends == (3,)]
        if bad:
            self.queued = [one for one in self.queued if one not in bad]
            raise RecordsRefused("too large for its topic", tuple((topic, key, b"") for topic, key, _ in bad))
        super().flush(timeout_s)


@pytest.mark.parametrize("spooled", [False, True], ids=["at once", "from the spool"])
def test_a_record_that_a_topic_refuses_for_good_holds_up_no_other(tmp_path: Path, spooled: bool) -> None:
    bus, clock, metrics = Refusing(), ManualClock(1.0), SelfMetrics("agent")
    delivery = Delivery(lambda: bus, Spool(tmp_path, 65_536), clock, metrics, key="job", flush_timeout_s=1.0)
    bus.away = spooled
    delivery.send([log_record(number) for number in range(6)])
    bus.away = False
    for _ in range(3):
        clock.sleep(10.0)
        delivery.drain()
    assert bus.queued == [], "what is not confirmed is not done"
    delivery.send([log_record(6)])
    assert [one.ends[0] for one in bus.records(LogRecord)] == [0, 1, 2, 4, 5, 6]
    assert not delivery.behind
    assert metric_value(metrics, "dropped_records_total", why="refused") == 1.0
    assert bus.closed == 0
    delivery.close()


class Barred(MemoryBus):
    """Takes nothing, and says from the second refusal on that it is the same."""

    refusals = 0

    def flush(self, timeout_s: float = 30.0) -> None:
        if bad := tuple((topic, key, b"") for topic, key, _ in self.queued):
            self.queued, self.refusals = [], self.refusals + 1
            raise RecordsRefused("writing is not permitted", bad, is_repeated=self.refusals > 1)


def test_a_topic_that_stays_refused_is_logged_once_and_each_record_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bus, clock, metrics = Barred(), ManualClock(1.0), SelfMetrics("agent")
    delivery = Delivery(lambda: bus, Spool(tmp_path, 65_536), clock, metrics, key="job", flush_timeout_s=1.0)
    for number in range(20):
        delivery.send([log_record(number)])
    assert caplog.messages.count("records refused") == 1
    assert metric_value(metrics, "dropped_records_total", why="refused") == 20.0
    delivery.close()
