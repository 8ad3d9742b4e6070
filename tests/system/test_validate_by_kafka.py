"""Whom to measure between two attempts is asked of a real Kafka broker, and what was found is told there."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.kafka import KafkaBroker
from tests.system.test_validate_between_attempts import Site, conditions
from trainwarden.launching import rates_in

pytestmark = [
    pytest.mark.system,
    pytest.mark.kafka,
    pytest.mark.timeout(300),
    # kafka-python leaves the socket of every refused reconnection to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def site(kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator[Site]:
    pytest.importorskip("torch")
    site = Site(tmp_path, kafka_broker.address)
    try:
        yield site
    finally:
        site.close()
        gc.collect()


def test_a_suspect_that_detection_names_on_kafka_is_measured_before_ranks_start_again(site: Site) -> None:
    site.suspect("n2")
    began_s = time.monotonic()
    site.kill_a_rank()
    site.until("another attempt", lambda: site.attempts() == [0, 1])
    print(f"steps again {time.monotonic() - began_s:.1f} s after a rank was killed, with suspects asked of Kafka")
    site.until("its record", site.told)
    (told,) = site.told()
    assert (told.id, told.kind, told.outcome) == ("i1/validate/1", "validate", "done")
    assert (told.plan["verdict"], told.plan["confirmed"]) == ("confirmed", ["n2"]), told.why
    slowest = rates_in(told.plan).devices[0]
    assert slowest.node == "n2"
    assert slowest.peers_gflop_s is not None
    assert slowest.gflop_s < 0.8 * slowest.peers_gflop_s
    assert slowest.said in told.why
    assert conditions(site) == {"n1": "healthy", "n2": "cordoned", "n3": "healthy"}


@pytest.fixture
def lonely_site(own_kafka_broker: KafkaBroker, tmp_path: Path) -> Iterator[Site]:
    pytest.importorskip("torch")
    site = Site(tmp_path, own_kafka_broker.address)
    try:
        yield site
    finally:
        site.close()
        gc.collect()


def test_a_broker_that_is_gone_keeps_no_job_down(own_kafka_broker: KafkaBroker, lonely_site: Site) -> None:
    lonely_site.suspect("n2")
    own_kafka_broker.kill()
    began_s = time.monotonic()
    lonely_site.kill_a_rank()
    lonely_site.until("another attempt", lambda: lonely_site.attempts() == [0, 1])
    print(f"steps again {time.monotonic() - began_s:.1f} s after a rank was killed, with a broker that is gone")
    assert conditions(lonely_site) == {"n1": "healthy", "n2": "healthy", "n3": "spare"}
    assert lonely_site.validations() == []
    own_kafka_broker.restart()
