"""Answers of several nodes in one file, or in files named after them, are told apart whatever their format."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.trainwarden.formats.judging import HEADINGS, filed, headed, judged, judged_text, labelled
from trainwarden.formats.collected import nodes_named, parts_of
from trainwarden.formats.source import Source
from trainwarden.formats.survey import sniffed

DF = """Filesystem      Size  Used Avail Use% Mounted on
/dev/sda1       100G   20G   80G  20% /
/dev/md0          7T    {}T     {}T {} /data
"""
WELL, FULL = DF.format(4, 3, "58%"), DF.format(7, 0, "100%")
NODES = {f"gpu-0{number}": FULL if number == 2 else WELL for number in range(1, 5)}


@pytest.mark.parametrize("heading", HEADINGS)
def test_headings_tell_the_node(tmp_path: Path, heading: str):
    assert judged_text(tmp_path, headed(NODES, heading)) == ("incident", [("storage", "gpu-02", None)])
    well = headed(dict.fromkeys(NODES, WELL), heading)
    assert judged_text(tmp_path, well) == ("healthy", [])


def test_labels_tell_the_node_also_where_lines_are_mixed(tmp_path: Path):
    assert judged_text(tmp_path, labelled(NODES)) == ("incident", [("storage", "gpu-02", None)])
    lines = [text.rstrip("\n").split("\n") for text in NODES.values()]
    mixed = "".join(
        f"{node}: {line}\n" for row in zip(*lines, strict=True) for node, line in zip(NODES, row, strict=True)
    )
    assert judged_text(tmp_path, mixed) == ("incident", [("storage", "gpu-02", None)])


@pytest.mark.parametrize("name", ["{}.txt", "df_{}.txt", "df-{}.out", "{}/df.txt"])
def test_paths_tell_the_node(tmp_path: Path, name: str):
    assert judged(filed(tmp_path / "files", NODES, name)) == ("incident", [("storage", "gpu-02", None)])


def test_nodes_that_answer_alike_are_unfolded():
    (first, second, third) = parts_of("-----\na[08-09],b1\n-----\nx\ny\n")
    assert (first.node, second.node, third.node, first.text) == ("a08", "a09", "b1", "x\ny\n")


def test_the_part_of_a_node_that_cannot_be_read_hides_no_other(tmp_path: Path):
    parts = {**NODES, "gpu-03": "df: /data: Stale file handle\n"}
    assert judged_text(tmp_path, headed(parts)) == ("incident", [("storage", "gpu-02", None)])
    assert judged_text(tmp_path, headed(NODES)[: len(headed(NODES)) // 2]) == (
        "incident",
        [("storage", "gpu-02", None)],
    )


@pytest.mark.parametrize(
    "text",
    [
        "=== eth0 ===\nx\n=== eth1 ===\ny\n",
        "=== 2026-09-21 ===\nx\n=== 1790000000 ===\ny\n",
        "step: 1\nstep: 2\nloss: 3\nloss: 4\n",
        "gpu0: 1\ngpu1: 2\ngpu2: 3\n",
        "-----\nresults\n-----\nx\n",
        "a1: x\nplain\nplain\nplain\n",
        "",
    ],
)
def test_what_names_no_node_is_one_source(text: str):
    assert parts_of(text) == []


def test_logs_with_labels_are_logs(tmp_path: Path):
    path = tmp_path / "run.log"
    path.write_text("".join(f"gpu-0{n % 3}: 2026-09-21 14:00:{n:02d} step {n} loss 2.0\n" for n in range(40)))
    assert sniffed(Source(path, path.name))[0] == "log text"


def test_files_of_devices_or_of_times_name_no_nodes():
    assert nodes_named(["smart_nvme0.txt", "smart_nvme1.txt"]) == []
    assert nodes_named(["gpu0.csv", "gpu1.csv"]) == []
    assert nodes_named(["part1.csv", "part2.csv"]) == []
    assert nodes_named(["n1/a1.csv", "n1/a2.csv"]) == ["a1", "a2"]
    assert nodes_named(["n1/part1.csv", "n1/part2.csv", "n2/part1.csv"]) == ["n1", "n1", "n2"]
