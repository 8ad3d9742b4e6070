"""What a recording was taken for, in the few lines that people read beside the answer."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from trainwarden.cli.shared.formatting import counted, moment

NAMED: Final = 4
CHARS: Final = 160
# Findings in logs that say who stopped a job that did not fail.
STOPPED: Final = {
    "slurm.time_limit": "its time limit",
    "slurm.cancelled": "its scheduler or a person",
    "user.signal": "a signal",
}


def judged_words(answer: dict[str, Any]) -> list[str]:
    """At most four sentences: what stopped the job, what was judged, what was not read, what was assumed.

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
    stops = [one for one in answer.get("log_findings", ()) if one["rule"] in STOPPED]
    if stops and not answer.get("incidents"):
        first = stops[0]
        where = f"line {first['line_number']} of {first['file']}"
        found.append(f"{STOPPED[first['rule']]} stopped the job at {moment(first['time_s'])} ({where})")
    if judged["files"]:
        found.append(f"judged: {_files(judged['files'])}{_amounts(answer.get('input', {}))}")
    if judged["unread"]:
        found.append(f"not read: {_unread(judged['unread'])}")
    if judged.get("notes"):
        more = len(judged["notes"]) - 2
        shown = "; ".join(note[:CHARS] for note in judged["notes"][:2])
        found.append(f"assumed: {shown}" + (f"; and {more} more" if more > 0 else ""))
    return found


def _files(files: list[dict[str, Any]]) -> str:
    shown = [f"{one['path']} ({one['format']}, {counted(one['rows'], 'row')})" for one in files[:NAMED]]
    if len(files) <= NAMED:
        return ", ".join(shown)
    kinds = Counter(str(one["format"]) for one in files)
    return f"{len(files)} files ({', '.join(f'{count} {kind}' for kind, count in kinds.most_common(NAMED))})"


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
    shown = [f"{one['path']} ({one['why'][:CHARS]})" for one in unread[:NAMED]]
    more = len(unread) - NAMED
    return "; ".join(shown) + (f"; and {more} more" if more > 0 else "")
