"""Every format of the CATALOG has a sample of its own, is recognised by it, and reads it; no other claims it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.places import ROOT
from trainwarden.errors import DataError
from trainwarden.formats import CATALOG
from trainwarden.formats.collected import parts_of
from trainwarden.formats.protocol import LIKELY, SURE
from trainwarden.formats.source import Source
from trainwarden.formats.survey import made, sniffed

SAMPLES = ROOT / "tests" / "data" / "formats"


def kind(path: Path) -> str:
    """The folder of a sample."""
    return path.relative_to(SAMPLES).parts[0]


FILES = [path for path in sorted(SAMPLES.rglob("*")) if path.is_file() and path.name != "README.md"]


def test_samples_and_the_catalogue_are_the_same_set():
    assert {path.name for path in SAMPLES.iterdir() if path.is_dir()} == {name.replace(" ", "_") for name in CATALOG}
    assert all(any(kind(path) == name.replace(" ", "_") for path in FILES) for name in CATALOG)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{kind(path)}/{path.name}")
def test_a_sample_is_taken_for_its_format_and_read(path: Path):
    source = Source(path, str(path.relative_to(SAMPLES / kind(path))))
    found, confidence = sniffed(source)
    assert found is not None
    assert (found.replace(" ", "_"), confidence >= LIKELY) == (kind(path), True)
    content = made(found).read(source, {})
    assert content.rows > 0
    assert content.metrics or content.iterations or content.dumps or content.collectives or content.ras \
        or content.events or content.logs or content.stacks or content.pairs or content.clocks \
        or content.kernels  # fmt: skip
    for table in content.metrics:
        assert len(table.times_s) == len(table.entity) == len(table.values) > 0
        assert (table.times_s > 1e9).all()


@pytest.mark.parametrize("name", ["kernel sums", "accelerator table"])
def test_a_format_with_marks_of_its_own_claims_nothing_else_of_our_test_data(name: str):
    others = [path for path in sorted(SAMPLES.parent.rglob("*")) if path.is_file() and kind_below(path) != name]
    claimed = [path for path in others if made(name).sniff(path.name, Source(path, path.name).head) > 0.0]
    assert (claimed, len(others) > 400) == ([], True)


def kind_below(path: Path) -> str:
    """The format of a sample, "" of other test data."""
    return kind(path).replace("_", " ") if path.is_relative_to(SAMPLES) and path.parent != SAMPLES else ""


@pytest.mark.parametrize("name", CATALOG)
@pytest.mark.parametrize("head", ["", "\x00\x01\x02", "{", "[[[[", "a" * 5_000, ",,,,\n" * 50, "# \n# \n", "<html>"])
def test_junk_is_not_claimed(name: str, head: str):
    assert made(name).sniff("notes.bin", head) < LIKELY


@pytest.mark.parametrize("sample", FILES, ids=lambda path: f"{kind(path)}/{path.name}")
def test_what_is_cut_short_is_read_or_refused_with_one_sentence(sample: Path, tmp_path: Path):
    name = next(name for name in CATALOG if name.replace(" ", "_") == kind(sample))
    data = sample.read_bytes()
    for share in (0.2, 0.5, 0.8):
        path = tmp_path / sample.name
        path.write_bytes(data[: int(len(data) * share)])
        said = path.name
        try:
            made(name).read(Source(path, path.name), {})
        except DataError as error:
            said = str(error)
        assert said.startswith(path.name)
        assert "\n" not in said


# Pairs of formats that are as sure of one sample: the first of them in the CATALOG reads it.
BOTH = {("gpu_records", "nvidia-smi csv"), ("log_records", "prometheus json"), ("log_records", "recorded table")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{kind(path)}/{path.name}")
def test_no_other_format_is_as_sure_of_a_sample(path: Path):
    source = Source(path, path.name)
    if path.suffix in (".parquet", ".xlsx"):
        return
    sure = {name for name in CATALOG if made(name).sniff(path.name.lower(), source.head) >= SURE}
    assert {one for one in sure if one.replace(" ", "_") != kind(path) and (kind(path), one) not in BOTH} == set()
    assert parts_of(source.head) == []


TABLES = (
    "port settings", "fabric links", "fabric counters", "socket list", "sadf report", "board sensors", "clock report",
)  # fmt: skip
REPORTS = sorted((ROOT / "tests" / "data" / "reports").glob("*.toml"))


@pytest.mark.parametrize("table", REPORTS, ids=lambda path: path.stem)
def test_excerpts_of_logs_are_no_tables(table: Path):
    for report in tomllib.loads(table.read_text(encoding="utf-8"))["report"]:
        sure = {name for name in TABLES if made(name).sniff("logs.txt", report["log"]) >= SURE}
        assert sure <= ({"board sensors"} if " | Asserted" in report["log"] else set()), report["id"]
