"""Asks NCCL's RAS socket all the ways it knows and keeps the raw answers. Python 3.9+, standard library.

    python ras_ask.py FOLDER LABEL [host:port]

Writes FOLDER/LABEL.{text,verbose}.txt and FOLDER/LABEL.{json,verbose-json}.json. Apache-2.0, the trainwarden project.
"""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

ASKED = {
    "text.txt": ["STATUS"], "verbose.txt": ["VERBOSE STATUS"],
    "json.json": ["SET FORMAT json", "STATUS"], "verbose-json.json": ["SET FORMAT json", "VERBOSE STATUS"],
}  # fmt: skip


def ask(host: str, port: int, lines: list[str], timeout_s: float = 30.0) -> tuple[bytes, bytes, float]:
    """Replies to the opening lines, the report, and how long it took."""
    begun = time.monotonic()
    with socket.create_connection((host, port), timeout=timeout_s) as sock:
        talk = b""
        for line in ["CLIENT PROTOCOL 2", "TIMEOUT 5", *lines[:-1]]:
            sock.sendall(line.encode() + b"\n")
            answer = b""
            while not answer.endswith(b"\n"):
                data = sock.recv(4096)
                if not data:
                    return talk + answer, b"", time.monotonic() - begun
                answer += data
            talk += answer
        sock.sendall(lines[-1].encode() + b"\n")
        report = b""
        while data := sock.recv(65536):
            report += data
    return talk, report, time.monotonic() - begun


def main() -> int:
    folder, label = Path(sys.argv[1]), sys.argv[2]
    host, _, port = (sys.argv[3] if len(sys.argv) > 3 else "127.0.0.1:28028").rpartition(":")
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in ASKED.items():
        try:
            talk, report, took_s = ask(host, int(port), lines)
        except OSError as error:
            print(f"{label} {name}: {error}")
            continue
        (folder / f"{label}.{name}").write_bytes(report)
        print(f"{label} {name}: {talk!r} {len(report)} bytes in {took_s:.2f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
