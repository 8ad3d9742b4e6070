"""The page beside another command: started with it, its address said once, gone with it; it never stands in its way."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from trainwarden.cli.shared.stack import LocalStack
from trainwarden.torchrun.files import last_words

ADDRESS = "page.address"
NICE = 10  # training comes first
_SERVICE = "serve"
_MOST_CHARS = 400


class PageBeside:
    """``trainwarden serve`` as one more service of `stack`.

    The address holds a token: the file that it is written to is its user's alone.
    """

    def __init__(self, stack: LocalStack, run_dir: Path, *arguments: str) -> None:
        self._stack = stack
        self._address = run_dir / ADDRESS
        self._said = False
        self._address.unlink(missing_ok=True)
        with os.fdopen(os.open(self._address, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as out:
            stack.start(_SERVICE, *arguments, stdout=out)
        with suppress(OSError):  # it has ended already
            os.setpriority(os.PRIO_PROCESS, stack.pid(_SERVICE), NICE)

    def news(self, *, terminal: bool) -> str | None:
        """One sentence, once: where the page is, or why there is none.

        Without a `terminal` the token is left out: what a scheduler writes down may be read by everybody.
        """
        if self._said:
            return None
        text = self._address.read_text(errors="replace") if self._address.exists() else ""
        if text.endswith("\n"):
            self._said = True
            address, entrance, _ = text.strip()[:_MOST_CHARS].partition("enter?token=")
            if entrance and not terminal:
                return f"page: {address} (its address with the token: {self._address.absolute()})"
            return f"page: {text.strip()[:_MOST_CHARS]}"
        if self._stack.returncode(_SERVICE) is not None:
            self._said = True
            return f"no page: {last_words(self._stack.log_path(_SERVICE)) or 'serve has ended'}"
        return None
