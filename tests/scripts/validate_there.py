"""`trainwarden validate` in a node's network and a control group, as forks of torch: FAULT is done to it beforehand.

python validate_there.py PID|- CGROUP|- FAULT|- ARGUMENTS ...
"""

import ctypes
import os
import signal
import sys

import torch

node, group, fault, *words = sys.argv[1:]
if node != "-":
    with open(f"/proc/{node}/ns/net") as there:
        assert ctypes.CDLL(None, use_errno=True).setns(there.fileno(), 0) == 0, os.strerror(ctypes.get_errno())
if group != "-":
    with open(f"{group}/cgroup.procs", "w") as members:
        members.write(str(os.getpid()))
product = torch.mm
if fault == "corrupt":

    def corrupt(left, right):
        done = product(left, right)
        done[7, 11] += 1.0
        return done

    torch.mm = corrupt
if fault == "slow":

    def slow(left, right):
        product(left[:256], right)  # half of the work once more
        return product(left, right)

    torch.mm = slow
if fault == "held":
    from trainwarden.actions.validation.running import rank

    serve = rank.serve

    def held(*place):
        os.kill(os.getpid(), signal.SIGSTOP)
        return serve(*place)

    rank.serve = held

from trainwarden.cli.main import run  # noqa: E402 - the faults come first

sys.argv = ["trainwarden", "validate", *words]
run()
