"""A training script that fails in the way it is asked to: alone, or as a rank under torchrun."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
STEPS, LATE = 60, 25
STEP_S = 0.1


def at_start(what: str) -> None:
    """What goes wrong before the first step."""
    if what == "missing-import":
        import no_such_module_of_mine  # noqa: F401
    elif what == "bad-argument":
        import argparse

        argparse.ArgumentParser().parse_args(["--learning-rat", "1"])
    elif what == "division":
        print(1 / 0)
    elif what == "missing-file":
        Path("/no/such/data.bin").read_bytes()
    elif what == "port-in-use":
        taken = socket.create_server(("127.0.0.1", 0))
        socket.create_server(taken.getsockname())
    elif what == "out-of-memory":
        bytearray(1 << 60)
    elif what == "child-fails":
        subprocess.run(["sh", "-c", "exit 3"], check=True)


def at_step(what: str, step: int) -> None:
    """What goes wrong on the way."""
    if step != LATE:
        return
    if what == "exception":
        raise ValueError("labels do not fit")
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)


def alone(what: str) -> None:
    from trainwarden import hook

    for step in range(STEPS):
        at_step(what, step)
        time.sleep(STEP_S)
        hook.iteration(step)


def together(what: str, *, guilty: bool) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    weights = torch.ones(64)
    for step in range(STEPS):
        if guilty:
            at_step(what, step)
        time.sleep(STEP_S)
        dist.all_reduce(weights)
    dist.destroy_process_group()


def main(what: str) -> None:
    guilty = WORLD - 1 == RANK
    if guilty:
        at_start(what)
    if WORLD == 1:
        alone(what)
    else:
        together(what, guilty=guilty)


if __name__ == "__main__":
    main(sys.argv[1])
