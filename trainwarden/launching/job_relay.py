"""The process that reads a watched command's output, so that the command can write whatever becomes of the watcher.

``python -m trainwarden.launching.job_relay CONTROL STDOUT STDERR LOG LOG_BYTES``: three descriptors, a file, a limit.
It begins with all signals blocked, in the process group of `watch` and of the command. A signal that waits here as well
was sent to all of them; one that does not was sent to `watch` alone. The control socket carries single bytes.

::

    watch ── number of a signal ──▶ the same number if that signal waits here too, else 0
    watch ── END ─────────────────▶ END, once all is passed on and kept, or some time has gone by

Nothing ends this process but the end of the command's output: not a signal, not a full disk, not the end of `watch`.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
from functools import partial
from pathlib import Path
from typing import Final

from trainwarden.launching.job_output import LogWriter, OutputSink, PipeReader, join_all

END: Final = 255
LAST_OUTPUT_S: Final = 2.0  # how long a child of the command may still hold its output when the command has ended
STALE_S: Final = 1.0  # after so long nobody asks for a signal any more
_NOT_THERE: Final = 0


def main(words: list[str]) -> int:
    """Read until nobody can write any more."""
    control, stdout, stderr = socket.socket(fileno=int(words[0])), int(words[1]), int(words[2])
    logs = LogWriter(int(words[4]))
    keep = partial(logs.keep, Path(words[3]))
    ends = [os.dup(stdout), os.dup(stderr)]
    outlets = [OutputSink(1), OutputSink(2)]
    drains = [PipeReader(source, outlet, keep) for source, outlet in zip((stdout, stderr), outlets, strict=True)]
    if _serve(control, drains, outlets[1], logs):
        whole = join_all(drains, LAST_OUTPUT_S)
        logs.flush(LAST_OUTPUT_S)
        _say(logs, outlets[1])
        _let_go_of_streams(outlets)
        _answer(control, END)
        if whole:
            return 0
    while not join_all(drains, STALE_S) and not _all_over(ends):
        logs.news()
    logs.close()
    return 0


def _serve(control: socket.socket, drains: list[PipeReader], outlet: OutputSink, logs: LogWriter) -> bool:
    """Answer until the watcher says that the command has ended; False if the watcher is gone without a word."""
    waiting = select.poll()
    waiting.register(control, select.POLLIN)
    stale: set[int] = set()
    while True:
        if not waiting.poll(STALE_S * 1000):
            stale = _forget(stale)
            _say(logs, outlet)
            continue
        try:
            said = control.recv(1)
        except OSError:
            said = b""
        if not said:
            return False
        if said[0] == END:
            return True
        stale.discard(said[0])
        come = said[0] in signal.sigpending() and signal.sigtimedwait({said[0]}, 0) is not None
        _answer(control, said[0] if come else _NOT_THERE)


def _forget(stale: set[int]) -> set[int]:
    """Let go of signals that nobody has asked for since the last look: they were sent to this process alone."""
    for number in stale & signal.sigpending():
        signal.sigtimedwait({number}, 0)
    return {int(number) for number in signal.sigpending()}


def _let_go_of_streams(outlets: list[OutputSink]) -> None:
    """The watcher's streams end with the watcher, whoever still holds the command's."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for outlet, descriptor in zip(outlets, (1, 2), strict=True):
        outlet.gone = True
        os.dup2(nowhere, descriptor)


def _say(logs: LogWriter, outlet: OutputSink) -> None:
    for sentence in logs.news():
        outlet.write(f"trainwarden: {sentence}\n".encode())


def _answer(control: socket.socket, word: int) -> None:
    try:
        control.send(bytes((word,)), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
    except OSError:  # nobody asks any more
        return


def _all_over(ends: list[int]) -> bool:
    """Whether nobody can write any more, though a reader that stands still has not had all of it."""
    looked = select.poll()
    for end in ends:
        looked.register(end, 0)
    return sum(bool(event & select.POLLHUP) for _, event in looked.poll(0)) == len(ends)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
