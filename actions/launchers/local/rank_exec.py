"""Becomes a rank's command after asking the kernel to kill it should the supervisor die; run as a file, not imported.

``python -I -S rank_exec.py SUPERVISOR_PID COMMAND...``: between fork and exec of a threaded parent no Python may run
safely, so this short-lived interpreter does it instead. The request survives exec.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(arguments: list[str]) -> int:
    """Exec ``arguments[1:]``; returns only if that is impossible, with the code a shell would give."""
    supervisor, command = int(arguments[0]), arguments[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != supervisor:  # it died before the request was made
        return 128 + signal.SIGKILL
    try:
        os.execvp(command[0], command)  # noqa: S606 - the command the person gave, as words, through no shell
    except OSError as error:
        sys.stderr.write(f"trainwarden: {command[0]} cannot be started ({error.strerror})\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
