"""Plug-ins: which run, where they come from, and what they bring."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import msgspec
import pytest

from trainwarden import catalogue, collectors, detectors, plugins
from trainwarden.errors import ConfigError
from trainwarden.plugins import OptIn
from trainwarden.settings import AgentSettings, EngineSettings, Settings

TABLE = {"a": "m:A", "b": "m:B", "rare": OptIn("m:Rare")}
GROUP = "trainwarden.collectors"
MODULE = """
import msgspec
from trainwarden.settings import Config

class Full(msgspec.Struct):
    bytes: int

class Queue:
    "A queue."
    class Config(Config, frozen=True, kw_only=True):
        "Nothing to set."
    metrics_file = "queue.toml"
    events = {"mine.full": Full}
"""
METRIC = """
[[metric]]
name = "host_queue_bytes"
unit = "bytes"
kind = "gauge"
per = "host"
meaning = "Bytes that wait."
aliases = ["queue_depth"]
"""


def test_what_settings_do_not_name_stays_as_it_is() -> None:
    assert plugins.chosen(TABLE, GROUP, {}) == {"a": {}, "b": {}}
    assert plugins.chosen(TABLE, GROUP, {"b": {"x": 1}}) == {"a": {}, "b": {"x": 1}}
    assert plugins.chosen(TABLE, GROUP, {"b": {}}) == {"a": {}, "b": {}}


def test_one_is_switched_on_or_off_by_its_name() -> None:
    assert plugins.chosen(TABLE, GROUP, {"a": False}) == {"b": {}}
    assert plugins.chosen(TABLE, GROUP, {"rare": True}) == {"a": {}, "b": {}, "rare": {}}
    assert plugins.chosen(TABLE, GROUP, {"rare": {"x": 1}})["rare"] == {"x": 1}


@pytest.mark.parametrize("said", [{"c": {}}, {"c": True}, {"c": False}])
def test_an_unknown_name_is_one_sentence(said: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        plugins.chosen(TABLE, GROUP, said)
    assert str(caught.value) == "there is no collectors plug-in 'c'; there are: a, b, rare"


def test_all_of_ours_run_by_default_but_what_needs_addresses() -> None:
    for package, off in ((collectors, {"prometheus"}), (detectors, set())):
        by_default = list(plugins.chosen(package.CATALOG, package.ENTRY_POINTS, {}))
        assert by_default == [name for name in package.CATALOG if name not in off]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A third party's package: a module `queue_depth` and its table, and an entry point `queue`."""
    (tmp_path / "queue_depth.py").write_text(MODULE)
    (tmp_path / "queue.toml").write_text(METRIC)
    monkeypatch.syspath_prepend(tmp_path)
    points = EntryPoints([EntryPoint("queue", "queue_depth:Queue", GROUP), EntryPoint("gone", "no_such:X", GROUP)])
    monkeypatch.setattr(plugins, "entry_points", lambda group: points.select(group=group))
    for module, table in ((catalogue, "CATALOGUE"), (catalogue, "ALIASES"), (plugins, "_EVENTS")):
        monkeypatch.setattr(module, table, dict(getattr(module, table)))
    yield tmp_path
    sys.modules.pop("queue_depth", None)


def test_a_third_party_runs_where_it_is_named(installed: Path) -> None:
    assert "queue" not in plugins.chosen(TABLE, GROUP, {})
    assert plugins.chosen(TABLE, GROUP, {"queue": True}) == {"a": {}, "b": {}, "queue": {}}
    assert plugins.names(TABLE, GROUP) == ["a", "b", "rare", "gone", "queue"]


def test_it_brings_its_metrics_and_events(installed: Path) -> None:
    assert catalogue.lookup("host_queue_bytes") is None
    plugins.load({}, GROUP, "queue")
    metric = catalogue.lookup("queue_depth")
    assert metric is not None
    assert (metric.name, metric.per) == ("host_queue_bytes", "host")
    assert catalogue.added() == (metric,)
    assert "mine.full" in plugins._EVENTS
    plugins.load({}, GROUP, "queue")
    catalogue.add(catalogue.added())
    assert catalogue.added() == (metric,)


def test_every_process_brings_what_the_settings_name(installed: Path) -> None:
    plugins.bring(Settings(engine=EngineSettings(launcher="queue")))  # of another group: no matter here
    plugins.bring(Settings(agent=AgentSettings(collectors={"queue": False, "elsewhere": {}})))
    assert catalogue.lookup("host_queue_bytes") is None
    plugins.bring(Settings(agent=AgentSettings(collectors={"queue": {}})))
    assert catalogue.lookup("host_queue_bytes") is not None


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("host_queue_bytes", "host_memory_total_bytes", "the metric name 'host_memory_total_bytes' is taken already"),
        ("queue_depth", "DCGM_FI_DEV_GPU_TEMP", "the metric name 'DCGM_FI_DEV_GPU_TEMP' is taken already"),
        ("gauge", "gouge", "queue.toml: Invalid enum value 'gouge'"),
        ("[[metric]]", "[[metrics]]", "queue.toml: Object"),
        ("[[metric]]", "[[metric", "queue.toml: "),
    ],
)
def test_a_table_that_does_not_fit_is_one_sentence(installed: Path, old: str, new: str, sentence: str) -> None:
    (installed / "queue.toml").write_text(METRIC.replace(old, new))
    before = dict(catalogue.CATALOGUE)
    with pytest.raises(ConfigError) as caught:
        plugins.load({}, GROUP, "queue")
    assert str(caught.value).startswith("collectors plug-in 'queue': ")
    assert sentence in str(caught.value)
    assert before == catalogue.CATALOGUE


def test_a_table_that_is_not_there_is_one_sentence(installed: Path) -> None:
    (installed / "queue.toml").unlink()
    with pytest.raises(ConfigError, match=r"collectors plug-in 'queue': queue\.toml cannot be read"):
        plugins.load({}, GROUP, "queue")


@pytest.mark.parametrize("kind", ["xid", "theirs.full"])
def test_an_event_kind_belongs_to_one(installed: Path, kind: str) -> None:
    (installed / "queue_depth.py").write_text(MODULE.replace("mine.full", kind))
    plugins._EVENTS["theirs.full"] = type("Theirs", (msgspec.Struct,), {})
    with pytest.raises(ConfigError, match=f"collectors plug-in 'queue': the event kind '{kind}' is taken already"):
        plugins.load({}, GROUP, "queue")


def test_what_cannot_be_imported_is_one_sentence(installed: Path) -> None:
    with pytest.raises(ConfigError, match="collectors plug-in 'gone' cannot be imported from no_such:X: "):
        plugins.load({}, GROUP, "gone")


def test_two_of_one_name_are_one_too_many(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints([EntryPoint("queue", f"{place}:Queue", GROUP) for place in ("one", "two")])
    monkeypatch.setattr(plugins, "entry_points", lambda group: points.select(group=group))
    with pytest.raises(ConfigError, match="'queue' comes from one:Queue and two:Queue: uninstall one of them"):
        plugins.load({}, GROUP, "queue")
