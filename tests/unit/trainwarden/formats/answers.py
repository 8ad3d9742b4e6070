"""What `trainwarden detect --data` answers about files of other tools."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trainwarden.cli.ask.detect_jobs import Asked, jobs_to_judge, judge_folder
from trainwarden.cli.shared.answers import NOT_JUDGED

Suspects = list[tuple[int | None, str | None, str | None]]


def answer(path: Path) -> tuple[str, list[tuple[str, Suspects]]]:
    """The answer, and kind and suspects (rank, node, device) of each incident."""
    (work,), _ = jobs_to_judge(path, Asked(None, None, None, None, want_scores=False), None)
    found = judge_folder(work)
    incidents = [(one.kind, [(who.rank, who.node or None, who.device) for who in one.suspects])
                 for one in found.records]  # fmt: skip
    return found.answer.get("answer", NOT_JUDGED), incidents


def answer_to(folder: Path, files: Mapping[str, str]) -> tuple[str, list[tuple[str, Suspects]]]:
    """The answer to a folder of `files`; to the file itself where it is one."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return answer(folder if len(files) > 1 else folder / next(iter(files)))
