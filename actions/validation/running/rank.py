"""One rank of a validation: a process that does what the leader orders, and ends with it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch
import torch.distributed as dist

from trainwarden.actions.validation.participants import LIMITS_OF_A_LINK
from trainwarden.actions.validation.results import RankCommand, RankInfo, RankReport
from trainwarden.actions.validation.running import gemm, links
from trainwarden.actions.validation.running.store import StoreGone, connect

NEXT_ORDER_S = 5.0
TWICE = 3
"""Exit code of a rank that somebody else is already."""


def serve(rank: int, node: str, local_rank: int, address: tuple[str, int], join_s: float) -> int:
    """Join the validation at `address` within `join_s`, follow its orders to the last; the exit code of the process."""
    torch.set_num_threads(1)
    device = _device(local_rank)
    try:
        board = connect(*address, within_s=join_s)
        member = RankInfo(
            rank=rank, node=node, local_rank=local_rank, device=_name(device),
            at_once=len(os.sched_getaffinity(0)) if device.type == "cpu" else None,
        )  # fmt: skip
        if not board.come(member):
            return TWICE
        number = 1
        while True:
            order = board.next_order(number, NEXT_ORDER_S)
            if order is None:
                continue
            if order.what == "end":
                return 0
            if rank in order.ranks:
                board.report(number, _answer(order, rank, device, address))
            number += 1
    except (StoreGone, dist.DistNetworkError):
        return 0  # the leader is gone: whoever started us says so


def _answer(order: RankCommand, rank: int, device: torch.device, address: tuple[str, int]) -> RankReport:
    if order.what == "gemm":
        try:
            return gemm.burn_in(rank, device, order.budget_s, order.limit_s)
        except RuntimeError as error:  # of CUDA: the device is the suspect, not our process
            return RankReport(rank=rank, error=str(error).splitlines()[0][:200])
    if order.what == "links":
        pair = next(pair for pair in order.pairs if rank in pair)
        peer = pair[1] if pair[0] == rank else pair[0]
        prefix = f"link/{order.number}/{min(pair)}-{max(pair)}"
        limit_s = order.limit_s / LIMITS_OF_A_LINK
        return links.measure(address, prefix, (rank, peer), device, budget_s=order.budget_s, limit_s=limit_s)
    return RankReport(rank=rank)


def _device(local_rank: int) -> torch.device:
    if torch.cuda.is_available() and dist.is_nccl_available():
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        return device
    return torch.device("cpu")


def _name(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())
