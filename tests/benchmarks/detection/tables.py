"""Tables of rows (dicts): aligned text for a terminal, Markdown for a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

Row = Mapping[str, Any]

TITLES: Final = {
    "metrics": "Anomalies in server metrics (methods: one pass, no point adjustment; figures of the report half)",
    "changes": "Change points of iteration time (report half; synthetic = fail-slows injected into real healthy noise)",
    "peers": "Who is slow, across ranks",
    "logs": "Logs (failures put into windows of healthy logs: constructed)",
    "mixed, constructed": "The vote on mixed streams (CONSTRUCTED: real background, one real anomaly put in)",
}
COLUMNS: Final = {
    "metrics": (
        "row", "weight", "vote_weight", "beats_plain", "vus_pr", "vus_pr_ci", "auprc", "auprc_ci", "recall_at_0.1",
        "recall_at_0.5", "recall_at_1", "precision", "precision_ci", "recall", "recall_ci", "f1", "f1_ci",
        "false_per_day", "false_per_day_ci", "delay_median_samples", "delay_median_minutes", "blamed_top3",
        "blamed_top3_ci",
    ),
    "changes": (
        "row", "jobs", "changes", "job_accuracy", "job_accuracy_ci", "recall", "precision", "fpr", "fnr", "false",
        "false_lasting", "false_per_1000", "false_per_1000_ci", "delay_median", "delay_p90", "after_passing_median",
        "after_passing_p90", "relief_found", "relief_missed", "ratio_error_median", "offline",
    ),
    "peers": (
        "row", "cases", "recall", "recall_interval", "precision", "precision_interval", "top_1", "top_1_interval",
        "top_k", "delay_rows_median", "onset_error_rows_median", "ratio_error_median", "false", "false_per_rank_hour",
    ),
    "logs": ("row", "metric", "value", "unit"),
    "mixed, constructed": (
        "row", "weight", "vote_weight", "events", "found", "false", "recall", "recall_ci", "precision", "precision_ci",
        "f1", "f1_ci", "false_per_hour", "delay_median_s", "right_kind",
    ),
}  # fmt: skip
NOTES: Final = {
    "metrics": (
        "weight: in the vote's score; vote_weight: in the rule that opens incidents, which needs 2 votes. beats_plain: "
        "higher VUS-PR than every plain baseline here; one that does not should count little or not at all. [a, b]: "
        "95 % bootstrap interval over machines. "
        "precision, recall, f1 of mere scores: at the threshold that gave 0.5 false alarms per machine-day on the "
        "choosing half; incidents: as the product opens them, nothing tuned; incidents_transom: by the rule of that "
        "paper. models_...: the trained models' votes without all other detectors, by both rules, by weights measured "
        "on the choosing half (models_measured), and by those of the settings with one left out."
    ),
    "changes": "Job accuracy alone means nothing where changes are rare: see always_off. [a, b]: 95 % over runs.",
    "mixed, constructed": (
        "No such job was ever recorded as a whole. lof and zlength have no vote, so leaving them out changes nothing."
    ),
}
_INTERVALS: Final = ("_ci", "_interval")


def text(rows: Sequence[Row]) -> str:
    """All tables, columns aligned.

    Examples
    --------
    >>> print(text([{"table": "logs", "row": "rules", "metric": "F1", "value": 1.0, "unit": ""}]).splitlines()[-1])
    rules  F1      1
    """
    parts = []
    for title, note, heads, lines in _tables(rows):
        widths = [max(len(line[place]) for line in (heads, *lines)) for place in range(len(heads))]
        aligned = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in (heads, *lines)
        ]
        parts.append("\n".join([title, *aligned, *([f"({note})"] if note else [])]))
    return "\n\n".join(parts)


def markdown(rows: Sequence[Row]) -> str:
    """All tables in Markdown."""
    parts = []
    for title, note, heads, lines in _tables(rows):
        body = ["| " + " | ".join(cell.replace("|", "/") or " " for cell in line) + " |" for line in lines]
        rule = "| " + " | ".join("---" for _ in heads) + " |"
        parts.append("\n".join([f"## {title}", "", "| " + " | ".join(heads) + " |", rule, *body]))
        if note:
            parts.append(note)
    return "\n\n".join(parts) + "\n"


def _tables(rows: Sequence[Row]) -> list[tuple[str, str, list[str], list[list[str]]]]:
    """Title, note, heads and cells of each table and data set; columns that are empty throughout are left out."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((str(row["table"]), str(row.get("set", ""))), []).append(row)
    out = []
    for (table, dataset), members in groups.items():
        known = COLUMNS.get(table) or tuple(dict.fromkeys(name for row in members for name in row))
        shown = [name for name in known if any(row.get(name) is not None for row in members)]
        if any("skipped" in row or "reason" in row for row in members):
            shown.append("skipped")
        heads = [name for name in shown if not name.endswith(_INTERVALS)]
        title = TITLES.get(table, table) + (f": {dataset}" if dataset else "")
        out.append((title, NOTES.get(table, ""), heads, [[_cell(row, name) for name in heads] for row in members]))
    return out


def _cell(row: Row, name: str) -> str:
    value = row.get(name, row.get("reason") if name == "skipped" else None)
    said = _said(value)
    interval = next((row[name + end] for end in _INTERVALS if row.get(name + end)), None)
    return f"{said} [{_said(interval[0])}, {_said(interval[1])}]" if said and interval else said


def _said(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)
