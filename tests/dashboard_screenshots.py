"""Pictures of what the Grafana dashboards' panels show, for docs/monitoring.md, where no Grafana can be had.

Each panel's own expressions, variables filled in, are asked of a real Prometheus that scrapes a real training job with
a fault; what it answers is drawn at the panel's own place and in its unit. The frame is ours, not Grafana's.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from tests.servers.alertmanager import ask
from tests.servers.chromium import Chromium
from tests.servers.prometheus import Prometheus
from tests.system.runs import steps_done
from tests.system.test_monitoring import WAIT_S, Scene
from trainwarden.dashboards.generated import FOLDER

WIDTH = 1_400
COLORS = 192
RATE = "15s"  # `$__rate_interval` at a scrape each second
POINTS = 240
HEALTHY_STEPS = 150
AFTER_S = 10.0  # the alert has fired: what else there is to see
MOST_ROWS = 6
MOST_CHARS = 20
INKS = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#37872d", "#fade2a", "#ffa6b0")
NAMED = {"green": INKS[0], "red": INKS[4], "orange": INKS[3], "yellow": INKS[1], "blue": INKS[2]}
SCALED = {
    "none": (1.0, ""), "s": (1.0, " s"), "percentunit": (100.0, " %"), "percent": (1.0, " %"), "ops": (1.0, " /s"),
    "watt": (1.0, " W"), "celsius": (1.0, " °C"), "mbytes": (1.0, " MiB"), "bytes": (1e-6, " MB"),
}  # fmt: skip
STYLE = """
body { margin: 0; padding: 16px; background: #111217; color: #ccccdc; font: 12px/1.4 system-ui, sans-serif }
h1 { margin: 0 0 12px; font-size: 18px; font-weight: 500 }
main { display: grid; grid-template-columns: repeat(24, 1fr); grid-auto-rows: 26px; gap: 8px }
section { background: #181b1f; border: 1px solid #2a2d33; padding: 6px 10px; overflow: hidden; display: flex;
  flex-direction: column; min-height: 0 }
h2 { margin: 0 0 4px; font-size: 13px; font-weight: 500 }
.big { margin: auto; font-size: 34px; font-weight: 600 } .none { margin: auto; color: #8e8e9b }
.plot { flex: 1; min-height: 0; display: grid; grid-template: 1fr auto / minmax(56px, max-content) 1fr }
.plot div { display: flex; flex-direction: column; justify-content: space-between; padding-right: 6px;
  text-align: right; color: #8e8e9b }
svg { width: 100%; height: 100%; border: solid #2a2d33; border-width: 1px 0 }
path { fill: none; stroke-width: 1.5; vector-effect: non-scaling-stroke }
.plot .ends { grid-column: 2; flex-direction: row; padding: 0 }
rect { shape-rendering: crispEdges }
ul { margin: 2px 0 0 56px; padding: 0; list-style: none; display: flex; flex-wrap: wrap; gap: 0 12px; max-height: 34px }
i { display: inline-block; width: 12px; height: 3px; margin-right: 4px; vertical-align: middle }
table { width: 100%; border-collapse: collapse } th, td { text-align: left; padding: 2px 8px 2px 0; font-weight: 400 }
th { color: #6e9fff } tr { border-bottom: 1px solid #2a2d33 }
"""
Write = Callable[[bytes, Path, int], None]


class Answers(NamedTuple):
    """What a Prometheus said of a stretch of time."""

    prometheus: Prometheus
    from_s: float
    until_s: float

    def series(self, target: dict[str, Any]) -> list[tuple[str, list[tuple[float, float]]]]:
        """Legend and points of each series of a target."""
        span_s = self.until_s - self.from_s
        when = {"start": f"{self.from_s:.3f}", "end": f"{self.until_s:.3f}", "step": f"{span_s / POINTS:.3f}"}
        found = ask(f"{self.prometheus.url}/api/v1/query_range", query=filled(target["expr"]), **when)
        return [
            (legend(target, one["metric"]), [(float(at), float(value)) for at, value in one["values"]])
            for one in found["data"]["result"]
        ]

    def now(self, target: dict[str, Any]) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each sample of a target at the end."""
        when = f"{self.until_s:.3f}"
        found = ask(f"{self.prometheus.url}/api/v1/query", query=filled(target["expr"]), time=when)
        return [(one["metric"], float(one["value"][1])) for one in found["data"]["result"]]


def filled(expr: str) -> str:
    """`expr` with all values of each variable."""
    return re.sub(r'"\$\w+"', '".*"', expr.replace("$__rate_interval", RATE))


def legend(target: dict[str, Any], labels: dict[str, str]) -> str:
    """The name of a series, as the target words it."""
    words = re.sub(r"{{\s*(\w+)\s*}}", lambda named: labels.get(named[1], ""), target.get("legendFormat") or "")
    return " ".join(words.split())


def said(value: float, panel: dict[str, Any]) -> str:
    """A value in the panel's unit, or the word that the panel has for it."""
    defaults = panel["fieldConfig"]["defaults"]
    for mapping in defaults.get("mappings", ()):
        if (word := mapping["options"].get(f"{value:g}")) is not None:
            return str(word["text"])
    if defaults["unit"] == "bool_yes_no":
        return "Yes" if value else "No"
    factor, sign = SCALED[defaults["unit"]]
    return f"{value * factor:,.0f}{sign}" if abs(value * factor) >= 1_000.0 else f"{value * factor:.3g}{sign}"


def ink(value: float, panel: dict[str, Any]) -> str:
    """The colour of the highest threshold that is reached, or of the value's word."""
    defaults = panel["fieldConfig"]["defaults"]
    for mapping in defaults.get("mappings", ()):
        if (word := mapping["options"].get(f"{value:g}")) is not None:
            return NAMED.get(word.get("color", ""), INKS[2])
    steps = defaults.get("thresholds", {}).get("steps", ())
    reached = [one["color"] for one in steps if one["value"] is None or value >= one["value"]]
    return NAMED.get(reached[-1], INKS[0]) if reached else INKS[0]


def stat(panel: dict[str, Any], answers: Answers) -> str:
    """One number."""
    found = [value for target in panel["targets"] for _, value in answers.now(target)]
    if not found:
        return '<p class="none">-</p>'
    return f'<p class="big" style="color: {ink(found[-1], panel)}">{escape(said(found[-1], panel))}</p>'


def table(panel: dict[str, Any], answers: Answers) -> str:
    """Labels and values."""
    found = [sample for target in panel["targets"] for sample in answers.now(target)]
    hidden = {
        name
        for change in panel.get("transformations", ())
        for name, gone in change["options"].get("excludeByName", {}).items()
        if gone
    }
    names = sorted({name for labels, _ in found for name in labels} - hidden)
    head = "".join(f"<th>{escape(name)}</th>" for name in [*names, "Value"])
    rows = (
        "".join(f"<td>{escape(cell)}</td>" for cell in [*(labels.get(name, "") for name in names), said(value, panel)])
        for labels, value in found[:MOST_ROWS]
    )
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>" if found else NOTHING


def lines(panel: dict[str, Any], answers: Answers) -> str:
    """Values over time."""
    series = [one for target in panel["targets"] for one in answers.series(target)]
    if not series:
        return NOTHING
    values = [value for _, points in series for _, value in points]
    low, high = min(0.0, *values), max(values)
    high = high if high > low else low + 1.0
    drawn = "".join(
        f'<path stroke="{INKS[at % len(INKS)]}" d="M{_path(points, answers, low, high)}"/>'
        for at, (_, points) in enumerate(series)
    )
    keys = [(INKS[at % len(INKS)], name) for at, (name, _) in enumerate(series)]
    return _plot([said(high, panel), said(low, panel)], drawn, answers, keys)


def _path(points: list[tuple[float, float]], answers: Answers, low: float, high: float) -> str:
    span_s = answers.until_s - answers.from_s
    return "L".join(
        f"{1_000.0 * (at - answers.from_s) / span_s:.1f} {98.0 - 96.0 * (value - low) / (high - low):.2f}"
        for at, value in points
    )


def states(panel: dict[str, Any], answers: Answers) -> str:
    """A strip for each series, coloured by its value."""
    series = [one for target in panel["targets"] for one in answers.series(target)]
    if not series:
        return NOTHING
    tall, wide = 100.0 / len(series), 1_000.0 / POINTS
    drawn = "".join(
        f'<rect x="{1_000.0 * (at_s - answers.from_s) / (answers.until_s - answers.from_s):.1f}" '
        f'y="{tall * row + 1.0:.1f}" width="{1.5 * wide:.1f}" height="{tall - 2.0:.1f}" fill="{ink(value, panel)}"/>'
        for row, (_, points) in enumerate(series)
        for at_s, value in points
    )
    shown = {said(value, panel): ink(value, panel) for _, points in series for _, value in points}
    return _plot(
        [name[:MOST_CHARS] for name, _ in series], drawn, answers, [(ink, word) for word, ink in shown.items()]
    )


def _plot(scale: list[str], drawn: str, answers: Answers, keys: list[tuple[str, str]]) -> str:
    beside = "".join(f"<span>{escape(word)}</span>" for word in scale)
    ends = (answers.from_s, answers.until_s)
    moments = "".join(f"<span>{time.strftime('%H:%M:%S', time.gmtime(at_s))}</span>" for at_s in ends)
    told = "".join(f'<li><i style="background: {color}"></i>{escape(name)}</li>' for color, name in keys)
    svg = f'<svg viewBox="0 0 1000 100" preserveAspectRatio="none">{drawn}</svg>'
    return f'<div class="plot"><div>{beside}</div>{svg}<div class="ends">{moments}</div></div><ul>{told}</ul>'


NOTHING = '<p class="none">No data</p>'
DRAWN = {"stat": stat, "table": table, "timeseries": lines, "state-timeline": states}


def page(board: dict[str, Any], answers: Answers) -> str:
    """A dashboard as a page of its own."""
    sections = []
    for panel in board["panels"]:
        grid = panel["gridPos"]
        place = f"grid-area: {grid['y'] + 1} / {grid['x'] + 1} / span {grid['h']} / span {grid['w']}"
        inner = DRAWN[panel["type"]](panel, answers)
        sections.append(f'<section style="{place}"><h2>{escape(panel["title"])}</h2>{inner}</section>')
    head = f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style><h1>{escape(board["title"])}</h1>'
    return f"{head}<main>{''.join(sections)}</main>"


def pictures(to: Path, write: Write) -> None:
    """All dashboards of a job of which one rank hangs, written by `write` into the folder `to`."""
    with tempfile.TemporaryDirectory(prefix="trainwarden-pictures-") as temporary:
        place = Path(temporary)
        scene = Scene(place)
        with scene.alertmanager, scene.prometheus, Chromium(place / "browser") as browser:
            try:
                scene.start()
                scene.prometheus.until("the first steps", lambda: steps_done(scene.run_dir, 1) > 0, WAIT_S)
                began_s = time.time()
                scene.prometheus.until("a time of health", lambda: steps_done(scene.run_dir, 1) > HEALTHY_STEPS, WAIT_S)
                scene.hang()
                scene.alert("TrainwardenIncident")
                time.sleep(AFTER_S)
                answers = Answers(scene.prometheus, began_s, time.time())
                for path in sorted((FOLDER / "grafana").glob("*.json")):
                    board = json.loads(path.read_text(encoding="utf-8"))
                    file = place / f"{path.stem}.html"
                    file.write_text(page(board, answers), encoding="utf-8")
                    browser.look("dark", WIDTH, 900)
                    browser.open(file.as_uri())
                    browser.shows(board["title"], board["panels"][0]["title"])
                    write(browser.whole_picture(), to / f"dashboard-{path.stem}.png", COLORS)
            finally:
                scene.end()
