"""Log files as people have them, judged as `trainwarden detect` judges them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trainwarden.cli.ask.detect_jobs import Asked, jobs_to_judge, judge_folder
from trainwarden.cli.shared.answers import NOT_JUDGED
from trainwarden.detectors.recorded.facts import read_facts
from trainwarden.detectors.recorded.replay import replay
from trainwarden.formats.reading import read_job
from trainwarden.records import IncidentRecord
from trainwarden.settings import DetectionSettings

MEGATRON = (
    " [2026-11-04 {clock}] iteration {step:8d}/    9000 | consumed samples: {step}00 | elapsed time per iteration (ms): "  # noqa: E501
    "5000.0 | learning rate: 3.0E-04 | global batch size:   256 | lm loss: 2.9{step:03d}00E+00 | grad norm: 0.40 |"
)
TIMED_OUT = (
    "[rank{rank}]:[E1104 {clock}.520111 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600010 "
    "milliseconds before timing out."
)


def steps(clock: str, number: int) -> list[str]:
    """Step lines of five seconds each, the last of them at `clock`."""
    hours, minutes, seconds = (int(part) for part in clock.split(":"))
    end_s = 3600 * hours + 60 * minutes + seconds
    return [MEGATRON.format(clock=_clock(end_s - 5 * (number - 1 - i)), step=100 + i) for i in range(number)]


def _clock(time_s: int) -> str:
    return f"{time_s // 3600:02d}:{time_s % 3600 // 60:02d}:{time_s % 60:02d}"


def raised(rank: int, exception: str, prefix: str = "[rank{rank}]: ") -> list[str]:
    """A traceback of one rank, each line behind its prefix."""
    lines = [
        "Traceback (most recent call last):",
        '  File "/srv/job/train.py", line 7, in <module>',
        "    run()",
        exception,
    ]
    return [prefix.format(rank=rank) + line for line in lines]


def judged(folder: Path, files: Mapping[str, list[str]]) -> list[IncidentRecord]:
    """The incidents of a job that has left these files."""
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    job = read_job(folder)
    return replay(job, DetectionSettings(), facts=read_facts(job)).incidents


def answered(folder: Path, name: str, lines: list[str]) -> tuple[str, list[IncidentRecord]]:
    """What `trainwarden detect --data` answers about a file of this name, and its incidents."""
    data = folder / name
    data.write_text("".join(f"{line}\n" for line in lines))
    (work,), _ = jobs_to_judge(data, Asked(None, None, None, None, want_scores=False), None)
    found = judge_folder(work)
    return found.answer.get("answer", NOT_JUDGED), found.records


def only(folder: Path, *lines: str) -> tuple[str, int | None]:
    """Kind and rank of the only incident of a job with one log."""
    incidents = judged(folder, {"logs.txt": list(lines)})
    assert len(incidents) == 1, [(one.kind, one.reason) for one in incidents]
    return incidents[0].kind, incidents[0].suspects[0].rank if incidents[0].suspects else None
