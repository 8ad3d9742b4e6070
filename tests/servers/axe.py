"""axe-core, the checker of accessibility that runs in a page; npm puts it into ``.cache/axe`` once."""

from __future__ import annotations

import shutil
import subprocess

from tests.places import ROOT
from tests.servers.chromium import Chromium
from tests.servers.kafka import ServerMissing

VERSION = "4.14.1"
CACHE = ROOT / ".cache" / "axe"
INSTALL_TIMEOUT_S = 120.0
TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
CHECK = """
const told = await axe.run(document, { runOnly: { type: 'tag', values: arguments[0] } });
return told.violations.flatMap((one) => one.nodes.map((node) => `${one.id}: ${one.help}: ${node.html.slice(0, 200)} ${node.any.map(a => a.message).join(' ').slice(0, 200)}`));
"""  # noqa: E501


def script() -> str:
    """The text of axe-core.

    Raises
    ------
    ServerMissing
        If npm is missing or cannot get it.
    """
    file = CACHE / "node_modules" / "axe-core" / "axe.min.js"
    if not file.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise ServerMissing("npm is not installed, and without it there is no axe-core")
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", str(CACHE)]
        try:
            done = subprocess.run(
                [*command, f"axe-core@{VERSION}"],
                capture_output=True,
                text=True,
                timeout=INSTALL_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ServerMissing("npm did not get axe-core in time") from error
        if done.returncode != 0 or not file.exists():
            raise ServerMissing(f"npm cannot get axe-core {VERSION}: {done.stderr[-300:]}")
    return file.read_text(encoding="utf-8")


def violations(browser: Chromium, text: str) -> list[str]:
    """What axe-core finds wrong with the page that `browser` shows."""
    browser.run(text)
    found: list[str] = browser.run(CHECK, TAGS)
    return found
