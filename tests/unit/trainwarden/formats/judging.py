"""What `detect` answers about a file or folder."""

from __future__ import annotations

from pathlib import Path

from trainwarden.cli.ask.detect_jobs import Asked, jobs_to_judge, judge_folder

Told = tuple[str, str | None, str | None]
"""Kind of an incident, and node and device of its first suspect."""


def judged(path: Path) -> tuple[str, list[Told]]:
    """The answer, and the incidents."""
    (work,), _ = jobs_to_judge(path, Asked(None, None, None, None, want_scores=False), None)
    found = judge_folder(work)
    records = [(one.kind, one.suspects[0].node, one.suspects[0].device) for one in found.records]
    return str(found.answer.get("answer", found.answer.get("error"))), records


def judged_text(folder: Path, text: str, name: str = "out.txt") -> tuple[str, list[Told]]:
    """The answer about a file called `name` that holds `text`."""
    (folder / name).write_text(text, encoding="utf-8")
    return judged(folder / name)


def labelled(parts: dict[str, str]) -> str:
    """Texts of nodes as pdsh prints them."""
    return "".join(f"{node}: {line}\n" for node, text in parts.items() for line in text.rstrip("\n").split("\n"))


def headed(parts: dict[str, str], heading: str = "=== {} ===") -> str:
    """Texts of nodes below headings."""
    return "".join(f"{heading.format(node)}\n{text}" for node, text in parts.items())


def filed(folder: Path, parts: dict[str, str], name: str = "{}.txt") -> Path:
    """A folder with a file of each node."""
    folder.mkdir()
    for node, text in parts.items():
        path = folder / name.format(node)
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


HEADINGS = ("=== {} ===", "==> /logs/{}.txt <==", "{} | CHANGED | rc=0 >>", "-----\n{}\n-----", "### host: {} ###")
