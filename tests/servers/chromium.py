"""A real headless browser, driven over the W3C WebDriver protocol by its own driver; nothing but Debian's packages."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.servers.kafka import ServerMissing

READY_TIMEOUT_S = 30.0
ASK_TIMEOUT_S = 60.0


class Chromium:
    """One browser window.

    Parameters
    ----------
    folder : Path
        Where its profile and its log lie.
    width, height : int
        Of the window, pixels.

    Raises
    ------
    ServerMissing
        If chromium or its driver is not installed.
    """

    def __init__(self, folder: Path, width: int = 1280, height: int = 860) -> None:
        driver, browser = shutil.which("chromedriver"), shutil.which("chromium") or shutil.which("google-chrome")
        if driver is None or browser is None:
            raise ServerMissing("chromium and chromium-driver are not installed (docker/system-packages.sh)")
        self._folder, self._driver, self._browser, self._size = folder, driver, browser, (width, height)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = int(free.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None
        self._session = ""

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "chromedriver.log").open("ab") as out:
            self._process = subprocess.Popen(
                [self._driver, f"--port={self._port}"], stdout=out, stderr=out, start_new_session=True
            )
        try:
            self._await_driver()
            width, height = self._size
            words = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars",
                     f"--window-size={width},{height}", f"--user-data-dir={self._folder / 'profile'}"]  # fmt: skip
            options = {"binary": self._browser, "args": words}
            wanted = {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}
            self._session = self._ask("POST", "/session", {"capabilities": wanted})["sessionId"]
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser and its driver."""
        if self._session:
            with contextlib.suppress(OSError):
                self._ask("DELETE", f"/session/{self._session}")
            self._session = ""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(20)
            self._process = None

    def open(self, url: str) -> None:
        """Go to `url`."""
        self._ask("POST", f"/session/{self._session}/url", {"url": url})

    def run(self, script: str, *arguments: Any) -> Any:
        """What `script`, the body of a function, returns in the page."""
        return self._ask("POST", f"/session/{self._session}/execute/sync", {"script": script, "args": arguments})

    def text(self) -> str:
        """What a person can read on the page."""
        return str(self.run("return document.body.innerText"))

    def until(self, what: str, holds: Callable[[], Any], timeout_s: float = 120.0) -> Any:
        """Wait for it and return it; else fail with what the page shows."""
        end_s = time.monotonic() + timeout_s
        while time.monotonic() < end_s:
            found = holds()
            if found:
                return found
            time.sleep(0.2)
        raise AssertionError(f"{what}: not shown within {timeout_s:g} s; the page says:\n{self.text()[:3000]}")

    def shows(self, *words: str, timeout_s: float = 120.0) -> None:
        """Wait until all `words` can be read on the page."""
        self.until(f"{words}", lambda: all(word in self.text() for word in words), timeout_s)

    def picture(self) -> bytes:
        """The window as a PNG."""
        return base64.b64decode(self._ask("GET", f"/session/{self._session}/screenshot"))

    def look(self, scheme: str = "light", width: int = 0, height: int = 0) -> None:
        """Prefer the colour `scheme`, in a window of that size (0: as it was opened), which may be a phone's."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._tell("Emulation.setEmulatedMedia", features=features)
        wanted = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._tell("Emulation.setDeviceMetricsOverride", **wanted)

    def press(self, key: str) -> None:
        """Press and release one key: ``Tab``, ``Enter``."""
        codes = {"Tab": "\ue004", "Enter": "\ue007"}
        told = [{"type": kind, "value": codes[key]} for kind in ("keyDown", "keyUp")]
        actions = [{"type": "key", "id": "keyboard", "actions": told}]
        self._ask("POST", f"/session/{self._session}/actions", {"actions": actions})

    def whole_picture(self) -> bytes:
        """The whole page as a PNG, however long it is."""
        size = self._tell("Page.getLayoutMetrics")["cssContentSize"]
        told = self._tell("Page.captureScreenshot", captureBeyondViewport=True, clip={**size, "scale": 1})
        return base64.b64decode(told["data"])

    def _tell(self, command: str, **params: Any) -> Any:
        """A command of the browser's own protocol."""
        return self._ask("POST", f"/session/{self._session}/goog/cdp/execute", {"cmd": command, "params": params})

    def _await_driver(self) -> None:
        end_s = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < end_s:
            with contextlib.suppress(OSError):
                if self._ask("GET", "/status")["ready"]:
                    return
            time.sleep(0.1)
        raise AssertionError(f"chromedriver did not answer in {READY_TIMEOUT_S:g} s")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}{path}",
            data=json.dumps(body if body is not None else {}).encode() if method == "POST" else None,
            headers={"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=ASK_TIMEOUT_S) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            told = json.loads(error.read() or b"{}").get("value", {})
            raise AssertionError(f"the browser refused {method} {path}: {told.get('message', error)}") from error
