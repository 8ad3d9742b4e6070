"""What lines say of devices and of steps, in files of any name."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.unit.detectors.last_words.judged import judged, steps
from trainwarden.detectors.logs.device_lines import device_of
from trainwarden.formats.reading import read_job
from trainwarden.formats.text.trainers import TRAINERS, step_line

KERNEL = "2026-11-04T09:10:{second:02d}.100000+00:00 gf kernel: NVRM: Xid (PCI:{device}): {said}"
LOST = "79, pid=7001, name=python, GPU has fallen off the bus."


def test_the_gravest_xid_counts_and_each_device_has_its_own(tmp_path: Path) -> None:
    lines = [
        KERNEL.format(second=0, device="0000:3b:00", said="31, pid=7001, name=python, MMU fault"),
        KERNEL.format(
            second=5, device="0000:3b:00", said="154, GPU recovery action changed from 0x0 (None) to 0x0 (None)"
        ),
        KERNEL.format(second=9, device="0000:5e:00", said=LOST),
    ]
    incidents = judged(tmp_path, {"logs_kernel.txt": lines})
    assert [(one.kind, one.severity, one.suspects[0].device) for one in incidents] == [
        ("gpu_lost", "sev1", "0000:5e:00")
    ]


def test_what_the_driver_orders_after_a_fault_is_no_second_incident(tmp_path: Path) -> None:
    said = ["95, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No",
            "154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"]  # fmt: skip
    lines = [KERNEL.format(second=at, device="0000:3b:00", said=one) for at, one in enumerate(said)]
    (incident,) = judged(tmp_path, {"logs_kernel.txt": lines})
    assert (incident.kind, incident.suspects[0].device) == ("gpu_memory_error", "0000:3b:00")


def test_further_lines_of_a_harmless_sxid_say_nothing(tmp_path: Path) -> None:
    sxid = "2026-11-04T09:10:0{}.1+00:00 gf kernel: nvidia-nvswitch0: SXid (PCI:0000:87:00.0): 12021, {}"
    said = ["Non-fatal, Link 56 egress nonposted PRIV error (First)", "Severity 0 Engine instance 56",
            "Data {0x50610002, 0x10100030}"]  # fmt: skip
    assert judged(tmp_path, {"logs_kernel.txt": [sxid.format(at, one) for at, one in enumerate(said)]}) == []


@pytest.mark.parametrize(("word", "told"), [("Nonfatal", 0), ("Fatal", 1)])
def test_the_drivers_own_severity_counts(tmp_path: Path, word: str, told: int) -> None:
    line = KERNEL.format(second=0, device="0018:01:00", said=f"145, RLW_REMAP {word} XC0 i0 Link 00 (0x4)")
    assert len(judged(tmp_path, {"logs_kernel.txt": [line]})) == told


def test_a_device_and_the_rank_that_dies_of_it_are_one_incident(tmp_path: Path) -> None:
    died = "[rank1]:[E1104 09:10:01.111 ProcessGroupNCCL.cpp:2058] CUDA error: unspecified launch failure"
    ended = (
        "E1104 09:10:04.902000 6990 torch/api.py:882] failed (exitcode: -6) local_rank: 1 (pid: 7001) of binary: python"
    )
    kernel = [KERNEL.format(second=0, device="0000:3b:00", said=LOST)]
    incidents = judged(tmp_path, {"logs_kernel.txt": kernel, "logs_train.txt": [died, ended]})
    (suspect,) = [one.suspects[0] for one in incidents]
    assert (suspect.rank, suspect.node, suspect.device) == (1, "gf", "0000:3b:00")


def test_two_hosts_that_complain_of_a_third_accuse_it(tmp_path: Path) -> None:
    lines = [f"g{i}:{i}00:{i}00 [0] NCCL INFO Bootstrap : Using eth0:10.9.0.{i}<0>" for i in (1, 2, 3)]
    peer = "NCCL WARN NET/IB : Got completion from peer 10.9.0.2<40101> with status=12 opcode=0 len=0 vendor err 129"
    lines += [f"g{i}:{i}00:{i}50 [0] transport/net_ib.cc:1295 {peer}" for i in (1, 3)]
    (incident,) = judged(tmp_path, {"logs.txt": lines})
    assert (incident.kind, [one.node for one in incident.suspects]) == ("nic_error", ["g2"])


@pytest.mark.parametrize(
    ("line", "device"),
    [
        ("NET/IB : mlx5_3:1 Got async event : port error", "mlx5_3"),
        ("mlx5_core 0000:a8:00.0 ens3: Link down", "0000:a8:00.0"),
        ("amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!", "0000:c1:00.0"),
    ],
)
def test_a_line_names_its_device(line: str, device: str) -> None:
    assert device_of(line) == device


@pytest.mark.parametrize("row", TRAINERS, ids=lambda row: row.name)
def test_every_trainers_step_line_is_read(row) -> None:
    said = step_line(row.sample)
    assert said is not None
    assert (said.trainer, said.step is not None) == (row.name, "(?P<step>" in row.pattern)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "form", ["megatron", "nanogpt", "bar", "composer", "olmo_core", "llm_c", "fairseq", "verl", "torchtune", "script"]
)
def test_a_job_that_becomes_slow_is_told_by_its_step_lines(tmp_path: Path, form: str) -> None:
    lines = []
    for step in range(240):
        lasted = (1.5 if step < 140 else 5.2) * (1.0 + 0.01 * (step % 5))
        lines.append(
            {
                "megatron": f" iteration {step:8d}/ 9000 | elapsed time per iteration (ms): {1000 * lasted:.1f} | lm loss: 2.5E+00 |",  # noqa: E501
                "nanogpt": f"iter {step}: loss 2.5970, time {1000 * lasted:.2f}ms, mfu 37.89%",
                "bar": f"   1%|###       | {step}/240 [00:04<09:09,  {lasted:.2f}s/it]",
                "composer": f"[batch={step}/240]:\n\t Train loss/train/total: 2.5\n\t Train throughput/batches_per_sec: {1 / lasted:.4f}",  # noqa: E501
                "olmo_core": f"[step={step}/240,epoch=1/1,eta=2h]\n    throughput/device/BPS={1 / lasted:.4f}\n    train/CE loss=2.5",  # noqa: E501
                "llm_c": f"step {step:4d}/240 | loss 7.101 (+nanz)| norm 1.2 (+nanz)| lr 1e-4 | {1000 * lasted:.2f} ms | 45.3% bf16 MFU | 123456 tok/s",  # noqa: E501
                "fairseq": f'{{"epoch": 1, "loss": "2.5", "wps": "51200", "ups": "{1 / lasted:.2f}", "wpb": "8192", "num_updates": "{step}"}}',  # noqa: E501
                "verl": f"(TaskRunner pid=7) step:{step} - actor/pg_loss:0.01 - {'x' * 3000} - timing_s/step:{lasted:.3f} - perf/mfu:0.4",  # noqa: E501
                "torchtune": f"Step {step} | loss:2.5 lr:2e-05 tokens_per_second_per_gpu:{8192 / lasted:.3f} grad_norm:0.7",  # noqa: E501
                "script": f"epoch 0 step {step}: loss=2.5 ({lasted:.2f} sec/step)",
            }[form]
        )
    incidents = judged(tmp_path, {"train.log": lines})
    assert [(one.kind, [two.rank for two in one.suspects]) for one in incidents] == [("slow_job", [])]


def test_logs_of_any_name_and_of_nodes_in_folders_are_read_together(tmp_path: Path) -> None:
    for node, name in (("n1", "slurm-77.out"), ("n2", "train.log.gz")):
        (tmp_path / node).mkdir()
        data = b"2026-11-04 08:00:00,101 - root - INFO - step: 1  loss: 2.5\nTraceback (most recent call last):\nKeyError: 'x'\n"  # noqa: E501
        (tmp_path / node / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    job = read_job(tmp_path)
    assert [(log.file, set(log.nodes)) for log in job.logs] == [
        ("n1/slurm-77.out", {"n1"}),
        ("n2/train.log.gz", {"n2"}),
    ]


LOCKUP = "2026-11-04 08:00:50 gn7 kernel: watchdog: BUG: soft lockup - CPU#12 stuck for 22s! [python:12345]"


def test_a_stuck_processor_after_which_nothing_goes_on_is_told_and_one_that_is_outlived_is_not(tmp_path: Path) -> None:
    before, after = steps("08:00:45", 9), steps("08:01:40", 9)
    (tmp_path / "dead").mkdir()
    (incident,) = judged(tmp_path / "dead", {"logs.txt": [*before, LOCKUP]})
    assert (incident.kind, incident.suspects[0].node) == ("host_contention", "gn7")
    (tmp_path / "storage").mkdir()
    weka = "2026-11-04 08:00:48 gn7 kernel: wekafs: IO timed out after 120 seconds, driver is not responding"
    (incident,) = judged(tmp_path / "storage", {"logs.txt": [*before, weka, LOCKUP]})
    assert incident.kind == "storage"
    (tmp_path / "alive").mkdir()
    assert not judged(tmp_path / "alive", {"logs.txt": [*before, LOCKUP, *after]})


@pytest.mark.parametrize(
    "said",
    [
        ["GPU coredump: execvp failed: No such file or directory", "GPU core dump failed"],
        ["Failed to write segment data to pipe: Broken pipe"],
        [],
    ],
)
def test_what_rocm_says_of_its_core_dump_is_not_the_fault(tmp_path: Path, said: list[str]) -> None:
    fault = "Memory access fault by GPU node-9 (Agent handle: 0x55d0) on address 0x7f10a000. Reason: Unknown."
    ended = "E1104 09:10:03.901000 70 torch/distributed/run.py:9] failed (exitcode: -6) local_rank: 3 (pid: 7003) of x"
    (incident,) = judged(tmp_path, {"train.log": [*steps("09:10:00", 12), fault, *said, ended]})
    assert (incident.kind, incident.suspects[0].rank) == ("exception", 3)
    assert "Memory access fault" in incident.reason


def test_a_core_dump_that_failed_beside_steps_is_no_incident(tmp_path: Path) -> None:
    said = ["GPU core dump failed", "Failed to write segment data to pipe: Broken pipe"]
    assert not judged(tmp_path, {"train.log": [*steps("09:10:00", 12), *said, *steps("09:11:00", 12)]})


MLX5 = "2026-11-04T09:10:{at}+00:00 gf kernel: mlx5_core {device} {said}"


@pytest.mark.parametrize(("device", "kinds"), [("0000:9a:00.0", 1), ("0000:5e:00.0", 2)])
def test_a_card_that_complains_as_its_port_is_lost_is_one_incident(tmp_path: Path, device: str, kinds: int) -> None:
    lines = [
        MLX5.format(at="04.990000", device=f"{device}:", said="Port module event[error]: module 0, Cable error, x"),
        MLX5.format(at="05.010000", device="0000:9a:00.0", said="ibp154s0: Link down"),
        MLX5.format(at="40.000000", device="0000:9a:00.0", said="ibp154s0: mtu 4092"),
    ]
    found = judged(tmp_path, {"logs_kernel.txt": lines})
    assert len({one.kind for one in found}) == kinds
    assert "nic_down" in {one.kind for one in found}


def test_the_events_of_a_described_pod_are_of_its_node_and_what_follows_is_not(tmp_path: Path) -> None:
    low = "The node was low on resource: ephemeral-storage. Threshold quantity: 10Gi, available: 8Gi."
    lines = [
        "Name:             job-worker-2", "Node:             gpu-pool-3/10.1.0.4", "Status:           Failed",
        f"Message:          {low}", "Events:", "  Type     Reason   Age  From     Message",
        f"  Warning  Evicted  3m   kubelet  {low}", "", "$ kubectl logs job-worker-0",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    ]  # fmt: skip
    found = {one.kind: one.suspects for one in judged(tmp_path, {"describe.txt": lines})}
    assert [one.node for one in found["storage"]] == ["gpu-pool-3"]
    assert not any(one.node for one in found["gpu_memory_error"])


@pytest.mark.parametrize(("name", "node"), [("dmesg-dgx-3.txt", "dgx-3"), ("dmesg-dgx-30.txt", None)])
def test_a_log_that_names_no_node_is_of_the_known_one_in_its_own_name(
    tmp_path: Path, name: str, node: str | None
) -> None:
    nccl = "dgx-3:41:44 [3] NCCL INFO Bootstrap : Using bond0:10.2.0.3<0>"
    files = {"train.log": [*steps("09:10:00", 12), nccl], name: ["[  900.10] NVRM: Xid (PCI:0000:3b:00): " + LOST]}
    (incident,) = judged(tmp_path, files)
    assert [(one.node, one.device) for one in incident.suspects] == [(node, "0000:3b:00")]


@pytest.mark.parametrize(
    ("said", "kind", "device"),
    [
        ("(FATAL-RT-UNDEFINED-STATE) [ND 2][NC 1] Uncorrectable memory error is detected, metadata: 0x16. Please",
         "gpu_memory_error", "nd2"),
        ("[MLA 5][NC 0] DMA TX engine 0 is in an abort state", "gpu_lost", "nd5"),
        ("NEURON_HW_ERR=DMA_ERROR instance-id=i-05 hostname=ip-172-31-6-2 nd-id=7 nc-id=0 action=x", "gpu_lost", "nd7"),
    ],
)  # fmt: skip
def test_neuron_says_which_device_it_is(tmp_path: Path, said: str, kind: str, device: str) -> None:
    (incident,) = judged(tmp_path, {"train.log": [*steps("09:10:00", 12), said]})
    assert (incident.kind, incident.suspects[0].device) == (kind, device)


@pytest.mark.parametrize(
    "said",
    [
        "INFO TDRV:kbl_model_add [ND 0][NC 0] model loaded",
        "[ND 0][NC 1] 0 uncorrectable memory errors",
        "[MLA 0][NC 0] DMA TX engine 0 reset done",
    ],
)
def test_neuron_that_names_a_device_only_is_no_incident(tmp_path: Path, said: str) -> None:
    assert not judged(tmp_path, {"train.log": [*steps("09:10:00", 12), said]})
