"""docs/plugins.md, word by word: every file of it is written, every command run, every output compared."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.places import ROOT

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^(?:`(?P<path>[^`\n]+)`:\n\n)?```(?P<kind>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


def steps(text: str) -> Iterator[tuple[str, str]]:
    """Commands of a console block, each with the output that is shown of it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown


def alike(shown: str, said: str) -> bool:
    """``...`` stands for anything."""
    return doctest.OutputChecker().check_output(shown, said, doctest.ELLIPSIS)


def environ(target: Path) -> dict[str, str]:
    """As it is on a machine of the reader, without a network: `pip install` puts packages into `target`."""
    ours = {key: value for key, value in os.environ.items() if not key.startswith(("TRAINWARDEN_", "PIP_", "PYTEST_"))}
    pip = {
        "TARGET": str(target),
        "NO_INDEX": "1",
        "NO_DEPS": "1",
        "NO_BUILD_ISOLATION": "0",
        "ROOT_USER_ACTION": "ignore",
    }
    return {
        **ours,
        **{f"PIP_{key}": value for key, value in pip.items()},
        "PATH": f"{Path(sys.executable).parent}:{ours['PATH']}",
        "PYTHONPATH": f"{target}:{ROOT}",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def test_every_word_of_the_page_is_true(tmp_path: Path) -> None:
    here, target = tmp_path / "here", tmp_path / "packages"
    here.mkdir()
    ran = 0
    for block in BLOCK.finditer(PAGE):
        path, kind, text = block["path"], block["kind"], block["text"]
        if path is not None:
            (here / path).parent.mkdir(parents=True, exist_ok=True)
            (here / path).write_text(text, encoding="utf-8")
            continue
        assert kind == "console", f"a block that is neither a file nor a console: {text[:80]}"
        for command, shown in steps(text):
            done = subprocess.run(
                ["bash", "-c", command], cwd=here, env=environ(target), stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True, timeout=240, check=False,
            )  # fmt: skip
            assert alike(shown, done.stdout), f"$ {command}\nthe page shows\n{shown}\nand it says\n{done.stdout}"
            ran += 1
    assert ran == len(re.findall(r"^\$ ", PAGE, re.MULTILINE)) > 5


@pytest.mark.parametrize("name", ["thermal", "hot_zone", "file_drop"])
def test_each_is_small(name: str) -> None:
    (text,) = [block["text"] for block in BLOCK.finditer(PAGE) if (block["path"] or "").endswith(f"/{name}.py")]
    classes = text[text.index("\nclass ") :].partition("    @staticmethod\n    def contract_stream")[0]
    assert sum(bool(line.strip()) for line in classes.splitlines()) <= 45


def test_what_the_page_shows_is_compared() -> None:
    assert alike("3 passed in ...\n", "3 passed in 0.5s\n")
    assert not alike("site.toml: fine\n", "site.toml: bad\n")
    assert list(steps("$ a\nx\n$ b\n")) == [("a", "x\n"), ("b", "")]
