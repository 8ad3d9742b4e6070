# ruff: noqa: E501 - messages are quoted whole
"""Whole messages of the field, advice and counts of zero included: what they name is seen, what they only mention is not.

Each says which version of its program writes it so.
"""

from __future__ import annotations

import time

import pytest

from trainwarden.detectors.logs.rules import LogRules
from trainwarden.records import MAX_LINE_CHARS

RULES = LogRules()

OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB of "
    "which 1.20 GiB is free. Including non-PyTorch memory, this process has 77.90 GiB memory in use. Of the allocated "
    "memory 70.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated. If reserved but "
    "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
    "See documentation for Memory Management  "
    "(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)"
)
CUDA_ADVICE = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "Device-side assertion tracking was not enabled by user.",
)

# rule, message in one line or in several
WHOLE = [
    ("cuda.out_of_memory", OUT_OF_MEMORY),  # PyTorch 2.15
    ("cuda.out_of_memory", "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 14.00 GiB (GPU 0; 79.15 GiB total capacity; 64.58 GiB already allocated; 13.40 GiB free; 64.59 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF"),  # PyTorch 2.0
    ("cuda.out_of_memory", "\n".join(("RuntimeError: CUDA error: out of memory", *CUDA_ADVICE))),  # PyTorch 2.6
    ("cuda.ecc", "\n".join(("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", *CUDA_ADVICE))),  # PyTorch 2.15
    ("cuda.ecc", " ".join(("RuntimeError: CUDA error: uncorrectable ECC error encountered.", *CUDA_ADVICE))),  # as a logger joins it
    ("cuda.illegal_access", "\n".join(("torch.AcceleratorError: CUDA error: an illegal memory access was encountered", "Search for `cudaErrorIllegalAddress' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.", *CUDA_ADVICE))),  # PyTorch 2.9
    ("cuda.device_unavailable", "RuntimeError: CUDA error: unknown error CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect. For debugging consider passing CUDA_LAUNCH_BLOCKING=1 Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions. "),  # PyTorch 2.1
    ("cuda.oom_in_nccl", "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'"),  # PyTorch 2.9 with NCCL 2.27.5
    ("nccl.error_line", "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/NCCLUtils.hpp:268, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.18.6\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \nLast error:\nsocketPollConnect: Connect to 10.0.0.7<45291> returned 113(No route to host) errno 115 - Operation now in progress"),  # PyTorch 2.2 with NCCL 2.18.6
    ("nccl.ib_retry_exceeded", "node-7:4242:4711 [3] transport/net_ib/p2p.cc:398 NCCL WARN NET/IB: Got completion from peer 10.2.0.5<33092> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129 localGid fe80::1 remoteGids fe80::2 hca mlx5_3 (0 failed before)"),  # NCCL 2.30.7
    ("nccl.shm_full", "node-7:4242:4711 [0] misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-yMzFKG to 33030532 bytes, error: No space left on device (28)"),  # NCCL 2.30.7
    ("storage.no_space", "OSError: [Errno 28] No space left on device (0 failed retries)"),
    ("storage.no_space", 'safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, message: "No space left on device" })'),  # safetensors 0.5
    ("storage.no_space", "ERROR failed to save checkpoint: [Errno 122] Disk quota exceeded: '/home/u/step_9/model.pt'"),
    ("checkpoint.broken", "safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer"),  # safetensors 0.4
    ("host.out_of_memory", "RuntimeError: [enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000000 bytes. Error code 12 (Cannot allocate memory)"),  # PyTorch 2.15
    ("nvidia.xid", "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus. (no errors before)"),  # driver 550
    ("cuda.ecc", "NVRM: GPU 0000:3b:00.0: double bit ECC error in FBPA, 0 errors corrected since boot"),
    ("mlx5.fatal", "mlx5_core 0000:12:00.0: mlx5_cmd_out_err:803:(pid 1): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2); device's health compromised - reached miss count"),  # Linux 6.8
    ("mlx5.fatal", "mlx5_core 0000:12:00.0: wait_func:1194:(pid 911): ACCESS_REG(0x805) timeout. Will cause a leak of a command resource"),  # Linux 5.15
    ("kernel.oom", "Memory cgroup out of memory: Killed process 4711 (pt_main_thread) total-vm:102400000kB, anon-rss:67108864kB, file-rss:163840kB, shmem-rss:0kB, UID:1000 pgtables:140000kB oom_score_adj:0"),  # Linux 6.8
    ("process.segfault", "double free or corruption (!prev)"),  # glibc 2.36
    ("process.segfault", "malloc(): unsorted double linked list corrupted"),
    ("process.segfault", "free(): invalid next size (fast)"),
    ("process.segfault", "malloc(): corrupted top size"),
    ("process.segfault", "corrupted size vs. prev_size while consolidating"),
    ("process.segfault", "*** stack smashing detected ***: terminated"),
    ("process.segfault", "python3: malloc.c:2617: sysmalloc: Assertion `(old_top == initial_top (av) && old_size == 0)' failed."),
    ("process.killed", "mpirun noticed that process rank 3 with PID 4711 on node n1 exited on signal 9 (Killed)."),  # Open MPI 4.1
    ("process.exit_signal", "srun: error: node-7: task 3: Exited with exit code 139"),  # Slurm 23.11
    ("process.exit_signal", "srun: error: node-7: tasks 0-3: Exited with exit code 137"),
    ("process.exit_signal", "[2024-01-01 00:00:00,000] [ERROR] [launch.py:322:sigkill_handler] ['/usr/bin/python3', '-u', 'train.py', '--local_rank=3'] exits with return code = -11"),  # DeepSpeed 0.14
    ("cuda.nvlink_peer", "torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution"),
    ("kernel.oom", "systemd[1]: slurmd.service: A process of this unit has been killed by the OOM killer."),  # systemd 252
    ("kernel.panic", "BUG: kernel NULL pointer dereference, address: 0000000000000008"),  # Linux 5.15
    ("kernel.panic", "mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: fe00000000010092"),  # UC
    ("kernel.panic", "mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 4: be00000000800400"),
    ("kernel.panic", "mce: [Hardware Error]: Machine check: Processor context corrupt"),
    ("storage.no_space", "RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 576 vs 470"),
    ("storage.no_space", "RuntimeError: PytorchStreamWriter failed writing file data/1: file write failed"),
    ("slurm.cancelled", "srun: forcing job termination, 0 failed tasks"),
    ("slurm.cancelled", "srun: sending Ctrl-C to StepId=77.0"),
    ("slurm.cancelled", "slurmstepd: error: *** JOB 77 STEPD TERMINATED ON node-7 AT 2024-01-01T10:00:00 DUE TO JOB NOT ENDING WITH SIGNALS ***"),
    ("slurm.cancelled", "Warning  Preempted  pod/llama-0  Preempted by a pod on node n3"),  # Kubernetes 1.30
    ("user.signal", "W0301 10:00:00.123000 140 torch/distributed/elastic/agent/server/api.py:719] Received Signals.SIGINT death signal, shutting down workers"),  # PyTorch 2.6
    ("user.signal", "torch.distributed.elastic.multiprocessing.api.SignalException: Process 4711 got signal: 1"),
    ("user.signal", "[2024-01-01 00:00:00,000] [INFO] [launch.py:325:sigkill_handler] Main process received SIGINT, exiting"),
    ("process.terminated", "srun: error: node-7: task 3: Exited with exit code 143"),
    ("process.terminated", "srun: error: node-7: task 3: Exited with exit code 130"),
    ("process.terminated", "mpirun noticed that process rank 0 with PID 4711 on node n1 exited on signal 15 (Terminated)."),
    ("process.terminated", "subprocess.CalledProcessError: Command '['python', 'train.py']' died with <Signals.SIGTERM: 15>."),
    ("process.terminated", "/var/spool/slurmd/job00077/slurm_script: line 12:  4711 Terminated              python train.py"),
    ("process.terminated", "exiting program after receiving SIGTERM."),  # Megatron-LM core 0.8
    ("net.peer_gone", "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.7]:3071. Run with TORCH_DISTRIBUTED_DEBUG=DETAIL for more"),
]  # fmt: skip


@pytest.mark.parametrize(("rule", "message"), WHOLE, ids=[rule for rule, _ in WHOLE])
def test_a_cause_outranks_the_advice_beside_it(rule: str, message: str) -> None:
    found = RULES.match_text(message)
    assert found is not None
    assert found.id == rule


@pytest.mark.parametrize(
    "line",
    [
        *CUDA_ADVICE,
        "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management",
        "Run with NCCL_DEBUG=INFO if an unhandled system error, connection reset by peer or ncclSystemError shows up",
        "mlx5_core 0000:12:00.0: mlx5_cmd_out_err:803:(pid 1): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2), syndrome (0x0), err(-22)",
        "node check passed: 0 uncorrectable ECC errors, no Xid errors, 0 NCCL errors",
        "health: no double-bit ECC errors",
        "UserWarning: with 0 failed retries CUDA out of memory is retried",
        "node-7:4242:4711 [3] NCCL INFO [Service thread] Connection closed by localRank 3",  # at each good end
        "node-7:4242:4711 [0] NCCL INFO Call to connect returned Connection refused, retrying",
        "mce: [Hardware Error]: Machine check events logged",
        "[Hardware Error]: Corrected error, no action required.",
        "mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 8: 8c00004000010091",  # no UC bit
        "[Hardware Error]: CPU:2 (17:31:0) MC17_STATUS[Over|CE|MiscV|AddrV|-|-|SyndV|CECC|-|-|-]: 0xdc2040000000011b",
        "WARNING scheduler.py:1057] Sequence group 12 is preempted by PreemptionMode.RECOMPUTE mode",  # vLLM 0.5
    ],
)  # fmt: skip
def test_advice_and_counts_of_zero_stay_benign(line: str) -> None:
    found = RULES.match(line)
    assert found is None or found.role == "benign", found.id


def test_advice_between_bytes_that_are_no_text_is_taken() -> None:
    assert RULES.match("\udcff CUDA out of memory. 0 errors \udcfe") is not None


@pytest.mark.thorough
@pytest.mark.parametrize("hostile", [("0 errors ", "CUDA out of memory"), ("ACCESS_REG(0x1) ", "Xid failed")])
def test_hostile_advice_takes_linear_time(hostile: tuple[str, str]) -> None:
    """Eight times the text takes eight times as long, not sixty-four; by this process's own time."""

    def took_s(chars: int, rounds: int) -> float:
        again, end = hostile
        line = (again * chars)[: chars - len(end)] + end
        took = []
        for _ in range(5):
            begin_s = time.process_time()
            for _ in range(rounds):
                RULES.match(line)
            took.append((time.process_time() - begin_s) / rounds)
        return min(took)

    assert took_s(MAX_LINE_CHARS, 8) < 24.0 * took_s(MAX_LINE_CHARS // 8, 64)
    assert took_s(100 * MAX_LINE_CHARS, 8) < 24.0 * took_s(MAX_LINE_CHARS, 8)
