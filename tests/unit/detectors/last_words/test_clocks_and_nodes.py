"""Clocks of other languages and of twelve hours, and the nodes that schedulers and Kubernetes name."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.unit.detectors.last_words.judged import judged
from trainwarden.recorded.log_stamps import Stamps

NEAR_S = datetime(2025, 3, 1, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "stamp",
    [
        "[四 3月 20 21:01:25 2025]", "[木  3月 20 21:01:25 2025]", "[목  3월 20 21:01:25 2025]",
        "[Do Mär 20 21:01:25 2025]", "[jeu. mars 20 21:01:25 2025]", "[jue mar 20 21:01:25 2025]",
        "[qui mar 20 21:01:25 2025]", "[gio mar 20 21:01:25 2025]", "[Чт мар 20 21:01:25 2025]",
        "mars 20 21:01:25", "3月 20 21:01:25", "jeu. 20 mars 2025 21:01:25", "20 Mar 2025 21:01:25",
        "[03/20/25 09:01:25 PM]", "3/20/2025, 9:01:25 PM", "03/20/2025 21:01:25", "20.03.2025 21:01:25",
        "2025-03-20 09:01:25 PM", "03-20 21:01:25", "[03/20 21:01:25 d2.utils.events]:", "time=2025-03-20T21:01:25Z",
    ],
)  # fmt: skip
def test_a_stamp_is_read_in_whatever_form(stamp: str) -> None:
    found = Stamps(NEAR_S).read(f"{stamp} words")
    assert datetime.fromtimestamp(found.time_s, UTC) == datetime(2025, 3, 20, 21, 1, 25, tzinfo=UTC)


@pytest.mark.parametrize(
    "text", ["Training 20 12:00:00 x", "step 3 04:00:00", "12/20 [00:05<00:09]", "04:05:51 left", "31-31 04:05:51 x"]
)
def test_what_only_looks_like_one_is_none(text: str) -> None:
    assert not Stamps(NEAR_S).read(text).end


def test_a_day_without_the_first_place_is_known_from_the_stamp_before() -> None:
    stamps = Stamps(datetime(2025, 2, 3, tzinfo=UTC).timestamp())
    assert datetime.fromtimestamp(stamps.read("3/2/2025 10:00:00 x").time_s, UTC).month == 2
    assert datetime.fromtimestamp(stamps.read("04:00:00 AM x").time_s, UTC).day == 3


def test_the_clock_of_twelve_hours_alone_is_of_the_day_of_the_other_files(tmp_path: Path) -> None:
    steps = [f"11:{minute:02d}:00 PM INFO step {minute} | loss 2.{minute:02d}" for minute in range(30)]
    kernel = ["May 18 23:29:30 n9 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=7, name=python, GPU has fallen off."]
    died = ["[rank2]: RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution"]
    incidents = judged(tmp_path, {"train.log": [*steps, *died], "journal.txt": kernel})
    assert {one.suspects[0].device for one in incidents if one.kind == "gpu_lost"} == {"0000:3b:00"}
    onsets = [one.onset_s or 0.0 for one in incidents]
    assert max(onsets) - min(onsets) < 60.0


def test_what_is_closed_because_of_a_fatal_link_accuses_no_other_gpu(tmp_path: Path) -> None:
    xid = "May 18 04:05:51 n9 kernel: NVRM: Xid (PCI:0000:{}:00): {}"
    lines = [
        xid.format("dc", "149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x0)"),
        xid.format("ed", "145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0)"),
        xid.format("dc", "45, pid=70, name=python3, Ch 00000001 caused by previous Xid 149"),
        xid.format("ed", "45, pid=72, name=python3, Ch 0000000c caused by previous Xid 145"),
        xid.format("ba", "45, pid=69, name=python3, Ch 00000002 caused by previous Xid 145"),
    ]
    (incident,) = judged(tmp_path, {"journal.txt": lines})
    assert [one.device for one in incident.suspects] == ["0000:dc:00"]


def test_a_card_with_an_error_and_the_hang_that_its_runtime_tells_of_are_one(tmp_path: Path) -> None:
    kernel = [
        "[Thu Nov 21 03:18:58 2024] amdgpu 0000:e6:00.0: uncorrectable hardware error(ERREVENT_ATHUB_INTERRUPT)",
        "[Thu Nov 21 03:18:58 2024] amdgpu 0000:e6:00.0: amdgpu: GPU reset begin!",
    ]
    said = ["2024-11-21 03:18:50 step 7 loss 2.0",
            "2024-11-21 03:19:09 HW Exception by GPU node-9 (Agent handle: 0x55) reason :GPU Hang"]  # fmt: skip
    (incident,) = judged(tmp_path, {"dmesg.txt": kernel, "train.log": said})
    assert (incident.kind, incident.suspects[0].device) == ("gpu_memory_error", "0000:e6:00.0")


def test_the_kernels_killed_process_has_the_rank_that_its_launcher_ends(tmp_path: Path) -> None:
    kernel = [
        "[四 3月 20 21:01:25 2025] python3 invoked oom-killer: gfp_mask=0x6200ca, order=0, oom_score_adj=0",
        "[四 3月 20 21:01:25 2025] Out of memory: Killed process 7002 (python3) total-vm:1kB",
    ]
    launch = "[2025-03-20 21:01:{},201] [INFO] [launch.py:318:sigkill_handler] "
    train = [*(launch.format(29) + f"Killing subprocess {pid}" for pid in (7000, 7001, 7002)),
             launch.format(30) + "['python3', '-u', 'a.py', '--local_rank=2'] exits with return code = -9"]  # fmt: skip
    (incident,) = judged(tmp_path, {"dmesg.txt": kernel, "train.log": train})
    assert (incident.kind, incident.suspects[0].rank) == ("out_of_memory", 2)
    assert incident.onset_s == datetime(2025, 3, 20, 21, 1, 25, tzinfo=UTC).timestamp()


STEPS = [f"[2026-01-13 22:00:{second:02d}] step {second} loss 2.5" for second in range(0, 50, 5)]


@pytest.mark.parametrize(
    "said",
    [
        "error: Nodes n03 not responding, setting DOWN", "Killing JobId=48 on failed node n03",
        "requeue job JobId=48 due to failure of node n03",
        "Batch JobId=48 missing from batch node n03 (not found BatchStartTime after startup)",
    ],
)  # fmt: skip
def test_the_controller_of_slurm_names_the_node_and_a_steps_first_node_is_none(tmp_path: Path, said: str) -> None:
    step = "slurmstepd: error: *** STEP 48.0 ON n01 CANCELLED AT 2026-01-13T22:01:12 DUE TO NODE FAILURE, SEE LOG ***"
    controller = [
        "[2026-01-13T21:59:40.509] sched: Allocate JobId=48",
        f"[2026-01-13T22:01:12] {said}",
    ]
    (incident,) = judged(tmp_path, {"slurm-48.out": [*STEPS, step], "slurmctld.log": controller})
    assert incident.kind == "node_lost"
    assert {one.node for one in incident.suspects} == {"n03"}


def test_an_evicted_pods_node_and_time_are_known_by_its_start_and_the_ages_of_its_events(tmp_path: Path) -> None:
    low = "The node was low on resource: ephemeral-storage. Threshold quantity: 10, available: 9Ki."
    described = [
        "Name:             job-worker-2", "Node:             pool-1-77ad/",
        "Start Time:       Tue, 13 Jan 2026 21:50:00 +0000", "Status:           Failed", "Reason:           Evicted",
        f"Message:          {low}", "Events:", "  Type     Reason     Age    From     Message",
        "  Normal   Scheduled  12m    default-scheduler  Successfully assigned x/job-worker-2 to pool-1-77ad",
        f"  Warning  Evicted    65s    kubelet  {low}",
    ]  # fmt: skip
    (incident,) = judged(tmp_path, {"describe.txt": described, "train.log": STEPS})
    assert (incident.kind, incident.suspects[0].node) == ("storage", "pool-1-77ad")
    assert incident.onset_s == datetime(2026, 1, 13, 22, 0, 55, tzinfo=UTC).timestamp()


def test_a_node_that_is_not_ready_and_the_heartbeat_of_its_task_are_one(tmp_path: Path) -> None:
    events = [
        "LAST SEEN   TYPE      REASON          OBJECT         MESSAGE",
        "44s         Normal    NodeNotReady    node/pool-37   Node pool-37 status is now: NodeNotReady",
        "44m         Normal    Scheduled       pod/w-37       Successfully assigned ml/w-37 to pool-37",
    ]
    lost = "2026-01-13 22:01:30.1: E UNAVAILABLE: Task /job:jax_worker/replica:0/task:37 heartbeat timeout."
    steps = [line for one in STEPS for line in (one, one, one)]
    (incident,) = judged(tmp_path, {"events.txt": events, "train.log": [*steps, lost]})
    assert (incident.kind, {one.node for one in incident.suspects}) == ("node_lost", {"pool-37"})
    assert incident.onset_s == pytest.approx(datetime(2026, 1, 13, 22, 0, 46, tzinfo=UTC).timestamp(), abs=1.0)


def test_events_of_a_healthy_job_are_healthy(tmp_path: Path) -> None:
    events = ["LAST SEEN   TYPE      REASON      OBJECT      MESSAGE",
              "61s         Normal    Pulled      pod/w-37    Container image already present on machine",
              "44m         Normal    Scheduled   pod/w-37    Successfully assigned ml/w-37 to pool-37"]  # fmt: skip
    assert judged(tmp_path, {"events.txt": events, "train.log": STEPS}) == []


def test_a_node_that_answers_again_is_not_lost(tmp_path: Path) -> None:
    steps = [
        f"[2026-01-13 22:{at // 60:02d}:{at % 60:02d}] step {at // 5 + 1} loss 2.5 dt: 5s" for at in range(0, 600, 5)
    ]
    controller = [
        "[2026-01-13T22:05:12.118] error: Nodes n03 not responding",
        "[2026-01-13T22:05:22.1] Node n03 now responding",
    ]
    assert judged(tmp_path, {"train.log": steps, "slurmctld.log": controller}) == []
    (incident,) = judged(tmp_path, {"train.log": steps[:40], "slurmctld.log": controller[:1]})
    assert (incident.kind, incident.suspects[0].node) == ("node_lost", "n03")
