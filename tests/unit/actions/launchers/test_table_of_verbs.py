"""The table of docs/actions.md says of every launcher and verb what the launcher itself declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, get_args

from tests.places import ROOT
from trainwarden.actions.launchers import CATALOG
from trainwarden.actions.launchers.kubernetes.client import CAN as KUBERNETES
from trainwarden.actions.launchers.kubernetes.jobs import KINDS
from trainwarden.actions.launchers.slurm.client import CAN as SLURM
from trainwarden.actions.launchers.torchrun.operations import CAPABILITIES, CAPABILITIES_HERE
from trainwarden.launching import Verb

ALL: Final = frozenset(get_args(Verb)) - {"replace"}  # no launcher of ours offers it; a webhook of yours may
COLUMNS: Final[Mapping[str, frozenset[str]]] = {
    "torchrun": CAPABILITIES.can,
    "`launch`, one node": CAPABILITIES_HERE.can,
    "Slurm": SLURM,
    "JobSet, PyTorchJob": KUBERNETES,
    "TrainJob": KUBERNETES if "TrainJob" in KINDS else frozenset(),
    "webhook": ALL,
}


def _rows() -> list[list[str]]:
    page = (ROOT / "docs" / "actions.md").read_text(encoding="utf-8")
    section = page.partition("## Which launcher does what\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_table_says_what_the_launchers_declare() -> None:
    head, _, *rows = _rows()
    assert head == ["verb", *COLUMNS]
    said = {verb: row[1:] for row in rows for verb in row[0].split(", ")}
    assert said.keys() == ALL | {"resize"}
    for number, (name, can) in enumerate(COLUMNS.items()):
        assert {verb for verb, cells in said.items() if cells[number] != "-"} == can, name


def test_no_launcher_has_no_column() -> None:
    assert CATALOG.keys() == {"torchrun", "slurm", "kubernetes", "webhook"}
    assert {*KINDS} - {"TrainJob"} == {"JobSet", "PyTorchJob"}
    assert all("replace" not in can for can in COLUMNS.values())
