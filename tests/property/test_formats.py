"""The same fleet in every format gets the same verdict: the braking GPU is found, a healthy fleet is not accused."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract.test_formats import FILES
from tests.fleet_formats import GPUS, WRITERS, write
from trainwarden.detectors.recorded.facts import read_facts
from trainwarden.detectors.recorded.replay import replay
from trainwarden.errors import DataError
from trainwarden.formats import CATALOG
from trainwarden.formats.cells import NotNumber, number_of
from trainwarden.formats.reading import read_job
from trainwarden.formats.source import Source
from trainwarden.formats.survey import made
from trainwarden.settings import DetectionSettings

DEVICE_DETECTORS = ("device_limits", "device_peers", "hard_event")


def verdict(path: Path) -> list[tuple[str, str | None]]:
    """Kind and first suspect's device of each incident."""
    job = read_job(path)
    result = replay(job, DetectionSettings(), names=DEVICE_DETECTORS, facts=read_facts(job))
    return [(one.kind, one.suspects[0].device if one.suspects else None) for one in result.incidents]


@pytest.mark.thorough
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("faulty", [None, 6])
def test_the_verdict_is_the_same_in_every_format(name: str, faulty: int | None, tmp_path: Path) -> None:
    expected = [] if faulty is None else [("gpu_throttle", f"gpu{faulty}")]
    assert verdict(write(tmp_path, name, faulty)) == expected


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_tells_the_same_of_every_gpu(name: str, tmp_path: Path) -> None:
    metrics = read_job(write(tmp_path, name, 6)).metrics
    assert metrics is not None
    assert sorted(str(device) for device in metrics.devices) == [f"gpu{gpu}" for gpu in range(GPUS)]
    clock = metrics.values[:, metrics.names.index("gpu_sm_clock_hertz")]
    slow = {metrics.devices[entity] for entity in metrics.entity[clock < 1e9].tolist()}
    assert slow == {"gpu6"}
    assert metrics.replaced == 0


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(list(CATALOG)), head=st.text(max_size=400))
def test_no_text_breaks_a_format(name: str, head: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert 0.0 <= made(name).sniff("file.txt", head) <= 1.0
    path = tmp_path_factory.mktemp("junk") / "rank_0.txt"
    path.write_text(head, encoding="utf-8", errors="surrogatepass")
    said = "rank_0.txt"
    try:
        made(name).read(Source(path, "rank_0.txt"), {})
    except DataError as error:
        said = str(error)
    assert said.startswith("rank_0.txt")


def spoilt(whole: Any, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
    """Put another value in the place of one in `whole`, or beside one; each depth is as likely as the others."""
    parents = [whole]
    while inner := [one for one in _inner(parents[-1]) if isinstance(one, dict | list) and one]:
        parents.append(inner[draw(st.integers(0, len(inner) - 1))])
    at = parents[draw(st.integers(0, len(parents) - 1))]
    value = draw(st.sampled_from(VALUES))
    if isinstance(at, list):
        at[draw(st.integers(0, len(at) - 1))] = value
    else:
        at[draw(st.sampled_from([*at, "other"]))] = value


def _inner(one: Any) -> list[Any]:
    return list(one.values()) if isinstance(one, dict) else one


def documents(data: bytes) -> list[Any]:
    """The JSON of a sample, or that of its lines; empty for other samples."""
    try:
        return [json.loads(data)]
    except ValueError:
        pass
    try:
        return [json.loads(line) for line in data.splitlines() if line.strip()]
    except ValueError:
        return []


JSON_FILES = [path for path in FILES if documents(path.read_bytes())]
VALUES = (5, None, [], [5], {}, "", "x", True, 10**400, float("inf"))


@pytest.mark.thorough
@settings(max_examples=20, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("sample", JSON_FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_no_value_of_json_breaks_a_format(
    sample: Path, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = documents(sample.read_bytes())
    spoilt(whole[data.draw(st.integers(0, len(whole) - 1))], data.draw)
    path = tmp_path_factory.mktemp("leaf") / sample.name
    text = "\n".join(json.dumps(one) for one in whole)
    path.write_text(text.replace("Infinity", "1e400"), encoding="utf-8")
    with suppress(DataError):
        read_job(path)


@given(st.text(max_size=60))
def test_a_cell_is_a_number_or_refused(text: str) -> None:
    try:
        value, unit = number_of(text)
    except NotNumber:
        return
    assert value == value or value != value
    assert isinstance(unit, str)
