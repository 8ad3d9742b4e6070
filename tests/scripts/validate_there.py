"""`trainwarden validate` in a network namespace and control group, as forks of torch: FAULT is done to it beforehand.

python validate_there.py SPACE|- CGROUP|- FAULT|- ARGUMENTS ...
"""

import ctypes
import os
import sys

import torch

space, group, fault, *words = sys.argv[1:]
if space != "-":
    with open(f"/run/netns/{space}") as there:
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

from trainwarden.cli.main import run  # noqa: E402 - the faults come first

sys.argv = ["trainwarden", "validate", *words]
run()
