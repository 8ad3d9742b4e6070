"""The hook as one file: made from the package, it passes the package's own tests, and a broken one does not."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT
from trainwarden import __version__, hook
from trainwarden.cli.setup import hook_file


def run_tests(artefact: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """This folder's tests but these, on the file at `artefact`."""
    command = [
        sys.executable, "-m", "pytest", "-p", "tests.hook_artefact", "-p", "no:cacheprovider", "-q", "-x",
        f"--ignore={__file__}", *more, str(Path(__file__).parent),
    ]  # fmt: skip
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environ |= {"PYTHONPATH": str(ROOT), "HOOK_ARTEFACT": str(artefact)}
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def written(folder: Path, text: str) -> Path:
    path = folder / "trainwarden_hook.py"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.thorough
def test_the_file_passes_the_tests_of_the_package(tmp_path: Path) -> None:
    done = run_tests(written(tmp_path, hook_file.text()))
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("whole", "broken"),
    [
        ("words[AT_RECORDED] = self.count = serial", "self.count = serial"),  # a step that nobody can read
        ("thread.paused -= 1", "pass"),
    ],
)
def test_a_broken_file_is_found_out(whole: str, broken: str, tmp_path: Path) -> None:
    text = hook_file.text()
    assert whole in text
    done = run_tests(written(tmp_path, text.replace(whole, broken)), "-k", "optimizer or phase")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout[-2000:] + done.stderr[-2000:]
    assert " failed" in done.stdout


def test_it_imports_nothing_but_the_standard_library_and_has_every_public_name() -> None:
    tree = ast.parse(hook_file.text(), feature_version=(3, 9))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    tops = {alias.name.partition(".")[0] for node in imports if isinstance(node, ast.Import) for alias in node.names}
    tops |= {(node.module or "").partition(".")[0] for node in imports if isinstance(node, ast.ImportFrom)}
    assert tops <= sys.stdlib_module_names
    assert not any(node.level for node in imports if isinstance(node, ast.ImportFrom))
    namespace: dict[str, object] = {"__name__": "trainwarden_hook"}
    exec(compile(tree, "trainwarden_hook.py", "exec"), namespace)
    assert namespace.keys() >= set(hook.__all__)


@pytest.mark.thorough
def test_the_same_package_gives_the_same_text_with_its_edition_on_top() -> None:
    text = hook_file.text()
    assert text == hook_file.text()
    assert __version__ in text.splitlines()[0]
    assert "not to be edited" in text.splitlines()[0]


@pytest.mark.parametrize(
    ("sources", "why"),
    [
        ({"one.py": "X = 1\n", "two.py": "X = 2\n"}, "X means two things"),
        ({"one.py": "from time import sleep\n", "two.py": "def sleep(): ...\n"}, "sleep means two things"),
        ({"one.py": "from .two import B\nA = B\n", "two.py": "from .one import A\nB = A\n"}, "import each other"),
        ({"one.py": "from . import C\n", "__init__.py": "C = 1\n"}, "import each other"),
        ({"one.py": "import torch\n"}, "imports torch"),
        ({"one.py": "import os, trainwarden.errors\n"}, "imports trainwarden"),
        ({"one.py": "A = 1\n", "two.py": "from .one import A as B\n"}, "under their own name"),
        ({"one.py": "from ..errors import DataError\n"}, "only names of the hook"),
        ({"one.py": "A = 1\n", "two.py": "def late():\n    from .one import A\n"}, "not on top"),
    ],
)
def test_what_cannot_be_one_file_is_refused(sources: dict[str, str], why: str, tmp_path: Path) -> None:
    for name, source in {"__init__.py": "", **sources}.items():
        (tmp_path / name).write_text(source)
    with pytest.raises(ValueError, match=why):
        hook_file.text(tmp_path)
