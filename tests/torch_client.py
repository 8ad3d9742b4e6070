"""Ranks forked by the `TorchForks` of a test session, as one command: ADDRESS RANKS SCRIPT ARGUMENTS ...

It writes, stops and ends as the ranks do. The standard library alone: it is there at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys


def main() -> int:
    """The ranks' exit code."""
    address, ranks, *words = sys.argv[1:]
    outputs = {name: f"/proc/{os.getpid()}/fd/{number}" for name, number in (("log", 1), ("err", 2))}
    order = {"words": words, "environ": dict(os.environ), "folder": os.getcwd(), "ranks": int(ranks), **outputs}
    with socket.socket(socket.AF_UNIX) as session:
        session.connect(address)
        answers = session.makefile()
        session.sendall(json.dumps(order).encode() + b"\n")
        pid = json.loads(answers.readline())["pid"]

        def pass_on(number: int, _: object) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, pass_on)
        code = int(json.loads(answers.readline())["code"])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
