"""What every collector of the CATALOG keeps to, and that CATALOG and folder agree."""

from __future__ import annotations

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

import collectors
from collectors import CATALOG, ENTRY_POINTS
from tests.doubles import ManualClock
from trainwarden import plugins
from trainwarden.catalogue import CATALOGUE
from trainwarden.errors import ConfigError
from trainwarden.protocols import Collector, Scope
from trainwarden.records import MetricsRecord, Record
from trainwarden.settings import Config
from trainwarden.topics import topic_of

# Settings under which a collector finds nothing of what it looks for.
ABSENT: dict[str, dict[str, Any]] = {
    "nic": {"sysfs": "/nonexistent"},
    "host": {"proc": "/nonexistent"},
    "logs": {"kmsg_path": "/nonexistent/kmsg"},
}


def make(name: str, run_dir: Path, raw: dict[str, Any] | None = None) -> Collector:
    kind = plugins.load(CATALOG, ENTRY_POINTS, name)
    config = plugins.configure(kind, raw or {}, name)
    collector: Collector = kind(config, Scope(job="job", node="n0", run_dir=str(run_dir)), ManualClock(1000.0))
    return collector


@pytest.fixture(params=sorted(CATALOG))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_catalog_and_folder_agree() -> None:
    folder = Path(inspect.getfile(collectors)).parent
    found = set()
    for path in folder.rglob("[!_]*.py"):
        module = importlib.import_module(".".join(path.relative_to(folder.parent).with_suffix("").parts))
        for attribute, value in vars(module).items():
            if inspect.isclass(value) and value.__module__ == module.__name__ and hasattr(value, "collect"):
                found.add(f"{module.__name__}:{attribute}")
    assert found == set(CATALOG.values())


def test_its_config_is_frozen_typed_and_refuses_what_it_does_not_know(name: str) -> None:
    kind = plugins.load(CATALOG, ENTRY_POINTS, name)
    assert issubclass(kind.Config, Config)
    assert kind.__doc__
    assert kind.Config.__doc__
    config = plugins.configure(kind, {}, name)
    with pytest.raises(AttributeError):
        config.interval_s = 5.0  # type: ignore[attr-defined]
    for raw in ({"no_such_key": 1}, {"interval_s": "often"}, {"interval_s": -1.0}):
        with pytest.raises(ConfigError) as caught:
            plugins.configure(kind, raw, f"agent.collectors.{name}")
        assert str(caught.value).startswith(f"agent.collectors.{name}: ")


def test_with_everything_absent_it_says_why_or_yields_nothing_wrong(name: str, tmp_path: Path) -> None:
    collector = make(name, tmp_path / "absent", ABSENT.get(name))
    reason = collector.supported()
    assert reason is None or ("\n" not in reason and len(reason) > 10)
    if reason is None:
        assert list(collector.collect(1001.0)) is not None
    collector.close()


def test_closing_is_safe_twice_and_without_a_collect(name: str, tmp_path: Path) -> None:
    collector = make(name, tmp_path)
    collector.close()
    collector.close()
    used = make(name, tmp_path)
    if used.supported() is None:
        list(used.collect(1001.0))
    used.close()
    used.close()


def test_its_position_survives_json_and_a_restart(name: str, tmp_path: Path) -> None:
    for folder in ("hook", "logs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "logs" / "rank-0.log").write_text("one\ntwo\n")
    first = make(name, tmp_path)
    if first.supported() is not None:
        pytest.skip(first.supported() or "")
    list(first.collect(1001.0))
    position = json.loads(json.dumps(first.position()))
    first.close()
    second = make(name, tmp_path)
    assert second.supported() is None
    second.restore(position)
    assert json.loads(json.dumps(second.position())) == position
    list(second.collect(1002.0))
    second.close()


def test_what_it_yields_fits_topics_and_catalogue(name: str, tmp_path: Path) -> None:
    for folder in ("hook", "logs"):
        (tmp_path / folder).mkdir()
    collector = make(name, tmp_path)
    if collector.supported() is not None:
        pytest.skip(collector.supported() or "")
    records: list[Record] = [*collector.collect(1001.0), *collector.collect(1002.0)]
    for record in records:
        assert topic_of(record).decode(topic_of(record).encode(record)) == record
        assert (record.job, record.node) == ("job", "n0")  # type: ignore[attr-defined]
        if isinstance(record, MetricsRecord):
            assert set(record.names) <= set(CATALOGUE)
            assert len(record.names) == len(record.values) == len(set(record.names))
            assert all(len(row) == len(record.devices) for row in record.values)
            assert record.ranks == () or len(record.ranks) == len(record.devices)
    assert 0.0 < collector.interval_s <= 60.0
    assert all(isinstance(fd, int) and fd >= 0 for fd in collector.wake_fds())
    collector.close()
    assert list(collector.wake_fds()) == []
