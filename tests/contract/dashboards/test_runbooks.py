"""Every kind of incident and every alert has a runbook, and the commands in it exist."""

from __future__ import annotations

import re
import shlex
from typing import get_args

import pytest
from typer.exceptions import TyperException

from tests.places import ROOT
from trainwarden.cli.lazy import load
from trainwarden.cli.main import COMMANDS
from trainwarden.cli.shared.output import with_json_target
from trainwarden.dashboards.alerts.table import ALERTS
from trainwarden.records import IncidentKind

FOLDER = ROOT / "docs" / "runbooks"
OWN = {alert.page or alert.name for alert in ALERTS if not (alert.page or "").startswith("{{")}
PAGES = sorted(OWN | set(get_args(IncidentKind)))
SECTIONS = ("## What it means", "## What was done", "## What you do")


def commands(text: str) -> list[str]:
    """Lines of ours in the page's code."""
    code = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.S))
    return [line.partition("  #")[0].strip() for line in code.splitlines() if line.startswith("trainwarden ")]


def parse(line: str) -> None:
    """Parse a command line as ours; raises what the command line raises for wrong use."""
    words = with_json_target(shlex.split(re.sub(r"\bT\b", "1", line))[1:])
    assert words[0] in COMMANDS, f"there is no command {words[0]}"
    with load(words[0], COMMANDS[words[0]]).make_context(words[0], words[1:]):
        pass


def test_there_is_no_page_too_many() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "README") == PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_it_means_what_was_done_and_what_to_do(name: str) -> None:
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8")
    assert text.startswith(f"# {name}\n")
    places = [text.find(f"\n{section}\n") for section in SECTIONS]
    assert -1 not in places
    assert places == sorted(places)
    assert commands(text)
    assert f"({name}.md)" in (FOLDER / "README.md").read_text(encoding="utf-8")
    for link in re.findall(r"\]\((\w+\.md)\)", text):
        assert (FOLDER / link).is_file(), link


LINES = sorted({line for name in PAGES for line in commands((FOLDER / f"{name}.md").read_text(encoding="utf-8"))})


@pytest.mark.parametrize("line", [*LINES, *sorted({alert.command for alert in ALERTS})])
def test_a_command_exists(line: str) -> None:
    parse(re.sub(r"\{\{.*?\}\}", "JOB", line))


def test_a_command_that_does_not_exist_is_seen() -> None:
    for wrong in ("trainwarden heal", "trainwarden incidents --now", "trainwarden actions do-it"):
        with pytest.raises((AssertionError, TyperException)):
            parse(wrong)
