"""Which of the three answers `detect` gives about one job, with the reason and the remedy where nothing was judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from trainwarden.cli.shared.answers import HEALTHY, INCIDENT, NOT_JUDGED, Answer, Blind, worst
from trainwarden.cli.shared.words import counted

MOST_REASONS: Final = 3
MOST_NAMED: Final = 4
MOST_CHARS: Final = 160
NORMAL: Final = "nothing says what is normal"
_REMEDIES: Final = (
    (NORMAL, "name normal rows (--normal-until T), a normal recording (--normal DIR) or models (--models URI)"),
    ("no iterations", "record iterations (docs/data.md)"),
    ("no metrics", "record metrics (docs/data.md)"),
    ("no log lines", "record logs (docs/data.md)"),
)


def judges(detectors: Mapping[str, Any], abstained: Mapping[str, str], *, facts: bool) -> list[str]:
    """The detectors that had something to judge: neither an absent fact nor a clock that ticks is input.

    Parameters
    ----------
    detectors : mapping of str to Detector
    facts : bool
        Whether the recording holds any fact, such as the end of a process.
    """
    found = []
    for name, detector in detectors.items():
        role = detector.role
        idle = role.reads == "events" and not facts
        only_moves = role.reads == "samples" and not role.past  # sees whether values change at all
        if name not in abstained and not idle and not only_moves:
            found.append(name)
    return found


def answered(job: Mapping[str, Any], judged_by: list[str]) -> dict[str, Any]:
    """What is added to a job's object: the answer, who judged, and what was not judged.

    Examples
    --------
    >>> job = {"incidents": [], "abstained": {"lof": "nothing says what is normal: give --normal"}}
    >>> answered(job, [])["answer"]
    'not judged'
    """
    blind = [] if judged_by else _blind(job)
    answer: Answer = INCIDENT if job["incidents"] else HEALTHY if judged_by else NOT_JUDGED
    return {"answer": answer, "judged_by": judged_by, "not_judged": msgspec.to_builtins(blind)}


def answer_of_all(jobs: list[dict[str, Any]]) -> Answer:
    """The answer about all jobs; one that could not be read was not judged."""
    return worst([job.get("answer", NOT_JUDGED) for job in jobs])


def answer_words(job: Mapping[str, Any]) -> str:
    """The answer of a job without an incident, in words."""
    if job.get("answer") == NOT_JUDGED:
        return "NOT JUDGED: " + "; ".join(str(msgspec.convert(one, Blind)) for one in job["not_judged"])
    return f"healthy: no incident in {_watched(job['input'])} by {', '.join(job.get('judged_by', ())) or 'no detector'}"


def _watched(amounts: Mapping[str, Any]) -> str:
    named = (("iterations", "iteration row"), ("metrics_rows", "row of metrics"), ("log_lines", "log line"),
             ("collectives", "collective"), ("nodes", "node"))  # fmt: skip
    parts = [
        counted(number, word, "rows of metrics" if key == "metrics_rows" else None)
        for key, word in named
        if (number := amounts.get(key))
    ]
    span_s = amounts.get("span_s")
    return ", ".join([*parts, *([f"{span_s:,.0f} s"] if span_s else [])]) or "what was read"


def _blind(job: Mapping[str, Any]) -> list[Blind]:
    """The most frequent reasons of abstention, those about input that is there first."""
    reasons = Counter(reason.partition(": give")[0] for reason in job["abstained"].values())
    present = [(one, count) for one, count in reasons.items() if not one.endswith("were recorded")]
    ordered = sorted(present or reasons.items(), key=lambda pair: (not pair[0].startswith(NORMAL), -pair[1]))
    found = [Blind(reason, _remedy(reason)) for reason, _ in ordered[:MOST_REASONS]]
    return found or [Blind("no detector had anything to judge", "record more (docs/data.md)")]


def _remedy(reason: str) -> str:
    return next((remedy for start, remedy in _REMEDIES if reason.startswith(start)), "")


def judged_words(answer: dict[str, Any]) -> list[str]:
    """At most three sentences: what was judged, what was not read, what was assumed.

    Examples
    --------
    >>> judged_words({"input": {"metrics_rows": 8, "entities": 2, "metrics": 3, "span_s": 60.0}, "judged": {
    ...     "files": [{"path": "a.csv", "format": "table", "rows": 8}], "detectors": ["hard_event"],
    ...     "unread": [{"path": "b.bin", "why": "no format is known of it"}], "notes": []}})
    ['judged: a.csv (table, 8 rows): 2 entities, 3 metrics, 60 s', 'not read: b.bin (no format is known of it)']
    """
    judged, found = answer.get("judged"), list[str]()
    if not judged:
        return found
    if judged["files"]:
        found.append(f"judged: {_files(judged['files'])}{_amounts(answer.get('input', {}))}")
    if judged["unread"]:
        found.append(f"not read: {_unread(judged['unread'])}")
    if judged.get("notes"):
        more = len(judged["notes"]) - 2
        shown = "; ".join(note[:MOST_CHARS] for note in judged["notes"][:2])
        found.append(f"assumed: {shown}" + (f"; and {more} more" if more > 0 else ""))
    return found


def _files(files: list[dict[str, Any]]) -> str:
    shown = [f"{one['path']} ({one['format']}, {counted(one['rows'], 'row')})" for one in files[:MOST_NAMED]]
    if len(files) <= MOST_NAMED:
        return ", ".join(shown)
    kinds = Counter(str(one["format"]) for one in files)
    return f"{len(files)} files ({', '.join(f'{count} {kind}' for kind, count in kinds.most_common(MOST_NAMED))})"


def _amounts(amounts: dict[str, Any]) -> str:
    words = []
    for key, word in (("entities", "entity"), ("metrics", "metric"), ("iterations", "iteration"),
                      ("collectives", "collective"), ("log_lines", "log line")):  # fmt: skip
        if count := amounts.get(key):
            words.append("1 entity" if (key, count) == ("entities", 1) else f"{count} entities" if key == "entities"
                         else counted(count, word))  # fmt: skip
    span_s = amounts.get("span_s")
    if span_s:
        words.append(f"{span_s:,.0f} s")
    return f": {', '.join(words)}" if words else ""


def _unread(unread: list[dict[str, Any]]) -> str:
    shown = [f"{one['path']} ({one['why'][:MOST_CHARS]})" for one in unread[:MOST_NAMED]]
    more = len(unread) - MOST_NAMED
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
