"""How well logs are understood: real healthy job logs, real excerpts of failures, against the keyword rule.

``rows()`` gives the lines of the table ``logs`` of ``trainwarden bench detection``. The mixture of healthy windows with
failures is constructed: every excerpt is put once into a window of a healthy log. Run alone:
``python -m tests.benchmarks.detection.logs``.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.places import shared_data
from trainwarden.detectors.job.state import JobState
from trainwarden.detectors.logs.log_window import LogWindow
from trainwarden.detectors.logs.rules import LogRules, load_xids
from trainwarden.detectors.logs.template_burst import TemplateBurst
from trainwarden.records import LogRecord

WINDOW_LINES = 100
LINES_PER_S = 100.0  # pace of lines without time stamps; the rules do not depend on it, bursts do
KEYWORDS = re.compile(r"error|fail|exception|fatal|abort|timed out|timeout|killed|traceback|warn", re.IGNORECASE)
_RANK = re.compile(r"^ *([0-9]{1,6}): ")
_XID = re.compile(r"Xid \(PCI:[0-9a-fA-F:.]{1,32}\): ([0-9]{1,4})")
# Our reading of each labelled kind of excerpt: the classes that are right answers.
CLASSES = {
    "gpu_ecc": "H", "gpu_xid": "H", "cuda_oom": "A", "cuda_error": "H", "nccl_net": "CN", "nccl_timeout": "C",
    "scheduler": "S", "storage": "S", "host_shm_or_bus": "A",
}  # fmt: skip
FILES = {
    "gpud_dmesg_nccl_segfault.log": "A", "gpud_dmesg_xid119.log": "H", "gpud_dmesg_xid13_oom.log": "AS",
    "gpud_fabricmanager.log": "H", "gpud_kmsg_2_peermem.log": "H",
}  # fmt: skip
BENIGN_FILES = ("gpud_kmsg_1.log",)


@dataclass(frozen=True)
class Excerpt:
    """A quoted failure and the classes that are right for it."""

    name: str
    classes: str
    lines: tuple[str, ...]


def shared() -> Path | None:
    """The folder of shared data, if the logs are there."""
    data = shared_data()
    return data.parent if data and (data / "smc_train_log").is_dir() else None


def healthy(data: Path) -> dict[str, list[str]]:
    """Job logs by name, each up to the line at which somebody cancelled it."""
    out = {}
    for path in sorted([*data.glob("bigscience_train_logs/*.gz"), *data.glob("smc_train_log/*.gz")]):
        lines = gzip.decompress(path.read_bytes()).decode(errors="replace").split("\n")
        ends = [place for place, line in enumerate(lines) if line.startswith("slurmstepd: error")]
        out[path.name.partition(".")[0]] = lines[: ends[0]] if ends else lines
    return out


def excerpts(data: Path) -> list[Excerpt]:
    """Quoted failures."""
    folder, out = data / "cluster_log_excerpts", []
    for name, classes in FILES.items():
        lines = (folder / name).read_text(errors="replace").split("\n")
        out.append(Excerpt(name, classes, tuple(lines)))
    for name in ("bigscience_blocks.jsonl", "ml_engineering_blocks.jsonl"):
        for text in (folder / name).read_text().splitlines():
            row = json.loads(text)
            label = f"{name}:{row['line']}"
            out.append(Excerpt(label, CLASSES.get(row["klass"], ""), tuple(row["text"].split("\n"))))
    return [one for one in out if one.classes]


def understood(rules: LogRules) -> Callable[[str], str | None]:
    """The class that the rules give a line that names a fault, root or cascade; None for all others."""
    xids = load_xids()

    def judge(line: str) -> str | None:
        rule = rules.match(line)
        if rule is None or rule.id == "generic.error" or rule.role in {"benign", "phase"}:
            return None
        found = _XID.search(line)
        if found is not None:
            xid = xids.get(int(found.group(1)))
            return "A" if xid is not None and xid.class_ == "APP" else "H"
        return rule.class_ if rule.role in {"root", "cascade"} or rule.class_ in {"H", "N"} else None

    return judge


def alarms(lines: Sequence[str]) -> dict[str, int]:
    """How often each log detector calls a log of `lines` anomalous (episodes), and findings that name a cause."""
    votes = {"log_window": LogWindow(LogWindow.Config()), "template_burst": TemplateBurst(TemplateBurst.Config())}
    state, counts, before = JobState("bench"), dict.fromkeys(votes, 0), dict.fromkeys(votes, "normal")
    step = int(LINES_PER_S / 2)
    for first in range(0, len(lines), step):
        batch = lines[first : first + step]
        for rank, chosen in _by_rank(batch, first).items():
            state.feed(_record(rank, chosen))
        window = state.window(1_000_000.0 + (first + step) / LINES_PER_S)
        for name, detector in votes.items():
            detector.update(window)
            opinion = detector.score(window).opinion
            counts[name] += opinion == "anomalous" and before[name] != "anomalous"
            before[name] = opinion
    findings = votes["log_window"].findings  # type: ignore[attr-defined]
    counts["findings"] = sum(one.role in {"root", "cascade"} for one in findings)
    return counts


def _by_rank(batch: Sequence[str], first: int) -> dict[int | None, list[tuple[int, str]]]:
    out: dict[int | None, list[tuple[int, str]]] = {}
    for place, line in enumerate(batch, first + 1):
        found = _RANK.match(line)
        out.setdefault(int(found.group(1)) if found else None, []).append((place, line))
    return out


def _record(rank: int | None, lines: list[tuple[int, str]]) -> LogRecord:
    return LogRecord(
        job="bench", node="node", source=f"log-{rank}", rank=rank, ends=tuple(place for place, _ in lines),
        lines=tuple(line[:8000] for _, line in lines),
        times_s=tuple(1_000_000.0 + place / LINES_PER_S for place, _ in lines),
    )  # fmt: skip


def windows(data: Path, seed: int = 0) -> list[tuple[list[str], bool]]:
    """Windows of healthy logs, some with an excerpt put in: lines, and whether there is one."""
    draw = random.Random(seed)
    plain = []
    for lines in healthy(data).values():
        plain += [lines[first : first + WINDOW_LINES] for first in range(0, len(lines), WINDOW_LINES)]
    out = [(lines, False) for lines in plain]
    for one in excerpts(data):
        into = list(draw.choice(plain))
        place = draw.randrange(len(into) + 1)
        out.append(([*into[:place], *one.lines, *into[place:]], True))
    return out


def rows() -> list[dict[str, Any]]:
    """Rows of the table; a single row with a reason where the shared data is absent."""
    folder = shared()
    if folder is None:
        return [{"table": "logs", "row": "all", "metric": "skipped", "value": None, "unit": "",
                 "reason": "no shared data: set TRAINWARDEN_SHARED"}]  # fmt: skip
    data = folder / "data"
    judge = understood(LogRules())
    methods: dict[str, Callable[[str], bool]] = {
        "rules": lambda line: judge(line) is not None,
        "keyword_rule": lambda line: KEYWORDS.search(line) is not None,
        "always_alert": lambda line: True,
    }
    out = []
    mixed = windows(data)
    logs = healthy(data)
    total = sum(len(lines) for lines in logs.values())
    quiet = [line for name in BENIGN_FILES for line in (data / "cluster_log_excerpts" / name).read_text().split("\n")]
    for name, alert in methods.items():
        out += _scores(name, alert, mixed)
        false = sum(alert(line) for lines in logs.values() for line in lines)
        out.append(_row(name, "false lines on healthy logs", false, f"of {total}"))
        out.append(_row(name, "false lines on benign kernel log", sum(map(alert, quiet)), f"of {len(quiet)}"))
    hours = total / LINES_PER_S / 3600.0
    sums = {"log_window": 0, "template_burst": 0, "findings": 0}
    for lines in logs.values():
        for name, number in alarms(lines).items():
            sums[name] += number
    for name, number in sums.items():
        out.append(_row(name, "false on healthy logs per hour", number / hours, f"1/h at {LINES_PER_S:g} lines/s"))
    return out + _class_recall(judge, excerpts(data))


def _scores(name: str, alert: Callable[[str], bool], mixed: list[tuple[list[str], bool]]) -> list[dict[str, Any]]:
    hit = false = missed = 0
    for lines, faulty in mixed:
        said = any(map(alert, lines))
        hit, false, missed = hit + (said and faulty), false + (said and not faulty), missed + (faulty and not said)
    precision = hit / (hit + false) if hit + false else 0.0
    recall = hit / (hit + missed) if hit + missed else 0.0
    f1 = 2 * precision * recall / (precision + recall) if precision + recall else 0.0
    return [
        _row(name, "window precision", precision, f"{hit}/{hit + false}"),
        _row(name, "window recall", recall, f"{hit}/{hit + missed}"),
        _row(name, "window F1", f1, f"windows of {WINDOW_LINES} lines"),
    ]


def _class_recall(judge: Callable[[str], str | None], quoted: list[Excerpt]) -> list[dict[str, Any]]:
    """Share of excerpts of each class in which some line is given that class."""
    out = []
    for class_ in "AHNSC":
        wanted = [one for one in quoted if class_ in one.classes and (len(one.classes) == 1 or "N" not in one.classes)]
        wanted = [one for one in quoted if one.classes == "CN"] if class_ == "N" else wanted
        right = sum(any(judge(line) in set(one.classes if class_ == "N" else class_) for line in one.lines)
                    for one in wanted)  # fmt: skip
        if wanted:
            label = "C or N" if class_ == "N" else class_
            out.append(
                _row("rules", f"excerpts recognised, class {label}", right / len(wanted), f"{right}/{len(wanted)}")
            )
    return out


def _row(row: str, metric: str, value: float, unit: str) -> dict[str, Any]:
    return {"table": "logs", "row": row, "metric": metric, "value": round(float(value), 4), "unit": unit}


if __name__ == "__main__":
    for one in rows():
        print(f"{one['row']:15} {one['metric']:40} {one['value']!s:>9} {one['unit']}")
