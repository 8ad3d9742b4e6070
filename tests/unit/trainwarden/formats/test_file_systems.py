"""File systems in the series of node_exporter, as databases export them: the mount without room is named."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.trainwarden.formats.answers import Suspects, answer_to

T0, EVERY_S, SAMPLES, SIZE = 1_790_000_000, 60, 40, 28e12
MOUNTS = {"/": "ext4", "/scratch": "xfs", "/snap/core/9": "squashfs"}


class One(NamedTuple):
    name: str
    labels: dict[str, str]
    values: list[float]


def series(full: str = "", readonly: str = "", since: int = 20, nodes: int = 3) -> Iterator[One]:
    """Series of `nodes`; `full` and `readonly` name a node whose /scratch is so from sample `since` on."""
    for node in (f"n{number}" for number in range(nodes)):
        for place, kind in MOUNTS.items():
            labels = {"instance": f"{node}:9100", "mountpoint": place, "fstype": kind, "device": "/dev/x"}
            sealed, odd = kind == "squashfs", [place == "/scratch" and number >= since for number in range(SAMPLES)]
            yield One("node_filesystem_size_bytes", labels, [SIZE] * SAMPLES)
            left = [0.0 if sealed or (one and node == full) else SIZE / 2 for one in odd]
            yield One("node_filesystem_avail_bytes", labels, left)
            yield One("node_filesystem_readonly", labels, [float(sealed or (one and node == readonly)) for one in odd])


def victoria(told: Iterator[One]) -> str:
    stamps = [1000 * (T0 + EVERY_S * number) for number in range(SAMPLES)]
    return "".join(json.dumps({"metric": {"__name__": one.name, **one.labels}, "values": one.values,
                               "timestamps": stamps}) + "\n" for one in told)  # fmt: skip


def query_range(told: Iterator[One]) -> str:
    result = [{"metric": {"__name__": one.name, **one.labels},
               "values": [[T0 + EVERY_S * number, str(value)] for number, value in enumerate(one.values)]}
              for one in told]  # fmt: skip
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def promtool(told: Iterator[One]) -> str:
    text = ""
    for one in told:
        labels = ", ".join(f'{key}="{value}"' for key, value in one.labels.items())
        text += f"{one.name}{{{labels}}} =>\n"
        text += "".join(f"{value:.0f} @[{T0 + EVERY_S * number}]\n" for number, value in enumerate(one.values))
    return text


FORMS = {"export.jsonl": victoria, "answer.json": query_range, "query.txt": promtool}
Form = Callable[[Iterator[One]], str]
SCRATCH: Suspects = [(None, "n1", "mount:/scratch")]


@pytest.mark.parametrize(("name", "form"), FORMS.items(), ids=FORMS)
@pytest.mark.parametrize("what", ["full", "readonly"])
def test_the_mount_that_fills_up_or_turns_read_only_is_named(tmp_path: Path, name: str, form: Form, what: str):
    assert answer_to(tmp_path, {name: form(series(**{what: "n1"}))}) == ("incident", [("storage", SCRATCH)])


@pytest.mark.parametrize(("name", "form"), FORMS.items(), ids=FORMS)
def test_mounts_with_room_are_healthy_and_sealed_ones_are_none(tmp_path: Path, name: str, form: Form):
    assert answer_to(tmp_path, {name: form(series())}) == ("healthy", [])


def test_a_mount_that_is_full_from_the_first_sample_is_named_too(tmp_path: Path):
    told = answer_to(tmp_path, {"export.jsonl": victoria(series(full="n1", since=0))})
    assert told == ("incident", [("storage", [(None, "n1", None)])])


def test_files_of_nodes_are_read_as_one(tmp_path: Path):
    parts = {f"{node}.jsonl": victoria(one for one in series(full="n1") if one.labels["instance"][:2] == node)
             for node in ("n0", "n1", "n2")}  # fmt: skip
    assert answer_to(tmp_path, parts) == ("incident", [("storage", SCRATCH)])


def test_an_export_that_is_cut_short_is_judged_by_what_is_whole(tmp_path: Path):
    text = victoria(series(full="n1"))
    assert answer_to(tmp_path / "most", {"export.jsonl": text[:-300]}) == ("incident", [("storage", SCRATCH)])
    assert answer_to(tmp_path / "start", {"export.jsonl": text[:200]})[0] == "not judged"


def test_room_without_the_size_says_nothing_of_how_full_it_is(tmp_path: Path):
    left = (one for one in series(full="n1") if one.name == "node_filesystem_avail_bytes")
    assert answer_to(tmp_path, {"export.jsonl": victoria(left)})[0] != "healthy"
