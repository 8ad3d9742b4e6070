# ruff: noqa: E501 - log lines are quoted whole
"""Every signature of the fault catalogue in the forms it is seen in, with its benign twins.

Lines are written from the vendors' documented messages (kernel, NVIDIA driver, mlx5, NCCL, PyTorch, CUDA, Slurm).
"""

from __future__ import annotations

import pytest

from trainwarden.detectors.logs.rules import LogRules

RULES = LogRules()

PREFIXES = [
    "",
    "[rank3]: ",
    "3: ",
    "[default3]:",
    "[2024-05-01 12:00:00,123] [ERROR] ",
    "May  1 12:00:00 node-7 kernel: ",
    "[Wed May  1 12:00:00 2024] ",
    "kern  :err   : 2024-05-01T12:00:00,123456+00:00 ",
    "3,4711,206764307,-;",
    "(RayTrainWorker pid=4242, ip=10.0.0.7) ",
    "node7:4242:4711 [3] ",
    "\x1b[31m",
]

# class, role, kind, line
SIGNATURES = [
    ("A", "root", "user_error", "The NVIDIA driver on your system is too old (found version 11000)."),
    ("A", "root", "user_error", "RuntimeError: CUDA error: forward compatibility was attempted on non supported HW"),
    ("N", "benign", None, "efa 0000:a0:1a.0 rdmap160s26: Failed to process command DEREG_MR (opcode 8) comp_status 7"),
    ("N", "benign", None, "efa 0000:a0:1a.0 rdmap160s26: Failed to process command DESTROY_QP (opcode 4) comp_status 7"),
    ("N", "root", "nic_error", "efa 0000:a0:1a.0 rdmap160s26: Failed to process command CREATE_QP (opcode 1) err -22"),
    ("A", "root", "cuda_out_of_memory", "[METAL] Command buffer execution failed: Insufficient Memory (00000008)"),
    ("A", "root", "cuda_out_of_memory", "RuntimeError: MPS backend out of memory (MPS allocated: 17.8 GB)"),
    ("A", "root", "exception", "Warning: NPU warning, error code is 507015[Error]:"),
    ("A", "root", "exception", "Kernel task happen error, retCode=0x26, [aicore exception].[FUNC:PreCheckTaskErr]"),
    ("A", "root", "exception", "there is an aivec error exception, core id is 4, error code = 0x800000"),
    ("H", "root", "gpu_memory_error", "TDRV:exec_consume_infer  Uncorrectable memory error is detected on Neuron device: 5:1 metadata: 0x2."),
    # kernel: GPUs
    ("H", "root", "gpu_lost", "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
    ("H", "root", "gpu_lost", "NVRM: Xid (PCI:0000:9b:00): 119, pid=2024380, name=python, Timeout after 6s of waiting for RPC response from GPU4 GSP!"),
    ("H", "root", "gpu_lost", "NVRM: Xid (PCI:0000:97:00): 144, NVLINK: SAW errors 0x12 Fatal Link 08 (0x1 0x2 0x3 0x4)"),
    ("H", "root", "gpu_lost", "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus."),
    ("H", "root", "gpu_lost", "NVRM: GPU at PCI:0000:3b:00: GPU has fallen off the bus and is not responding to commands."),
    ("H", "root", "gpu_lost", "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x23:0x65:1401)"),
    ("H", "root", "gpu_lost", "NVRM: GPU 0000:3b:00.0: rm_init_adapter failed, device minor number 3"),
    ("H", "root", "gpu_lost", "Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error"),
    ("H", "root", "gpu_lost", "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU"),
    ("H", "root", "nvlink_error", "nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
    ("H", "root", "nvlink_error", "nvidia-nvswitch0: SXid (PCI:0000:86:00.0): 12028, Fatal, Link 32 egress non-posted PRIV error (First)"),
    ("H", "root", "nvlink_error", "[Feb 25 2025 15:10:02] [ERROR] [tid 12727] detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0"),
    ("H", "root", "nvlink_error", "[ERROR] [tid 11] detected NVSwitch fatal error 20034 on fid 0 on NVSwitch pci bus id 00000000:86:00.0 physical id 3 port 4"),
    ("H", "app", "gpu_lost", "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing"),
    ("H", "root", "gpu_memory_error", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ("H", "root", "gpu_memory_error", "what():  CUDA error: uncorrectable ECC error encountered"),
    ("H", "root", "gpu_memory_error", "NCCL WARN Cuda failure 'uncorrectable ECC error encountered'"),
    ("H", "root", "gpu_memory_error", "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"),
    ("H", "root", "nvlink_error", "RuntimeError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error"),
    ("H", "root", "gpu_lost", "RuntimeError: CUDA error: no CUDA-capable device is detected"),
    ("H", "root", "gpu_lost", "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
    ("H", "root", "gpu_lost", "Failed to initialize NVML: Driver/library version mismatch"),
    ("H", "root", "gpu_lost", "RuntimeError: No CUDA GPUs are available"),
    ("H", "root", "gpu_lost", "CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"),
    # kernel: network cards
    ("H", "root", "nic_error", "mlx5_core 0000:5e:00.0: poll_health:739:(pid 0): device's health compromised - reached miss count"),
    ("H", "root", "nic_error", "mlx5_core 0000:5e:00.0: mlx5_health_try_recover:335:(pid 9): handling bad device here"),
    ("H", "root", "nic_error", "mlx5_core 0000:5e:00.0: wait_func_handle_exec_timeout:1062:(pid 1): cmd[0]: CREATE_CQ(0x400) recovered after timeout. cmd ops will cause a leak of a command resource"),
    ("H", "root", "nic_error", "mlx5_core 0000:5e:00.0: print_health_info:431:(pid 0): synd 0x1: unrecoverable hardware error"),
    ("H", "root", "nic_error", "mlx5_core 0000:5e:00.0: Health issue observed, firmware internal error, severity(3) ERROR:"),
    ("N", "app", "nic_error", "mlx5_core 0000:5e:00.0: mlx5_pcie_event:299:(pid 1): Detected insufficient power on the PCIe slot (27W)."),
    ("N", "root", "nic_error", "mlx5_core 0000:5e:00.0: Port module event[error]: module 0, Cable error, High Temperature"),
    ("N", "root", "nic_error", "mlx5_core 0000:5e:00.0: Port module event: module 1, Cable unplugged"),
    ("N", "root", "nic_error", "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 7 timed out"),
    ("N", "root", "nic_error", "NETDEV WATCHDOG: ens1f0np0 (bnxt_en): transmit queue 3 timed out 5012 ms"),
    ("N", "root", "nic_down", "mlx5_core 0000:5e:00.0 enp94s0np0: Link down"),
    ("N", "root", "nic_down", "ixgbe 0000:01:00.0 eth0: NIC Link is Down"),
    ("N", "root", "nic_down", "bond0: (slave ens1f1): link status definitely down, disabling slave"),
    # kernel: PCIe
    ("H", "root", "pcie_error", "pcieport 0000:64:00.0: AER: Uncorrected (Fatal) error received: 0000:65:00.0"),
    ("H", "root", "pcie_error", "nvidia 0000:65:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)"),
    ("H", "root", "pcie_error", "pcieport 0000:64:00.0: DPC: containment event, status:0x1f01 source:0x0000"),
    ("H", "root", "pcie_error", "pcieport 0000:64:00.0: pciehp: Slot(4): Link Down"),
    ("H", "root", "pcie_error", "{1}[Hardware Error]:   event severity: fatal"),
    # kernel: host
    ("S", "root", "host_contention", "INFO: task python3:4711 blocked for more than 120 seconds."),
    ("S", "root", "host_contention", "INFO: task kworker/u256:3:999 blocked for more than 241 seconds."),
    ("S", "root", "host_contention", "watchdog: BUG: soft lockup - CPU#44 stuck for 26s! [pt_main_thread:4711]"),
    ("S", "root", "host_contention", "rcu: INFO: rcu_sched self-detected stall on CPU"),
    ("S", "root", "host_contention", "rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:"),
    ("H", "root", "node_lost", "Kernel panic - not syncing: Fatal exception in interrupt"),
    ("H", "root", "node_lost", "mce: [Hardware Error]: CPU 12: Machine Check Exception: 5 Bank 7: bd80000000100134"),
    ("S", "root", "out_of_memory", "Out of memory: Killed process 4711 (python3) total-vm:123456kB, anon-rss:1kB, file-rss:0kB"),
    ("S", "root", "out_of_memory", "Memory cgroup out of memory: Killed process 4711 (pt_main_thread) total-vm:1kB"),
    ("S", "root", "out_of_memory", "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=slurm,task=python,pid=1,uid=0"),
    ("S", "root", "out_of_memory", "python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"),
    ("S", "root", "out_of_memory", "slurmstepd: error: Detected 1 oom_kill event in StepId=1234.0. Some of the step tasks have been OOM Killed."),
    ("S", "root", "out_of_memory", "slurmstepd: error: Detected 2 oom-kill event(s) in StepId=1234.batch cgroup. Some of your processes may have been killed by the cgroup out-of-memory handler."),
    ("S", "root", "out_of_memory", "srun: error: node7: task 3: Out Of Memory"),
    ("S", "root", "storage", "Buffer I/O error on dev nvme0n1p1, logical block 123, lost async page write"),
    ("S", "root", "storage", "blk_update_request: I/O error, dev sda, sector 1234 op 0x0:(READ)"),
    ("S", "root", "storage", "nvme nvme0: I/O 23 QID 5 timeout, aborting"),
    ("S", "root", "storage", "nvme nvme1: I/O tag 23 (1017) opcode 0x2 (I/O Cmd) QID 5 timeout, reset controller"),
    ("S", "root", "storage", "nvme nvme0: Disabling device after reset failure: -19"),
    ("S", "root", "storage", "nvme nvme0: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10"),
    ("S", "root", "storage", "EXT4-fs (sda1): Remounting filesystem read-only"),
    ("S", "root", "storage", "EXT4-fs error (device nvme0n1p2): ext4_find_entry:1455: inode #2: comm python: reading directory lblock 0"),
    ("S", "root", "storage", "XFS (nvme0n1p1): metadata I/O error in \"xfs_da_read_buf\" at daddr 0x1 len 8 error 5"),
    ("S", "root", "storage", "python3: attempt to access beyond end of device"),
    ("S", "root", "storage", "md/raid1:md0: Disk failure on nvme1n1p1, disabling device."),
    ("S", "root", "storage", "nfs: server fs1 not responding, still trying"),
    ("S", "root", "storage", "nfs: server 10.0.0.9 not responding, timed out"),
    ("S", "root", "storage", "NFS: nfs4_reclaim_open_state: Lock reclaim failed!"),
    ("S", "root", "storage", "VFS: file-max limit 1048576 reached"),
    ("S", "root", "storage", "LustreError: 11-0: lustre-OST0001-osc: operation ost_write failed: this client was evicted by the server"),
    ("S", "root", "storage", "OSError: [Errno 116] Stale file handle: '/scratch/ckpt'"),
    ("S", "root", "storage", "OSError: [Errno 28] No space left on device"),
    ("S", "root", "storage", "RuntimeError: [enforce fail at inline_container.cc:471] . PytorchStreamWriter failed writing file data/1: file write failed: No space left on device"),
    ("S", "root", "storage", "OSError: [Errno 122] Disk quota exceeded: '/home/a/.cache'"),
    ("S", "root", "storage", "OSError: [Errno 30] Read-only file system: '/data/x'"),
    ("S", "root", "storage", "OSError: [Errno 5] Input/output error"),
    # torch and NCCL
    ("C", "cascade", "hang", "[E ProcessGroupNCCL.cpp:474] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600123 milliseconds before timing out."),
    ("C", "cascade", "hang", "[rank3]:[E501 12:00:00.123 ProcessGroupNCCL.cpp:632] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=64, OpType=_ALLGATHER_BASE, NumelIn=1, NumelOut=8, Timeout(ms)=600000) ran for 600041 milliseconds before timing out."),
    ("C", "cascade", "hang", "[E ProcessGroupNCCL.cpp:414] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data."),
    ("C", "cascade", "hang", "To avoid data inconsistency, we are taking the entire process down."),
    ("C", "cascade", "hang", "[PG ID 0 PG GUID 0(default_pg) Rank 3] Timeout at NCCL work: 64, last enqueued NCCL work: 65, last completed NCCL work: 63."),
    ("C", "cascade", "hang", "[Rank 3] First PG on this rank to signal dumping."),
    ("C", "cascade", "hang", "[Rank 3] Received a dump signal due to a collective timeout from this local rank and we will try our best to dump the debug info."),
    ("C", "cascade", "hang", "[Rank 3] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives."),
    ("C", "cascade", "hang", "[PG ID 0 Rank 0] Heartbeat monitor timed out! Process will be terminated after dumping debug info."),
    ("C", "cascade", "hang", "RuntimeError: [../third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete"),
    ("A", "root", "collective_mismatch", "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE), but Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber=3, OpType=BROADCAST)."),
    ("C", "cascade", "crash", "RuntimeError: NCCL error in: /opt/conda/work/torch/lib/c10d/ProcessGroupNCCL.cpp:825, unhandled system error, NCCL version 2.7.8"),
    ("C", "cascade", "crash", "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.19.3"),
    ("C", "cascade", "crash", "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."),
    ("C", "cascade", "crash", "ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error."),
    ("C", "cascade", "crash", "ncclUnhandledCudaError: Call to CUDA function failed."),
    ("C", "cascade", "crash", "ncclInternalError: Internal check failed."),
    ("C", "cascade", "crash", "misc/socket.cc:484 NCCL WARN socketProgress: Connection closed by remote peer node8<41234>"),
    ("C", "cascade", "crash", "misc/socket.cc:58 NCCL WARN socketProgress: Connection reset by peer"),
    ("C", "cascade", "crash", "include/socket.h:403 NCCL WARN Connect to 10.148.3.247<56821> failed : Connection refused"),
    ("C", "cascade", "crash", "misc/ibvwrap.cc NCCL WARN Call to ibv_modify_qp failed with error Connection timed out"),
    ("C", "cascade", "crash", "proxy.cc:1458 NCCL WARN [Service thread] Accept failed Resource temporarily unavailable"),
    ("A", "root", "exception", "NCCL WARN Cuda failure 'unspecified launch failure in prior launch'"),
    ("C", "cascade", "crash", "NCCL WARN Cuda failure 'initialization error'"),
    ("C", "cascade", "crash", "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed. See inner exception for details."),
    ("C", "cascade", "crash", "torch.distributed.DistNetworkError: The client socket has failed to connect to any network address of (node0, 29500)."),
    ("C", "cascade", "crash", "[W socket.cpp:601] [c10d] The client socket has failed to connect to [node0]:29500 (errno: 111 - Connection refused)."),
    ("C", "cascade", "crash", "RuntimeError: [3] is setting up NCCL communicator and retrieving ncclUniqueId from [0] via c10d key-value store by store->get('0'), but store->get('0') got error: Connection reset by peer"),
    ("C", "cascade", "crash", "RuntimeError: Broken pipe"),
    ("C", "cascade", "crash", "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"),
    ("N", "root", "nic_error", "transport/net_ib.cc:1296 NCCL WARN NET/IB : Got completion from peer 10.2.0.5<33092> with error 12, opcode 0, len 0, vendor err 129 (Recv)"),
    ("N", "root", "nic_error", "transport/net_ib.cc:95 NCCL WARN NET/IB: Got completion from peer 10.2.0.5<3309> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor err 129"),
    ("N", "root", "nic_error", "NCCL WARN NET/IB : Got completion from peer 10.2.0.5<33092> with status=12 opcode=1 len=0 vendor err 129"),
    ("N", "root", "nic_error", "NCCL WARN NET/IB : Got completion with error 11, opcode 0, len 0"),
    ("N", "root", "nic_error", "NCCL WARN NET/IB : Got completion with error 10, opcode 0, len 0, vendor err 136"),
    ("C", "cascade", "nic_error", "NCCL WARN NET/IB : Got completion from peer 10.2.0.5<33092> with error 5, opcode 48, len 0, vendor err 249"),
    ("C", "cascade", "nic_error", "NCCL WARN NET/IB: Got completion from peer 10.2.0.5<3309> with status=IBV_WC_WR_FLUSH_ERR(5) opcode=IBV_WC_SEND(0)"),
    ("N", "root", "nic_down", "NCCL WARN NET/IB : mlx5_3:1 Got async event : port error"),
    ("N", "root", "nic_down", "NCCL WARN NET/IB : mlx5_3:1 Got async error event: port error"),
    ("N", "app", "slow_link", "NCCL INFO Using network Socket"),
    # CUDA and Python: the application
    ("A", "root", "exception", "RuntimeError: CUDA error: an illegal memory access was encountered"),
    ("A", "root", "exception", "RuntimeError: CUDA error: device-side assert triggered"),
    ("A", "root", "exception", "RuntimeError: CUDA error: unspecified launch failure"),
    ("A", "root", "exception", "RuntimeError: CUDA error: misaligned address"),
    ("A", "root", "exception", "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"),
    ("A", "root", "cuda_out_of_memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 15.38 MiB is free."),
    ("A", "root", "cuda_out_of_memory", "RuntimeError: CUDA out of memory. Tried to allocate 304.00 MiB (GPU 0; 8.00 GiB total capacity;"),
    ("A", "root", "cuda_out_of_memory", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ("A", "root", "cuda_out_of_memory", "NCCL WARN Cuda failure 2 'out of memory'"),
    ("A", "root", "cuda_out_of_memory", "NCCL WARN Failed to CUDA calloc 6291456 bytes"),
    ("A", "root", "out_of_memory", "MemoryError: Unable to allocate 12.0 GiB for an array with shape (1,)"),
    ("A", "root", "out_of_memory", "OSError: [Errno 12] Cannot allocate memory"),
    ("S", "root", "out_of_memory", "NCCL WARN Error: failed to extend /dev/shm/nccl-yMzFKG to 33030532 bytes, error: No space left on device (28)"),
    ("A", "root", "data_stall", "RuntimeError: DataLoader worker (pid 8182) is killed by signal: Killed."),
    ("A", "root", "data_stall", "RuntimeError: DataLoader worker (pid(s) 8182, 8183) exited unexpectedly"),
    ("A", "root", "data_stall", "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm)."),
    ("A", "root", "data_stall", "RuntimeError: Caught ValueError in DataLoader worker process 3."),
    ("A", "app", "exception", "data: skipping corrupted sample 123 in shard 7"),
    ("A", "root", "checkpoint", "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"),
    ("A", "root", "checkpoint", "RuntimeError: Error(s) in loading state_dict for GPTModel:"),
    ("A", "root", "checkpoint", "\tsize mismatch for lm_head.weight: copying a param with shape torch.Size([1]) from checkpoint"),
    ("A", "root", "checkpoint", "\tMissing key(s) in state_dict: \"a.weight\"."),
    ("A", "root", "checkpoint", "safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge"),
    ("A", "root", "user_error", "FileNotFoundError: [Errno 2] No such file or directory: '/data/train.bin'"),
    ("A", "root", "user_error", "PermissionError: [Errno 13] Permission denied: '/scratch'"),
    ("A", "root", "user_error", "train.py: error: unrecognized arguments: --lr0"),
    ("A", "root", "user_error", "ModuleNotFoundError: No module named 'flash_attn'"),
    ("A", "root", "user_error", "/var/spool/slurmd/job1/slurm_script: line 12: conda: command not found"),
    ("A", "app", "silent_corruption", "loss is nan at step 1200"),
    ("A", "app", "silent_corruption", "rank 3: found NaN in local grad norm in backward pass before data-parallel communication collective"),
    ("A", "app", "silent_corruption", "AssertionError: Rank 3: found NaN in local forward loss calculation. Device: 3, node: n7"),
    ("A", "app", "silent_corruption", "RuntimeError: The total norm of order 2.0 for gradients from `parameters` is non-finite, so it cannot be clipped."),
    ("A", "root", "crash", "Fatal Python error: Segmentation fault"),
    ("A", "root", "crash", "Segmentation fault (core dumped)"),
    ("A", "root", "crash", "pt_main_thread[2536443]: segfault at 7f797fe00000 ip 00007f7c7ac69996 sp 00007f7c12fd7c30 error 4 in libc.so.6[7f+1000]"),
    ("A", "root", "crash", "*** Process received signal *** Signal: Segmentation fault (11)"),
    ("A", "root", "crash", "traps: python3[4711] trap invalid opcode ip:7f79 sp:7f7c error:0 in libtorch_cpu.so"),
    ("A", "root", "crash", "Illegal instruction (core dumped)"),
    ("A", "root", "crash", "srun: error: node7: task 3: Segmentation fault (core dumped)"),
    ("A", "root", "exception", "[E ProcessGroupNCCL.cpp:1182] [Rank 0] NCCL watchdog thread terminated with exception: CUDA error: an illegal memory access was encountered"),
    ("C", "cascade", "crash", "[Rank 0] NCCL watchdog thread terminated with exception: NCCL error: remote process exited or there was a network error"),
    ("C", "cascade", "crash", "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 123) of binary: /usr/bin/python"),
    ("C", "cascade", "crash", "RuntimeError: Timed out initializing process group in store based barrier on rank: 3, for key: store_based_barrier_key:1 (world_size=16, worker_count=14, timeout=0:30:00)"),
    ("A", "root", "user_error", "NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 35000"),
    ("N", "root", "nic_error", "UCX  ERROR Transport retry count exceeded on mlx5_0:1/IB (synd 0x15 vend 0x81 hw_synd 0/0)"),
    ("N", "root", "nic_down", "ib0: link down"),
    ("H", "root", "pcie_error", "pcieport 0000:00:01.0: AER: Uncorrectable (Non-Fatal) error message received from 0000:01:00.0"),
    ("S", "root", "storage", "sd 0:0:0:0: [sda] tag#0 FAILED Result: hostbyte=DID_BAD_TARGET driverbyte=DRIVER_OK"),
    ("S", "root", "storage", "LustreError: 166-1: MGC10.0.0.1@o2ib: Connection to MGS (at 10.0.0.1@o2ib) was lost; in progress operations using this service will fail"),
    ("S", "root", "node_lost", "slurmstepd: error: Prolog hung on node r7i7n0"),
    ("A", "root", "crash", "bash: line 1: 1234 Killed                  python train.py"),
    ("A", "root", "crash", "mpirun noticed that process rank 3 with PID 0 on node n7 exited on signal 9 (Killed)."),
    # Slurm
    ("S", "phase", None, "slurmstepd: error: *** STEP 1999616.0 ON r6i4n5 CANCELLED AT 2021-05-27T21:42:11 DUE TO TIME LIMIT ***"),
    ("S", "phase", None, "slurmstepd: error: *** JOB 123 ON node1 CANCELLED AT 2024-01-01T00:00:00 ***"),
    ("S", "phase", None, "slurmstepd: error: *** JOB 123 ON node1 CANCELLED AT 2024-01-01T00:00:00 DUE TO PREEMPTION ***"),
    ("S", "root", "node_lost", "slurmstepd: error: *** JOB 123 ON node1 CANCELLED AT 2024-01-01T00:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"),
    ("S", "root", "node_lost", "srun: error: Node failure on node7"),
    ("S", "root", "node_lost", "srun: error: NODE_FAIL on node7, step 0"),
    ("S", "root", "user_error", "srun: error: Unable to create step for job 1930: Invalid generic resource (gres) specification"),
    ("S", "root", "user_error", "sbatch: error: Batch job submission failed: Requested node configuration is not available"),
    ("S", "root", "node_lost", "slurmctld: error: Setting node gpu1 state to INVAL with reason:gres/gpu count reported lower than configured (3 < 4)"),
    ("S", "root", "node_lost", "slurmctld: drain_nodes: node gpu1 state set to DRAIN"),
    ("S", "root", "node_lost", "slurmctld: error: _slurm_rpc_node_registration node=gpu1: Invalid argument"),
    ("S", "root", "node_lost", "WARNING worker.py:1228 -- The node with node id: 0fc14938ad and ip: 10.0.0.7 has been marked dead because the detector has missed too many heartbeats from it."),
    ("S", "root", "node_lost", "[2022-02-16 12:46:52,789 C 149 149] node_manager.cc:170: This node has beem marked as dead."),
    ("N", "root", "nic_error", "node1:42:77 [1] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4321> with error 4, opcode 32564, len 32564, vendor err 81 (Send)"),
    ("A", "root", "collective_mismatch", "node1:42:77 [1] init.cc:1247 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 39."),
    ("C", "cascade", "hang", "[E ProcessGroupGloo.cpp:138] [Rank 0]: Ranks 4, 5, 6, 7 failed to pass monitoredBarrier in 2000000 ms"),
    ("C", "cascade", "hang", "[E ProcessGroupGloo.cpp:138] Rank 3 successfully reached monitoredBarrier, but received errors while waiting for send/recv from rank 0."),
    ("C", "cascade", "hang", '[topoinfo_exchange_base.cc:145] TopoDetect ERROR occur !!! fault_type[1], fault_info["Failed to connect agent[1,3,5,7,]"]'),
    ("A", "root", "silent_corruption", "ERROR:megatron.core.rerun_state_machine:Unexpected result nan on rank 3 at iteration #3 invocation #2 (message='found NaN in local grad norm')"),
    ("H", "root", "gpu_memory_error", "NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR instance-id=i-0592464924bd45322 hostname=ip-172-31-61-252 nd-id=0 nc-id=0 action=TERMINATE_INSTANCE"),
    ("H", "root", "gpu_lost", "58100:58100 ERROR  TDRV:tdrv_init_mla_phase1                    Could not open the nd3"),
    ("H", "root", "pcie_error", " 3 | 05/20/26 | 14:40:07 UTC | Critical Interrupt #0xa1 | Bus Fatal Error (Bus fatal:B5d/D03/F02) | Asserted"),
    ("H", "root", "node_lost", " 89 | 08/31/2016 | 06:20:30 | Processor #0xc9 | IERR | Asserted"),
    ("N", "root", "nic_error", "bnxt_en 0000:3b:00.0 ens1f0np0: TX timeout detected, starting reset task!"),
    ("N", "root", "nic_error", "ice 0000:3b:00.0 ens1: tx_timeout: VSI_num: 6, Q 3, NTC: 0x1, HW_HEAD: 0x1, NTU: 0x2, INT: 0x0"),
    ("S", "root", "storage", "beegfs: python(1234) [NodeConn (acquire stream)] >> Connect failed: beegfs-storage s1 [ID: 3] via TCP: 10.0.0.3:8003"),
    ("S", "root", "storage", "libceph: osd12 down"),
    ("H", "root", "gpu_lost", "ERROR:  nhc:  Health check failed:  Check check_nv_gpu_count 8 returned 1"),
    ("H", "root", "gpu_memory_error", "ERROR:  nhc:  Health check failed:  check_gpu_ecc: GPU 3 has uncorrectable errors"),
    ("N", "root", "nic_down", "ERROR:  nhc:  Health check failed:  check_hw_ib:  No IB port mlx5_ib3:1 is ACTIVE (LinkUp 400 Gb/sec)."),
    ("H", "root", "gpu_lost", "I0809 13:32:51.873541       1 health.go:185] XidCriticalError: Xid=79 on Device=GPU-3b6ec030-5adc-1847-e155-79f635584b4e; marking device as unhealthy."),
    ("H", "root", "gpu_lost", "gim error libgv: [0:3d:0:0][PF][wait_for_first_cmd_complete:471] Timeout of waiting command complete (500000 us)."),
    ("S", "root", "storage", "2024/04/25 08:36:02.944266 juicefs[25] <ERROR>: upload chunks/0/9/9246_9_4194304: timeout after 1m0s: function timeout"),
    ("S", "root", "storage", 'Warning  FailedMount  98s (x5 over 10m)  kubelet, gpu-02  MountVolume.SetUp failed for volume "pvc-7e" : rpc error: code = DeadlineExceeded desc = context deadline exceeded'),
]  # fmt: skip

BENIGN = [
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.",
    "For debugging consider passing CUDA_LAUNCH_BLOCKING=1",
    "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
    "If reserved but unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.",
    "See documentation for Memory Management and PYTORCH_CUDA_ALLOC_CONF",
    "mlx5_core 0000:12:00.0: mlx5_cmd_out_err:803:(pid 1): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2)",
    "NVRM: Xid (PCI:0000:3b:00): 107, test message",
    "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20009, Non-fatal, Link 2 RX Short Error Rate",
    "UserWarning: error_if_nonfinite is set to False",
    "FutureWarning: this will raise an error in a future version",
    "DeprecationWarning: the timeout argument is deprecated",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
    "NCCL_ASYNC_ERROR_HANDLING is set",
    "export NCCL_IB_TIMEOUT=22",
    "timeout_minutes .............................. 10",
    "  abort_on_error ................................. False",
    "number of nan iterations:   0 | number of skipped iterations:   0 |",
    " iteration      100/  500000 | lm loss: 3.2E+00 | loss scale: 131072.0 | grad norm: 1.2 | number of nan iterations:   0 |",
    "validation finished, 0 errors",
    "epoch 3 mean squared error 0.12",
    "word error rate: 0.12",
    "NCCL WARN NET/IB : mlx5_0:1 Got async event : port active",
    "NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ib0:10.0.0.1<0>",
    "NCCL INFO NET/Plugin : No plugin found (libnccl-net.so), using internal implementation",
    "NCCL INFO NET/Plugin: Failed to find ncclNetPlugin_v8 symbol.",
    "loss: 2.31 grad_norm: 0.9 error_rate=0.0",
    "Saving checkpoint at step 400 to /ckpt/400",
    "successfully loaded checkpoint from /ckpt/400",
    "srun: Job step aborted: Waiting up to 62 seconds for job step to finish.",
    "pcieport 0000:64:00.0: AER: Corrected error received: 0000:65:00.0",
    "nvidia 0000:65:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    "mlx5_core 0000:5e:00.0 enp94s0np0: Link up",
    "mlx5_core 0000:5e:00.0: Port module event: module 0, Cable plugged",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
    "nfs: server fs1 OK",
    "NFS: state manager: check lease failed on NFSv4 server 10.1.1.1 with error 10008",
    "perf: interrupt took too long (2509 > 2500), lowering kernel.perf_event_max_sample_rate to 79500",
    "EXT4-fs (sda1): mounted filesystem with ordered data mode. Opts: errors=remount-ro",
    "slurmstepd: error: _is_a_lwp: open() /proc/123/status failed: No such file or directory",
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0",
    "[deepspeed] OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
    "        Remapping Failure Occurred        : No",
    "        Correctable Error                 : 1",
    "        DRAM Uncorrectable                : 0",
]  # fmt: skip

# What an operator, a second try or a board's sensor says beside the same words: no rule knows it.
UNKNOWN = [
    "slurmctld: update_node: node gpu1 state set to DRAINED",
    'Warning  FailedMount  9m  kubelet, gpu-02  MountVolume.SetUp failed for volume "pvc-7e" : rpc error: code = DeadlineExceeded desc = context deadline exceeded',
    "  3a | 12/14/22 | 23:09:44 CET | Memory #0x88 | Correctable ECC (CPU0_G1) | Asserted",
    "SUCCESS:  nhc:  Health check passed:  check_gpu_ecc: ECC checks passed",
    "2024/04/25 08:34:56.080302 juicefs[25] <WARNING>: Upload chunks/0/9/9251_2_4194304: timeout after 1m0s (try 2) [cached_store.go:403]",
    "p100     NotReady,SchedulingDisabled   <none>   17h   v1.15.11",
    "  Ready                 True            Fri, 27 Jan 2017 10:38:42 -0700         Fri, 27 Jan 2017 10:39:26 -0700         KubeletReady               kubelet is posting ready status",
    "ERROR   NRT:nrt_close                               Unexpected runtime state: NRT_STATE_START",
]


# Words of a fault in lines of programs that go on: others may report them, nobody is accused.
SURVIVED = [
    "NCCL WARN NET/OFI aws-ofi-nccl initialization failed",
    "NCCL WARN NET/OFI Couldn't open CUDA lib, falling back",
    "NCCL WARN NET/OFI Unable to find topology file, using default",
    "NCCL WARN NET/OFI enabling error counters",
    "WARNING: Unhandled exception: aiohttp.ClientError in telemetry thread (ignored)",
    "WARNING: Unhandled exception: aiohttp.ClientError: closed",
    "Unhandled RuntimeError will be reported to Sentry",
    "Unhandled RuntimeError: closed, retrying",
    "caught uncaught exception StopIterationException in the loader, retrying",
    "no uncaught exception: RuntimeError",
    "checks that no GPU fell off the bus: passed",
    'DCGM check "GPU fell off the bus": PASS',
    "NVRM: GPU0 GSP firmware 535.104 loaded, crash logging on",
    "NVRM: GPU0 GSP firmware task completed without crash",
    "NVRM: GPU0 GSP Timeout count: 0",
    "NVRM: GPU0 no Timeout waiting for RPC",
    "ErrorCode:GPU_TEMP_HW_SLOWDOWN_VIOLATION GPU:0 PCI:0000:3b:00.0 count: 0",
    "ErrorCode:GPU_HW_POWER_BRAKE_VIOLATION count: 0",
    "set CUDA_EXCEPTION_2 breakpoint",
    "ran without CUDA_EXCEPTION_14",
    "CUDA Exception: Warp checks passed",
    "RESOURCE_EXHAUSTED: Attempting to reserve 3G; retrying with smaller",
    "Horovod has been shut down cleanly after training",
    "no node had condition: [MemoryPressure]",
    "node had condition: [DiskPressure]: False",
    "Detected failure SLICE_FAILURE_CHIP_DRIVER_ERROR: no",
    "up again, retrying after TPU session error from worker w-1",
    "*** Halt is unexpected, all pending programs will fail: no",
    "ORTE has lost communication with a remote daemon: no",
    "DEADLINE_EXCEEDED: Barrier timed out, retrying",
    "mmfs daemon is shutting down abnormally: no",
    "exceeds the memory usage threshold of 0.95. Ray killed this worker: 0",
    "AttributeError: Can't pickle local object, falling back to threads",
]  # fmt: skip
FAULTS = [
    "NVRM: GPU6 _kgspLogRpcTimeout: ********* GSP Timeout **********",
    "NVRM: GPU6 _kgspIsHeartbeatTimedOut: Heartbeat timed out",
    "NVRM: Timeout waiting for RPC from GPU0 GSP! Expected function 76",
    "NVRM: GPU0 GSP task exception: 0x12",
    "NVRM: The NVIDIA GPU 0000:3b:00.0 fell off the bus",
    "CRITICAL [olmo.util:158, rank=6] Uncaught HfHubHTTPError: 429 Client Error",
    "Unhandled exception: aiohttp.ClientError",
    "WARNING: Unhandled exception: RuntimeError: CUDA out of memory. Tried to allocate 2 GiB",
    "RESOURCE_EXHAUSTED: Attempting to reserve 12.99G at the bottom of memory. That was not possible. There are 1G free",
    "AttributeError: Can't pickle local object 'f.<locals>.g'",
    "TypeError: can't pickle _thread.lock objects",
    "TypeError: cannot pickle '_io.TextIOWrapper' object",
    "(1) Unknown: Horovod has been shut down. This was caused by an exception on one of the ranks",
    'Thread 1 "python" received signal CUDA_EXCEPTION_14, Warp Illegal Address.',
]


@pytest.mark.parametrize("line", SURVIVED)
def test_a_line_that_denies_a_fault_or_goes_on_accuses_nobody(line: str) -> None:
    for prefix in PREFIXES:
        found = RULES.match(prefix + line)
        assert found is None or found.role not in {"root", "cascade"}, (prefix + line, found.id)


@pytest.mark.parametrize("line", FAULTS)
def test_a_fault_in_the_words_of_who_reports_it_is_understood(line: str) -> None:
    found = RULES.match(line)
    assert found is not None
    assert found.role in {"root", "cascade"}, found.id


@pytest.mark.parametrize(("class_", "role", "kind", "line"), SIGNATURES, ids=[line[:60] for *_, line in SIGNATURES])
def test_a_signature_is_understood_whatever_comes_before_it(
    class_: str, role: str, kind: str | None, line: str
) -> None:
    for prefix in PREFIXES:
        found = RULES.match(prefix + line)
        assert found is not None, prefix + line
        assert (found.class_, found.role, found.kind) == (class_, role, kind), (prefix + line, found.id)


@pytest.mark.parametrize("line", BENIGN)
def test_what_only_looks_like_a_fault_is_silent(line: str) -> None:
    for prefix in PREFIXES:
        if prefix.endswith("[ERROR] "):
            continue  # whoever logs at that level means it
        found = RULES.match(prefix + line)
        assert found is None or found.role in {"benign", "phase"}, (prefix + line, found.id)


@pytest.mark.parametrize("line", UNKNOWN)
def test_words_of_a_fault_without_one_are_no_cause(line: str) -> None:
    found = RULES.match(line)
    assert found is None or found.kind in {None, "log_storm"}, found.id


@pytest.mark.parametrize("line", [line for *_, line in SIGNATURES if "Xid" not in line])
def test_signatures_survive_other_numbers_and_trailing_text(line: str) -> None:
    first = RULES.match(line)
    again = RULES.match(line + " (see above)")
    assert first is not None
    assert again is not None
    assert again.id == first.id or again.role == first.role


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the PutObject operation: "
         "The provided token has expired.", "cloud.credentials"),
        ("botocore.exceptions.EndpointConnectionError: Could not connect to the endpoint URL: 'https://s3.x/bkt'",
         "storage.object_store"),
        ("[Error]: UCE ERROR, device 3", "ascend.memory"),
        ("[METAL] Command buffer execution failed: Caused GPU Hang Error (00000003:kIOGPUCommandBufferCallbackErrorHang)",
         "metal.command_buffer"),
    ],
)  # fmt: skip
def test_what_lies_outside_of_cuda_has_rules_of_its_own(line: str, rule: str) -> None:
    found = RULES.match(line)
    assert found is not None
    assert found.id == rule
