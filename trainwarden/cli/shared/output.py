"""How commands speak: people on one stream, one JSON object on the other, one sentence per mistake."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final

from trainwarden.errors import ConfigError


def open_streams() -> None:
    """Where a standard stream was closed before we began, it leads nowhere: its number would become another file's."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)


def with_json_target(arguments: Sequence[str]) -> list[str]:
    """`arguments` with ``-`` put after a ``--json`` that names no file; what follows ``--`` is left alone.

    Examples
    --------
    >>> with_json_target(["watch", "--json", "--", "torchrun", "--json"])
    ['watch', '--json', '-', '--', 'torchrun', '--json']
    >>> with_json_target(["bench", "--json", "out.json"])
    ['bench', '--json', 'out.json']
    """
    out: list[str] = []
    for index, word in enumerate(arguments):
        if word == "--":
            return [*out, *arguments[index:]]
        out.append(word)
        if word == "--json":
            following = arguments[index + 1] if index + 1 < len(arguments) else "--"
            if following.startswith("-") and following != "-":
                out.append("-")
    return out


def json_target(arguments: Sequence[str]) -> str | None:
    """The last target that ``--json`` of `arguments` names (see `with_json_target`).

    Examples
    --------
    >>> json_target(["status", "--json", "-"]), json_target(["watch", "--json=out", "--", "x", "--json", "-"])
    ('-', 'out')
    """
    target, before = None, ""
    for word in arguments:
        if word == "--":
            break
        target = word if before == "--json" else word.removeprefix("--json=") if word.startswith("--json=") else target
        before = word
    return target


def write_json(value: Any, target: str | None) -> None:
    """Write `value` as one JSON object to `target`: a file, ``-`` for standard output, None for nowhere.

    Raises
    ------
    ConfigError
        If the file cannot be written.
    """
    if target is None:
        return
    import msgspec  # the command line's start and its help need none of it

    text = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
    if target == "-":
        try:
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
        except BrokenPipeError:  # who reads has enough
            raise
        except OSError as error:
            _let_go(sys.stdout)
            raise ConfigError(f"standard output cannot be written ({error.strerror})") from error
        return
    path = Path(target)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        if _is_another_place(path):
            _write_through(path, text)
            return
        part.write_bytes(text)
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"--json: '{target}' cannot be written ({error.strerror})") from error


def _is_another_place(path: Path) -> bool:
    """Whether `path` leads elsewhere: a link, ``/dev/stdout``, a pipe, a device. A file in its place would be wrong."""
    return path.is_symlink() or (path.exists() and not path.is_file())


def _write_through(path: Path, text: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK)  # no pipe is waited for
    os.set_blocking(descriptor, True)
    with open(descriptor, "wb") as out:
        out.write(text)


def check_json_target(target: str | None) -> None:
    """Refuse a ``--json`` file that cannot be written before the work starts, not after.

    Raises
    ------
    ConfigError
        If its folder does not exist or may not be written to.
    """
    if target in (None, "-"):
        return
    path = Path(str(target))
    if _is_another_place(path) and path.exists():
        if not os.access(path, os.W_OK):
            raise ConfigError(f"--json: '{target}' may not be written to")
        return
    folder = path.resolve().parent  # of what a link leads to, which is not there yet
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ConfigError(f"--json: folder '{folder}' does not exist or may not be written to")


def _let_go(stream: IO[str]) -> None:
    """What `stream` still holds would fail again when the interpreter ends, and change the exit code."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


_RED, _YELLOW, _GREEN, _PLAIN = "\x1b[1;31m", "\x1b[33m", "\x1b[32m", "\x1b[0m"
_COLOURS: Final = {
    "sev1": _RED, "sev2": _RED, "sev3": _YELLOW, "NOT JUDGED": _YELLOW, "not judged": _YELLOW, "incident": _RED,
    "incident opened": _RED, "incident closed": _GREEN, "healthy": _GREEN,
}  # fmt: skip
# Severities, and the answer where it stands by itself: a "healthy level" within a sentence is no answer.
_COLOURED: Final = re.compile(
    r"\bsev[123]\b|\bNOT JUDGED\b|(?<=\[)incident (?:opened|closed)(?=\])|(?<=  )(?:healthy|not judged|incident)(?=  )"
    r"|(?<=: )healthy(?=, no incident)"
)


def coloured(text: str) -> str:
    """`text` with severities and answers in colour.

    Examples
    --------
    >>> coloured("hang sev2: rank 1")
    'hang \\x1b[1;31msev2\\x1b[0m: rank 1'
    """
    return _COLOURED.sub(lambda found: f"{_COLOURS[found[0]]}{found[0]}{_PLAIN}", text)


class Voice:
    """How one command answers: plain lines for people, and one JSON object where it was asked for.

    The lines go to standard error whenever standard output belongs to JSON.

    Parameters
    ----------
    json_target : str, optional
        Where the JSON object goes: a file, ``-`` for standard output, None for nowhere.
    stream : file, optional
        Where the lines go, in place of standard output or standard error.

    Raises
    ------
    ConfigError
        If the JSON file cannot be written: before the work starts.
    """

    def __init__(self, json_target: str | None = None, stream: IO[str] | None = None) -> None:
        check_json_target(json_target)
        self._json_target = json_target
        self._stream = stream or (sys.stderr if json_target == "-" else sys.stdout)

    def say(self, text: str) -> None:
        """One line, at once; to nobody once the stream is closed, as what we do goes on."""
        try:
            self._stream.write((coloured(text) if self.has_colour else text) + "\n")
            self._stream.flush()
        except OSError:
            _let_go(self._stream)

    def answer(self, value: Any) -> None:
        """The JSON object, once, whole (see `write_json`)."""
        write_json(value, self._json_target)

    def answer_if_possible(self, value: Any) -> None:
        """The same, for commands whose exit code is another's: an answer that cannot be written is said."""
        try:
            write_json(value, self._json_target)
        except (ConfigError, OSError) as error:
            if self._json_target == "-":
                _let_go(sys.stdout)
            self.say(f"trainwarden: {error}")

    @property
    def terminal(self) -> bool:
        """Whether the lines go to a terminal."""
        try:
            return self._stream.isatty()
        except (OSError, ValueError):
            return False

    @property
    def has_colour(self) -> bool:
        """Whether the terminal shows colours and the user wants them (https://no-color.org)."""
        return self.terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"

    @property
    def stream(self) -> IO[str]:
        """Where the lines go."""
        return self._stream
