"""One rank of a job on NCCL over fakecuda, driven through ctypes. Apache-2.0, the trainwarden project.

    python rank.py SCENARIO RANK WORLD FOLDER [steps]

Prints one JSON line per thing worth knowing; see scenarios() for what there is.
"""

from __future__ import annotations

import ctypes as c
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

HERE = os.environ["FAKECUDA_BUILD"]
nccl = c.CDLL(f"{HERE}/libnccl.so.2")
P, Z, I = c.c_void_p, c.c_size_t, c.c_int
for function, arguments in {
    "ncclAllReduce": [P, P, Z, I, I, P, P], "ncclReduceScatter": [P, P, Z, I, I, P, P], "ncclAllGather": [P, P, Z, I, P, P],
    "ncclBroadcast": [P, P, Z, I, I, P, P], "ncclSend": [P, Z, I, I, P, P], "ncclRecv": [P, Z, I, I, P, P],
    "ncclGroupStart": [], "ncclGroupEnd": [], "ncclCommDestroy": [P], "ncclCommAbort": [P], "ncclCommFinalize": [P],
    "ncclCommSplit": [P, I, I, P, P], "cudaStreamCreateWithFlags": [P, I], "cudaStreamSynchronize": [P], "cudaMalloc": [P, Z],
    "fc_busy": [P, c.c_uint64], "fc_launch_graph": [P, P], "fc_end_capture": [P], "fc_begin_capture": [P], "fc_destroy_graph": [P],
}.items():  # fmt: skip
    getattr(nccl, function).argtypes = arguments
nccl.fc_begin_capture.restype = P
F32, SUM = 7, 0


class UniqueId(c.Structure):
    _fields_ = [("internal", c.c_byte * 128)]


nccl.ncclCommInitRank.argtypes = [P, I, UniqueId, I]


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def check(code: int, what: str) -> None:
    if code not in (0, 7):
        raise SystemExit(f"{what}: NCCL error {code}")


class Rank:
    def __init__(self, rank: int, world: int, folder: Path) -> None:
        self.rank, self.world, self.folder = rank, world, folder
        self.step = 0
        self.stream = P()
        nccl.cudaStreamCreateWithFlags(c.byref(self.stream), 1)
        self.buffer, self.out = P(), P()
        nccl.cudaMalloc(c.byref(self.buffer), 64 << 20)
        nccl.cudaMalloc(c.byref(self.out), 64 << 20)
        held = os.environ.get("TWREC_HOLD", "1") != "0"  # 0: nothing but NCCL holds the library, so that it can go away
        self.plug = c.CDLL(os.environ["NCCL_PROFILER_PLUGIN"]) if held and "NCCL_PROFILER_PLUGIN" in os.environ else None
        self.comm = self.init("default")

    def init(self, name: str) -> P:
        ident, path = UniqueId(), self.folder / f"id-{name}"
        if self.rank == 0:
            check(nccl.ncclGetUniqueId(c.byref(ident)), "ncclGetUniqueId")
            path.with_suffix(".tmp").write_bytes(bytes(ident))
            path.with_suffix(".tmp").rename(path)
        while not path.exists():
            time.sleep(0.01)
        c.memmove(c.byref(ident), path.read_bytes(), 128)
        comm = P()
        check(nccl.ncclCommInitRank(c.byref(comm), self.world, ident, self.rank), "ncclCommInitRank")
        return comm

    def next_step(self) -> None:
        self.step += 1
        if self.plug is not None:
            self.plug.twrec_step(self.step)

    def mask(self, mask: int) -> None:
        if self.plug is not None:
            self.plug.twrec_mask(mask)

    def all_reduce(self, count: int = 1 << 20, comm: P | None = None) -> None:
        check(nccl.ncclAllReduce(self.buffer, self.out, count, F32, SUM, comm or self.comm, self.stream), "ncclAllReduce")

    def gather(self, count: int = 1 << 18) -> None:
        check(nccl.ncclAllGather(self.buffer, self.out, count, F32, self.comm, self.stream), "ncclAllGather")

    def scatter(self, count: int = 1 << 18) -> None:
        check(nccl.ncclReduceScatter(self.buffer, self.out, count, F32, SUM, self.comm, self.stream), "ncclReduceScatter")

    def send(self, peer: int, count: int = 1 << 18) -> None:
        check(nccl.ncclSend(self.buffer, count, F32, peer, self.comm, self.stream), "ncclSend")

    def recv(self, peer: int, count: int = 1 << 18) -> None:
        check(nccl.ncclRecv(self.out, count, F32, peer, self.comm, self.stream), "ncclRecv")

    def sync(self) -> None:
        nccl.cudaStreamSynchronize(self.stream)

    def busy(self, ms: float) -> None:
        nccl.fc_busy(self.stream, int(ms * 1e6))

    def end(self) -> None:
        self.sync()
        check(nccl.ncclCommDestroy(self.comm), "ncclCommDestroy")


def data_parallel(r: Rank, steps: int, *, host_late: float = 0, gpu_late: float = 0, sync: bool = True) -> None:
    """A step: a backward of 4 ms in 4 buckets, each reduced as soon as it is ready; the last rank may be late."""
    last = r.rank == r.world - 1
    for _ in range(steps):
        r.next_step()
        if last and host_late:
            time.sleep(host_late / 1e3)
        for bucket in range(4):
            r.busy(1.0 + (gpu_late / 4 if last else 0))
            r.all_reduce(1 << (18 + bucket % 2))
        if sync:
            r.sync()


def scenarios(r: Rank, name: str, steps: int) -> None:
    KERNEL = 64
    full = int(os.environ.get("TWREC_MASK", "1862"))
    last = r.rank == r.world - 1
    if name in ("ddp", "reload"):
        data_parallel(r, steps)
        if name == "reload":  # the last communicator goes, so the library goes, and comes back
            r.end()
            r.comm = r.init("second")
            data_parallel(r, steps)
    elif name == "slow_host":
        data_parallel(r, steps, host_late=6)
    elif name == "slow_gpu":
        data_parallel(r, steps, gpu_late=6)
    elif name == "async":  # 64 slots wrap: nobody waits for the device
        data_parallel(r, steps, sync=False)
    elif name == "fsdp":
        for _ in range(steps):
            r.next_step()
            for _layer in range(3):
                r.gather()
                r.busy(1)
            for _layer in range(3):
                r.busy(1)
                r.scatter()
            r.sync()
    elif name == "pipeline":
        for _ in range(steps):
            r.next_step()
            for micro in range(4):
                nccl.ncclGroupStart()
                if micro % 2 == 0:
                    r.send((r.rank + 1) % r.world)
                    r.recv((r.rank - 1) % r.world)
                elif r.rank % 2 == 0:
                    r.send(r.rank ^ 1)
                else:
                    r.recv(r.rank ^ 1)
                nccl.ncclGroupEnd()
                r.busy(1)
            r.sync()
    elif name == "grouped":  # several collectives in one group, of different size: one kernel
        for _ in range(steps):
            r.next_step()
            nccl.ncclGroupStart()
            for bucket in range(5):
                r.all_reduce(1 << (12 + bucket))
            nccl.ncclGroupEnd()
            r.sync()
    elif name == "toggle":  # KernelCh in one step of four
        for step in range(steps):
            r.mask(full if step % 4 == 0 else full & ~KERNEL)
            data_parallel(r, 1)
    elif name == "toggle_async":
        for step in range(steps):
            r.mask(full if step % 4 == 0 else full & ~KERNEL)
            data_parallel(r, 1, sync=False)
    elif name in ("graph", "graph_off", "graph_toggle"):
        if name != "graph":
            r.mask(full & ~KERNEL)
        r.all_reduce()
        r.sync()
        graph = nccl.fc_begin_capture(r.stream)
        r.all_reduce(1 << 18)
        r.busy(1)
        r.all_reduce(1 << 17)
        say(captured_ops=nccl.fc_end_capture(r.stream))
        if name != "graph_off":
            r.mask(full)
        for step in range(steps):
            r.next_step()
            nccl.fc_launch_graph(graph, r.stream)
            if step % 3 == 2:
                r.all_reduce()  # an eager one between
            r.sync()
        nccl.fc_destroy_graph(graph)
    elif name == "skip":  # one rank leaves one collective out and stays
        data_parallel(r, steps)
        if not last:
            r.all_reduce()
        say(waiting=time.time())
        time.sleep(3600)
    elif name == "late_kernel":  # everybody has enqueued, one GPU is busy for ever before it
        data_parallel(r, steps)
        if last:
            r.busy(3600e3)
        r.all_reduce()
        say(waiting=time.time())
        time.sleep(3600)
    elif name == "run":  # until somebody stops it
        while True:
            data_parallel(r, 1)
            time.sleep(0.005)
    elif name == "split":
        row = P()
        check(nccl.ncclCommSplit(r.comm, r.rank % 2, r.rank, c.byref(row), None), "ncclCommSplit")
        for _ in range(steps):
            r.next_step()
            r.all_reduce()
            r.all_reduce(1 << 17, row)
            r.sync()
        nccl.ncclCommDestroy(row)
    elif name == "cost":
        for mask in (0, full & ~KERNEL, full, 0, full & ~KERNEL, full):
            r.mask(mask)
            for _ in range(50):
                r.all_reduce(1 << 10)
            r.sync()
            times = []
            for _ in range(steps):
                begun = time.perf_counter_ns()
                r.all_reduce(1 << 10)
                times.append(time.perf_counter_ns() - begun)
                r.sync()
            times.sort()
            say(mask=mask, median_ns=times[len(times) // 2], p10_ns=times[len(times) // 10])
    else:
        raise SystemExit(f"no scenario {name}")


def main() -> None:
    scenario, rank, world, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    rank_ = Rank(rank, world, folder)
    scenarios(rank_, scenario, int(sys.argv[5]) if len(sys.argv) > 5 else 10)
    rank_.end()
    say(done=True)


if __name__ == "__main__":
    main()
