"""A job without torch: its ranks meet at rank 0 and make each step together; what each does is written down.

    ring.py STEPS LOG [SECONDS A STEP]

A line of LOG is time (CLOCK_BOOTTIME), attempt, rank, ranks, step and node.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from pathlib import Path

from trainwarden import hook

PATIENCE_S = 20.0
EVERY_STEPS = 10


def hub(address: tuple[str, int]) -> socket.socket:
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            found = socket.create_connection(address, 1.0)
        except OSError:
            if time.monotonic() > until_s:
                raise
            time.sleep(0.02)
        else:
            found.settimeout(None)
            return found


def heard(peer: socket.socket) -> None:
    if peer.recv(1) != b"x":
        raise SystemExit(9)


def save(step: int) -> None:
    folder = Path(os.environ["TRAINWARDEN_CHECKPOINTS"])
    part = folder / f"part-of-{step}"
    part.mkdir(parents=True, exist_ok=True)
    (part / "trainer_state.json").write_text(json.dumps({"global_step": step}))
    with contextlib.suppress(OSError):
        part.rename(folder / f"checkpoint-{step}")


def first_step() -> int:
    resume = os.environ.get("TRAINWARDEN_RESUME_FROM")
    return int(json.loads((Path(resume) / "trainer_state.json").read_text())["global_step"]) if resume else 0


def say(log: Path, step: int) -> None:
    said = [os.environ[name] for name in ("TRAINWARDEN_ATTEMPT", "RANK", "WORLD_SIZE")]
    words = [time.clock_gettime(time.CLOCK_BOOTTIME), *said, step, os.environ["TRAINWARDEN_NODE"]]
    with log.open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


def main() -> None:
    steps, log, step_s = int(sys.argv[1]), Path(sys.argv[2]), float([*sys.argv, "0.05"][3])
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = int(os.environ["MASTER_PORT"])
    if "TORCHELASTIC_USE_AGENT_STORE" in os.environ:  # torchrun itself listens there; one below all ephemeral ports
        port = 10_000 + port % 20_000
    address = os.environ["MASTER_ADDR"], port
    if rank == 0:
        server = socket.create_server(address)
        server.settimeout(PATIENCE_S)
        peers = [server.accept()[0] for _ in range(ranks - 1)]
    else:
        peers = [hub(address)]
    for peer in peers:
        peer.settimeout(None)
    for step in range(first_step(), steps):
        time.sleep(step_s)
        if rank != 0:
            peers[0].sendall(b"x")
            heard(peers[0])
        else:
            for peer in peers:
                heard(peer)
            for peer in peers:
                peer.sendall(b"x")
            if (step + 1) % EVERY_STEPS == 0:
                save(step + 1)
        hook.iteration(step)
        say(log, step)


if __name__ == "__main__":
    main()
