"""One HTML file that tells a run's story: iteration times, rank heat map, votes, incidents, actions.

No script, no font and no picture from elsewhere: the file can be mailed.
"""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainwarden.cli.shared.follow import JobView
from trainwarden.errors import DataError
from trainwarden.json_objects import action_object, incident_object
from trainwarden.records import VerdictRecord

WIDTH, HEIGHT = 960, 220
LEFT, BOTTOM = 56, 24
MAX_HEAT_RANKS, MAX_HEAT_STEPS = 64, 240

_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1020px;margin:2rem auto;padding:0 1rem;color:#1d2733;background:#fff}
h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;width:100%;font-size:14px}
th,td{text-align:left;padding:.35rem .6rem;border-bottom:1px solid #d8dee6;vertical-align:top}
svg{width:100%;height:auto;background:#f7f9fb;border:1px solid #d8dee6}.axis{font-size:11px;fill:#5b6875}
.line{fill:none;stroke:#2566a8;stroke-width:1.6}.onset{stroke:#c0392b;stroke-width:1.5;stroke-dasharray:5 3}
.act{stroke:#1e8449;stroke-width:1.5;stroke-dasharray:2 3}.key{font-size:12px}.note{color:#5b6875;font-size:13px}
p.summary{background:#eef3f8;border-left:4px solid #2566a8;padding:.7rem 1rem}
"""


def write_report(path: Path, view: JobView, *, title: str, summary: str) -> None:
    """Write the report of `view` to `path`.

    Raises
    ------
    DataError
        If the file cannot be written.
    """
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{html.escape(title)}</title><style>{_STYLE}</style>",
        f"<h1>{html.escape(title)}</h1><p class=summary>{html.escape(summary)}</p>",
        "<h2>Iteration time</h2>",
        _iteration_chart(view),
        "<p class=note>Median over ranks, pauses taken out. Red: where an incident began. Green: an action done.</p>",
        "<h2>Compute time by rank</h2>",
        _heat_map(view),
        "<p class=note>Each row a rank, each column a step; darker is longer, relative to the median of all ranks.</p>",
        "<h2>Votes over time</h2>",
        _votes_chart(view),
        "<h2>Incidents</h2>",
        _incident_table(view),
        "<h2>Actions</h2>",
        _action_table(view),
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(parts), encoding="utf-8")
    except OSError as error:
        raise DataError(f"report '{path}' cannot be written ({error.strerror})") from error


def _frame(body: str, height: int = HEIGHT) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{body}</svg>'


def _scale(value: float, low: float, high: float, start: float, end: float) -> float:
    return start + (end - start) * ((value - low) / (high - low) if high > low else 0.5)


def _iteration_chart(view: JobView) -> str:
    steps = view.iterations()
    if not steps:
        return "<p>No iteration was recorded.</p>"
    first, last = steps[0][0], steps[-1][0]
    ordered = sorted(seconds for _, seconds in steps)
    top = 1.15 * ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]

    def x(step: float) -> float:
        return _scale(step, first, last, LEFT, WIDTH - 10)

    def y(seconds: float) -> float:
        return _scale(min(seconds, top), 0.0, top, HEIGHT - BOTTOM, 10)

    points = " ".join(f"{x(step):.1f},{y(seconds):.1f}" for step, seconds in steps)
    marks = [
        f'<line class=onset x1="{x(i.onset_step):.1f}" x2="{x(i.onset_step):.1f}" y1=10 y2={HEIGHT - BOTTOM}>'
        f"<title>{html.escape(i.reason)}</title></line>"
        for i in view.incidents.values()
        if i.onset_step is not None
    ]
    ends = sorted((row["end_s"], step) for (_, _, step), row in view.steps.items())
    for action in view.actions.values():
        step = next((step for end_s, step in ends if end_s >= action.at_s), None)
        if step is not None and action.outcome == "done":
            marks.append(
                f'<line class=act x1="{x(step):.1f}" x2="{x(step):.1f}" y1=10 y2={HEIGHT - BOTTOM}>'
                f"<title>{html.escape(action.why)}</title></line>"
            )
    axis = (
        f"<text class=axis x=4 y=18>{top:.2f} s</text><text class=axis x=4 y={HEIGHT - BOTTOM}>0 s</text>"
        f"<text class=axis x={LEFT} y={HEIGHT - 6}>step {first}</text>"
        f"<text class=axis x={WIDTH - 10} y={HEIGHT - 6} text-anchor=end>step {last}</text>"
    )
    return _frame(f'{axis}<polyline class=line points="{points}"/>{"".join(marks)}')


def _heat_map(view: JobView) -> str:
    """Compute time per rank and step, as a grid of coloured cells."""
    cells = {(rank, step): row["compute_s"] for (rank, _, step), row in view.steps.items() if row["compute_s"]}
    if not cells:
        return "<p>No rank told its compute time.</p>"
    ranks = sorted({rank for rank, _ in cells})[:MAX_HEAT_RANKS]
    steps = sorted({step for _, step in cells})
    stride = -(-len(steps) // MAX_HEAT_STEPS)
    columns = [steps[i : i + stride] for i in range(0, len(steps), stride)]
    values = sorted(cells.values())
    median = values[len(values) // 2]
    cell_w, cell_h = (WIDTH - LEFT - 10) / len(columns), max(6, min(22, 300 // len(ranks)))
    body = []
    for row, rank in enumerate(ranks):
        body.append(f"<text class=axis x=4 y={row * cell_h + cell_h * 0.75:.1f}>rank {rank}</text>")
        for column, group in enumerate(columns):
            measured = [cells[rank, step] for step in group if (rank, step) in cells]
            if measured:
                ratio = sum(measured) / len(measured) / median
                body.append(
                    f'<rect x="{LEFT + column * cell_w:.1f}" y="{row * cell_h}" width="{cell_w + 0.3:.1f}" '
                    f'height="{cell_h}" fill="{_colour(ratio)}"><title>rank {rank}, step {group[0]}: '
                    f"{ratio:.2f} x median</title></rect>"
                )
    return _frame("".join(body), len(ranks) * cell_h + 2)


def _colour(ratio: float) -> str:
    """White at half the median, blue at the median, dark red at three times it."""
    if ratio <= 1.0:
        share = max(0.0, (ratio - 0.5) * 2)
        return f"hsl(210,60%,{96 - 26 * share:.0f}%)"
    share = min(1.0, (ratio - 1.0) / 2.0)
    return f"hsl({210 - 205 * min(1.0, share * 2):.0f},65%,{70 - 34 * share:.0f}%)"


def _votes_chart(view: JobView) -> str:
    """One strip per detector: the score of each window as the strip's darkness."""
    verdicts = sorted(view.verdicts, key=lambda verdict: verdict.time_s)
    if not verdicts:
        return "<p>No window was judged.</p>"
    names = sorted({n for verdict in verdicts for n, vote in verdict.votes.items() if vote.opinion != "abstain"})
    low, high = verdicts[0].time_s, verdicts[-1].time_s
    body = []
    for row, name in enumerate(names):
        body.append(f"<text class=axis x=4 y={row * 22 + 15}>{html.escape(name)}</text>")
        for index, verdict in enumerate(verdicts):
            vote = verdict.votes.get(name)
            if vote is None or vote.opinion == "abstain":
                continue
            start = _scale(verdict.time_s, low, high, LEFT + 90, WIDTH - 10)
            following = verdicts[index + 1].time_s if index + 1 < len(verdicts) else high
            end = _scale(following, low, high, LEFT + 90, WIDTH - 10)
            fill = "#c0392b" if vote.opinion == "anomalous" else "#2566a8"
            body.append(
                f'<rect x="{start:.1f}" y="{row * 22 + 3}" width="{max(1.0, end - start + 0.3):.1f}" height="16" '
                f'fill="{fill}" fill-opacity="{0.08 + 0.92 * vote.score:.2f}"><title>{html.escape(name)} '
                f"{vote.score:.2f}: {html.escape(vote.reason)}</title></rect>"
            )
    return _frame("".join(body), len(names) * 22 + 4) + _silent(verdicts[-1], names)


def _silent(newest: VerdictRecord, heard: Sequence[str]) -> str:
    """Who never voted, and why: those of one reason together."""
    by_reason: dict[str, list[str]] = {}
    for name, vote in sorted(newest.votes.items()):
        if name not in heard:
            by_reason.setdefault(vote.reason or "no reason given", []).append(name)
    lines = [f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()]
    return "".join(f"<p class=note>did not vote: {html.escape(line)}</p>" for line in lines)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{cells}</tr>{body}</table>" if rows else "<p>None.</p>"


def _incident_table(view: JobView) -> str:
    rows = []
    for record in sorted(view.incidents.values(), key=lambda item: item.opened_at_s):
        item = incident_object(record)
        places = [
            ", ".join(f"{key} {suspect[key]}" for key in ("rank", "node", "device") if suspect[key] is not None)
            for suspect in item["suspects"][:3]
        ]
        votes = ", ".join(f"{name} {score:.2f}" for name, score in item["votes"].items())
        onset = "" if item["onset_step"] is None else str(item["onset_step"])
        rows.append((item["kind"], item["severity"], record.state, onset, "; ".join(places), item["reason"], votes))
    return _table(("kind", "severity", "state", "onset step", "suspects", "reason", "votes"), rows)


def _action_table(view: JobView) -> str:
    items = [action_object(record) for record in sorted(view.actions.values(), key=lambda item: item.at_s)]
    rows = [(i["kind"], i["outcome"], i["why"], _plan_words(i["plan"])) for i in items]
    return _table(("action", "outcome", "why", "plan"), rows)


def _plan_words(plan: Mapping[str, Any]) -> str:
    """A plan as a person reads it.

    Examples
    --------
    >>> _plan_words({"micro_batches": [7, 7, 3, 7], "predicted_compute_s": 0.35})
    'micro batches: 7 7 3 7; predicted compute s: 0.35'
    """
    said = (
        (name, " ".join(str(one) for one in value) if isinstance(value, list | tuple) else str(value))
        for name, value in plan.items()
    )
    return "; ".join(f"{name.replace('_', ' ')}: {words}" for name, words in said)
