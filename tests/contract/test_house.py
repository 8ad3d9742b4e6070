"""The house keeps its rules: no circles, small files, short functions, and a door in every room."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import house
from tests.contract import house_rules
from tests.places import ROOT

RULES: dict[str, Callable[[Path], list[str]]] = {
    "circles of files": house_rules.circles_of_files,
    "circles of rooms": house_rules.circles_of_rooms,
    "long files": house_rules.long_files,
    "full folders": house_rules.full_folders,
    "long functions": house_rules.long_functions,
    "many parameters": house_rules.many_parameters,
    "rooms without a door": house_rules.rooms_without_a_door,
    "imports by the folder's name": house_rules.imports_by_the_folder,
}
KNOWN: dict[str, set[str]] = {}
"""What still breaks a rule, by rule; each entry has to be true, so that none outlives its cause."""


@pytest.mark.parametrize("rule", RULES)
def test_the_house_keeps_the_rule(rule):
    broken, known = set(RULES[rule](ROOT)), KNOWN.get(rule, set())
    assert broken - known == set(), f"{rule}: new"
    assert known - broken == set(), f"{rule}: put right meanwhile; take them from KNOWN"


def checkout(folder: Path, files: dict[str, str]) -> Path:
    """A little house of `files`."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        for above in path.relative_to(folder).parents:
            if above != Path() and not (folder / above / "__init__.py").exists():
                (folder / above / "__init__.py").touch()
    return folder


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("import trainwarden.detectors.pace.b", "import trainwarden.detectors.pace.a"),
        (
            "from trainwarden.detectors.pace import b",
            "def lazily():\n    from trainwarden.detectors.pace.a import thing",
        ),
        ("from . import b", "from .a import thing"),
        (
            "from trainwarden.detectors.pace.b import x",
            "if TYPE_CHECKING:\n    from trainwarden.detectors.pace.a import Thing",
        ),
    ],
)
def test_a_circle_is_seen_however_it_is_written(tmp_path, one, other):
    root = checkout(tmp_path, {"detectors/pace/a.py": one, "detectors/pace/b.py": other})
    assert house_rules.circles_of_files(root) == ["trainwarden.detectors.pace.a <-> trainwarden.detectors.pace.b"]
    assert house_rules.circles_of_rooms(root) == []


def test_a_package_that_imports_what_imports_from_it_is_a_circle(tmp_path):
    """A package may hand out what its files define; those files may then ask nothing of the package itself."""
    files = {
        "trainwarden/bus/__init__.py": "def connect():\n    from trainwarden.bus.engine import Engine",
        "trainwarden/bus/engine.py": "from trainwarden.bus.codec import decode\nfrom trainwarden.bus import NAME",
        "trainwarden/bus/codec.py": "",
    }
    assert house_rules.circles_of_files(checkout(tmp_path, files)) == ["trainwarden.bus <-> trainwarden.bus.engine"]


def test_rooms_may_not_import_each_other_even_where_no_two_files_do(tmp_path):
    files = {
        "detectors/pace/a.py": "from trainwarden.detectors.peers.a import one",
        "detectors/peers/a.py": "",
        "detectors/peers/b.py": "from trainwarden.detectors.pace.b import two",
        "detectors/pace/b.py": "",
    }
    root = checkout(tmp_path, files)
    assert house_rules.circles_of_files(root) == []
    assert house_rules.circles_of_rooms(root) == ["trainwarden.detectors.pace <-> trainwarden.detectors.peers"]


def test_longer_circles_are_one_finding(tmp_path):
    names = "abcd"
    files = {
        f"actions/{name}.py": f"import trainwarden.actions.{after}"
        for name, after in zip(names, names[1:] + "a", strict=True)
    }
    assert house_rules.circles_of_files(checkout(tmp_path, files)) == [
        "trainwarden.actions.a <-> trainwarden.actions.b <-> trainwarden.actions.c <-> trainwarden.actions.d"
    ]


def test_limits_are_what_they_say(tmp_path):
    """One at each limit, one just over it."""
    line = "    x = 1\n"
    said = '    """\n' + "    said\n" * 60 + '    """\n'
    files = {
        "actions/fits.py": "x = 1\n" * 500,
        "actions/long.py": "x = 1\n" * 501,
        **{f"actions/few/f{number}.py": "" for number in range(20)},
        **{f"actions/many/f{number}.py": "" for number in range(21)},
        "actions/f.py": f"def short():\n{said}{line * 40}def long():\n{line * 41}",
        "actions/g.py": """
            class Thing:
                def five(self, a, b, c, d, e, *, f=0, g=0): ...

                async def six(self, a, b, c, d, e, f): ...
            """,
    }
    root = checkout(tmp_path, files)
    assert house_rules.long_files(root) == ["actions/long.py"]
    assert house_rules.full_folders(root) == ["actions/many"]
    assert house_rules.long_functions(root) == ["actions/f.py::long"]
    assert house_rules.many_parameters(root) == ["actions/g.py::Thing.six"]


def test_a_door_names_a_file_of_its_own_room(tmp_path):
    files = {
        "detectors/__init__.py": "",
        "detectors/pace/__init__.py": '"""Pace.\n\nRead `trainwarden.detectors.pace.bocd` first.\n"""',
        "detectors/pace/bocd.py": "",
        "detectors/peers/__init__.py": '"""Peers."""',
        "detectors/logs/__init__.py": '"""Logs.\n\nRead `trainwarden.detectors.logs.gone` first.\n"""',
        "detectors/facts/__init__.py": '"""Facts.\n\nRead `trainwarden.detectors.pace.bocd` first.\n"""',
    }
    root = checkout(tmp_path, files)
    assert house_rules.rooms_without_a_door(root) == [
        "trainwarden.detectors.facts",
        "trainwarden.detectors.logs",
        "trainwarden.detectors.peers",
    ]


def test_a_package_is_imported_below_trainwarden(tmp_path):
    folder = "detectors"
    files = {
        "detectors/right.py": f"from trainwarden.{folder} import CATALOG",
        "detectors/wrong.py": f"def lazily():\n    from {folder}.right import CATALOG",
        "tests/test_wrong.py": f"import {folder}",
    }
    root = checkout(tmp_path, files)
    assert house_rules.imports_by_the_folder(root) == ["detectors/wrong.py", "tests/test_wrong.py"]


@pytest.mark.thorough
def test_the_drawing_is_of_today():
    """`make house` draws it; whoever moves a room draws it again."""
    assert house.PAGE.read_text(encoding="utf-8") == house.page()


def test_make_test_looks_for_system_tests_where_they_are():
    """It collects these folders alone: the others take a minute."""
    (line,) = re.findall(r"^SYSTEM := (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    folders = [ROOT / one for one in line.split()]
    marked = [path for path in (ROOT / "tests").rglob("test_*.py") if "mark.system" in path.read_text(encoding="utf-8")]
    assert len(marked) > 40
    assert [path for path in marked if not any(path.is_relative_to(folder) for folder in folders)] == []
