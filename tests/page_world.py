"""A world for the page to show: jobs with steps, incidents, votes, actions and log lines, as records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.doubles import ManualClock
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.dashboards.overview.overview import Overview
from trainwarden.protocols import Message
from trainwarden.records import (
    ActionRecord,
    EventRecord,
    HeartbeatRecord,
    IncidentRecord,
    IterationRecord,
    LogRecord,
    MetricsRecord,
    Record,
    Suspect,
    VerdictRecord,
    Vote,
)
from trainwarden.topics import topic_of

Told = tuple[float, str, Record]
"""When it reached the bus, the job, and the record."""
NOW_S = 1_795_000_000.0
BATCH = 8
EVIL = "<script>window.evil=1</script><img src=x onerror=window.evil=1>\"'&"


def noise(number: int) -> float:
    """Between 0 and 1, the same for the same number."""
    return math.modf(math.sin(number * 12.9898) * 43758.5453)[0] % 1.0


def steps(
    job: str, ranks: int, *, now_s: float, lasts_s: float = 1_500.0, step_s: float = 1.6, slow: int | None = None
) -> Iterator[Told]:
    """Steps of `ranks`, the rank `slow` twice as slow in the last third."""
    count = int(lasts_s / step_s)
    for first in range(0, count, BATCH):
        share = first / count
        bad = slow is not None and share > 0.66
        duration_s = step_s * (1.0 + 0.55 * bad + 0.03 * noise(first))
        ends = tuple(now_s - lasts_s + (first + at + 1) * step_s for at in range(BATCH))
        for rank in range(ranks):
            own = 0.6 * step_s * (1.0 + 0.06 * noise(first * 977 + rank)) * (2.0 if bad and rank == slow else 1.0)
            yield (
                ends[-1],
                job,
                IterationRecord(
                    job=job, node=f"node-{rank // 8:02d}", rank=rank, incarnation="a",
                    steps=tuple(range(first + 1, first + BATCH + 1)), end_s=ends, duration_s=(duration_s,) * BATCH,
                    compute_s=(own,) * BATCH, wait_s=(max(0.0, duration_s - own),) * BATCH,
                ),
            )  # fmt: skip
    for node in range(-(-ranks // 8)):
        here = tuple(range(node * 8, min(ranks, node * 8 + 8)))
        yield now_s, job, HeartbeatRecord(job=job, node=f"node-{node:02d}", time_s=now_s, ranks=here)


def verdicts(job: str, *, now_s: float, lasts_s: float = 1_500.0, every_s: float = 3.0) -> Iterator[Told]:
    """Votes of four detectors; two call the slow time anomalous, one abstains."""
    count = int(lasts_s / every_s)
    for number in range(count):
        at_s, share = now_s - lasts_s + (number + 1) * every_s, number / count
        bad = share > 0.67
        high = 0.8 + 0.15 * noise(number)
        votes = {
            "peer_deviation": Vote(
                opinion="anomalous" if bad else "normal", score=high if bad else 0.2 * noise(number + 7),
                reason="rank 5 computes 2.0 times as long as its peers" if bad else "",
            ),
            "change_point": Vote(
                opinion="anomalous" if bad else "normal", score=high - 0.1 if bad else 0.3 * noise(number + 3),
                reason="iterations take 1.55 times as long since step 621" if bad else "",
            ),
            "iteration_threshold": Vote(opinion="normal", score=0.35 * bad + 0.1 * noise(number + 5)),
            "log_window": Vote(opinion="normal", score=0.02),
            "lof": Vote(opinion="abstain", reason="no model is loaded"),
            "pca": Vote(opinion="abstain", reason="no model is loaded"),
        }  # fmt: skip
        verdict = VerdictRecord(
            id=f"v{number}", job=job, time_s=at_s, window_s=60.0, anomalous=bad, reason="r", votes=votes,
            iteration_s=1.6 * (1.55 if bad else 1.0),
        )  # fmt: skip
        yield at_s, job, verdict


def metrics(job: str, ranks: int, *, now_s: float, lasts_s: float = 1_000.0, slow: int | None = None) -> Iterator[Told]:
    """What agents read every 10 s of 8 GPUs a node: the clock of rank `slow` sinks in the last third of 1,500 s."""
    for at in range(int(lasts_s / 10.0)):
        at_s = now_s - lasts_s + 10.0 * (at + 1)
        for node in range(-(-ranks // 8)):
            here = range(node * 8, min(ranks, node * 8 + 8))
            bad = [rank == slow and at_s > now_s - 510.0 for rank in here]
            shake = [noise(at * 131 + rank) for rank in here]
            rows = {
                "gpu_sm_clock_hertz": [
                    (1.1e9 if low else 1.7e9) + 3e7 * one for low, one in zip(bad, shake, strict=True)
                ],
                "gpu_power_watts": [
                    (390.0 if low else 640.0) + 25.0 * one for low, one in zip(bad, shake, strict=True)
                ],
                "gpu_temperature_celsius": [
                    (86.0 if low else 64.0) + 4.0 * one for low, one in zip(bad, shake, strict=True)
                ],
                "gpu_memory_used_bytes": [6.1e10 + 4e8 * one for one in shake],
                "rank_cpu_ratio": [0.9 + 0.1 * one for one in shake],
            }
            yield at_s, job, MetricsRecord(
                job=job, node=f"node-{node:02d}", time_s=at_s, devices=tuple(f"GPU-{rank:04d}" for rank in here),
                names=tuple(rows), values=tuple(tuple(row) for row in rows.values()), ranks=tuple(here),
            )  # fmt: skip
            host = {"host_memory_available_bytes": 1.4e12 - 2e10 * shake[0], "nic_rdma_transmit_bytes": 2.1e10 * at}
            yield at_s, job, MetricsRecord(
                job=job, node=f"node-{node:02d}", time_s=at_s, devices=("mlx5_0",), names=tuple(host),
                values=tuple((value,) for value in host.values()),
            )  # fmt: skip


def incident(name: str, job: str, opened_s: float, *, closed: bool = True, text: str = "") -> IncidentRecord:
    """A slow rank."""
    return IncidentRecord(
        id=name, job=job, kind="slow_compute", severity="sev3", state="closed" if closed else "opened",
        revision=0, opened_at_s=opened_s, updated_at_s=opened_s, onset_s=opened_s - 8.0, onset_step=621,
        opened_step=626, closed_at_s=opened_s + 300.0 if closed else None,
        reason=text or "Rank 5 on node-00 computes 2.0 times as long as its peers, so every iteration takes 1.55 times "
        "as long.",
        suspects=(
            Suspect(score=0.97, reason="computes longest and waits least", rank=5, node="node-00"),
            Suspect(score=0.21, reason="the same node", rank=6, node="node-00"),
        ),
        metrics=("gpu_sm_clock_hertz", "gpu_power_watts"),
        votes={"peer_deviation": 0.93, "change_point": 0.84, "iteration_threshold": 0.45},
        evidence={"healthy_s": 1.6, "slow_s": 2.48, "ratio": 1.55, "ranks": [5]},
    )  # fmt: skip


def proposed(name: str, of: IncidentRecord, at_s: float, *, why: str = "") -> ActionRecord:
    """A re-split of micro-batches that waits for a word."""
    return ActionRecord(
        id=name, incident=of.id, job=of.job, kind="rebalance", outcome="proposed", at_s=at_s,
        why=why or "Rank 5 is slow for 48 s: its share goes from 6 micro-batches to 3; iterations then take 1.71 s.",
        plan={"micro_batches": [6, 7, 7, 6, 6, 3, 6, 7], "before": [6] * 8, "predicted_s": 1.71},
        plan_digest="5f0c9a1be2d34477",
    )  # fmt: skip


def logs(job: str, at_s: float, text: str = "") -> Iterator[Told]:
    """Lines of two ranks; one of them names a cause."""
    for rank in (4, 5):
        said = [f"step {600 + number} loss {2.4 - number / 500:.3f}" for number in range(40)]
        if rank == 5:
            said[25] = f"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. {text}"
        times = tuple(at_s - 30.0 + number for number in range(len(said)))
        yield at_s + 10.0, job, LogRecord(
            job=job, node="node-00", source=f"rank-{rank}.log", rank=rank, lines=tuple(said), times_s=times,
            ends=tuple(100 * (number + 1) for number in range(len(said))),
        )  # fmt: skip


def world(now_s: float = NOW_S, *, ranks: int = 32, job: str = "llama-70b") -> list[Told]:
    """One job that was slow and whose remedy waits, one that is well, one that has ended."""
    slow = incident("llama-70b/slow_compute/1", job, now_s - 490.0, closed=False)
    told = [*steps(job, ranks, now_s=now_s, slow=5), *verdicts(job, now_s=now_s)]
    told += [(slow.opened_at_s, job, slow), (now_s - 440.0, job, proposed("rebalance/1", slow, now_s - 440.0))]
    crash = IncidentRecord(
        id="llama-70b/crash/0", job=job, kind="crash", severity="sev2", state="closed", revision=1,
        opened_at_s=now_s - 1_320.0, updated_at_s=now_s - 1_300.0, closed_at_s=now_s - 1_300.0,
        onset_s=now_s - 1_320.5, onset_step=112, opened_step=112, reason="Rank 5 on node-00 was killed by signal 9.",
        suspects=(Suspect(score=1.0, reason="the first to die", rank=5, node="node-00"),), votes={"hard_event": 1.0},
    )  # fmt: skip
    told.append((crash.opened_at_s, job, crash))
    done = ActionRecord(
        id="restart/0", incident=crash.id, job=job, kind="restart_process", outcome="done", at_s=now_s - 1_318.0,
        finished_at_s=now_s - 1_305.0, why="Rank 5 was killed by signal 9.", plan={"ranks": "all"}, by="auto",
    )  # fmt: skip
    told.append((now_s - 1_305.0, job, done))
    told += [*metrics(job, ranks, now_s=now_s, slow=5), *logs(job, slow.opened_at_s)]
    for name, lasts_s in (("mixtral-8x22b", 900.0), ("vit-sweep.17", 600.0)):
        told += [*steps(name, 8, now_s=now_s, lasts_s=lasts_s, step_s=2.1)]
    start = EventRecord(id="e0", job=job, node="node-00", time_s=now_s - 1_499.0, kind="job_start", message="32 ranks")
    told.append((start.time_s, job, start))
    end = EventRecord(
        id="e1", job="vit-sweep.17", node="node-00", time_s=now_s, kind="job_end", fields={"exit_code": 0}
    )
    told.append((now_s, end.job, end))
    return sorted(told, key=lambda one: one[0])


def hostile(now_s: float) -> list[Told]:
    """A job whose every word is markup."""
    bad = incident(f"i/{EVIL}", EVIL, now_s - 60.0, closed=False, text=EVIL)
    suspect = Suspect(score=1.0, reason=EVIL, rank=1, node=EVIL, device=EVIL)
    told: list[Told] = [*steps(EVIL, 2, now_s=now_s, lasts_s=120.0)]
    told += [(one.time_s, EVIL, _evil_vote(one)) for _, _, one in verdicts(EVIL, now_s=now_s, lasts_s=60.0)]  # type: ignore[attr-defined]
    record = IncidentRecord(
        **{name: getattr(bad, name) for name in bad.__struct_fields__ if name not in ("suspects", "evidence")},
        suspects=(suspect,), evidence={EVIL: EVIL, "deep": {"er": [EVIL]}},
    )  # fmt: skip
    told.append((bad.opened_at_s, EVIL, record))
    told.append((now_s - 50.0, EVIL, proposed(f"a/{EVIL}", record, now_s - 50.0, why=EVIL)))
    told += logs(EVIL, bad.opened_at_s, EVIL)
    event = EventRecord(
        id="e", job=EVIL, node=EVIL, time_s=now_s - 70.0, kind=EVIL[:60], message=EVIL, fields={EVIL: 1}
    )
    told.append((event.time_s, EVIL, event))
    return sorted(told, key=lambda one: one[0])


def _evil_vote(verdict: VerdictRecord) -> VerdictRecord:
    votes = {EVIL: Vote(opinion="anomalous", score=1.0, reason=EVIL), "lof": Vote(opinion="abstain", reason=EVIL)}
    return VerdictRecord(
        id=verdict.id, job=verdict.job, time_s=verdict.time_s, window_s=60.0, anomalous=True, reason=EVIL, votes=votes
    )


def overview_of(told: Iterable[Told], now_s: float = NOW_S) -> Overview:
    """An overview that has heard it all."""
    overview = Overview(ManualClock(now_s))
    messages = [
        Message(topic_of(record).name, 0, at, time_s, job, record) for at, (time_s, job, record) in enumerate(told)
    ]
    overview.handle(messages)
    overview.tick(now_s)
    return overview


def publish(path: Path, told: Iterable[Told]) -> str:
    """The address of an embedded bus that holds it, each record as written at its time."""
    clock = ManualClock(0.0)
    bus = EmbeddedBus(str(path), clock=clock)
    flushed_s = 0.0
    for time_s, job, record in told:
        if time_s - flushed_s > 1.0:
            bus.flush()
            clock.sleep(time_s - clock.now_s())
            flushed_s = time_s
        bus.publish(topic_of(record), job, record)
    bus.flush()
    bus.close()
    return f"embedded:{path}"
