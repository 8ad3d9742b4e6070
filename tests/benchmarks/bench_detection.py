"""How well faults are found, named and timed on recorded data: headline figures, and the tables they come from.

Each figure stands beside the best plain method of the same run. Run: ``trainwarden bench detection`` (ten minutes or so
on two cores) or ``trainwarden bench detection_smd`` for a part of it; `docs/benchmarks.md` says what the columns mean.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from typing import Any, Final

from tests.benchmarks.detection import changes as detection_changes
from tests.benchmarks.detection import logs as detection_logs
from tests.benchmarks.detection import metrics as detection_metrics
from tests.benchmarks.detection import mixed as detection_mixed
from tests.benchmarks.detection import peers as detection_peers
from tests.benchmarks.detection.baselines import BASELINES
from tests.benchmarks.detection.tables import markdown, text
from trainwarden.detectors.recorded.processes import processes

Row = dict[str, Any]
Say = Callable[[str], None]

NAMES: Final = (
    "detection_smd_vus_pr",
    "detection_smd_event_f1",
    "detection_smd_false_alarms_per_machine_day",
    "detection_smd_blamed_top3",
    "detection_asd_vus_pr",
    "detection_asd_event_f1",
    "detection_nab_vus_pr",
    "detection_change_job_accuracy",
    "detection_change_false_per_1000_iterations",
    "detection_change_delay_iterations",
    "detection_drift_delay_iterations",
    "detection_log_false_findings_per_hour",
    "detection_log_root_recall",
    "detection_log_window_f1",
    "detection_localisation_top1",
    "detection_localisation_false_per_rank_hour",
    "detection_mixed_f1",
)
TABLES: Final = {"smd": "metrics", "asd": "metrics", "nab": "metrics", "changes": "changes", "logs": "logs",
                 "peers": "peers", "mixed": detection_mixed.CONSTRUCTED}  # fmt: skip
_PARTS: Final = {
    "smd": "smd", "asd": "asd", "nab": "nab", "change": "changes", "drift": "changes", "log": "logs",
    "localisation": "peers", "mixed": "mixed",
}  # fmt: skip
CHANGE_SETS: Final = ("nanogpt", "megatron", "mlperf", "synthetic")
PLAIN: Final = tuple(name for name in BASELINES if name not in ("simple_mean", "always_off"))


class _Tables:
    """Rows by part, worked out when they are asked for, once."""

    def __init__(self, say: Say, parts: Sequence[str] = ()) -> None:
        self._say = say
        self._known: dict[str, list[Row]] = {}
        together = [part for part in ("changes", "peers", "logs") if part in parts]
        if len(together) > 1:
            self._apart(together)
        sets = [part for part in ("smd", "asd", "nab") if part in parts]
        if len(sets) > 1:
            found = detection_metrics.rows(sets, say)
            self._known |= {part: [row for row in found if row["set"] == part] for part in sets}

    def rows(self, part: str) -> list[Row]:
        if part not in self._known:
            self._say(f"{part}: working")
            if part in ("smd", "asd", "nab"):
                self._known[part] = detection_metrics.rows((part,), self._say)
            elif part == "mixed":
                self._known[part] = detection_mixed.rows(self._say)
            else:
                self._known[part] = _plain_rows(part)
        return self._known[part]

    def _apart(self, parts: Sequence[str]) -> None:
        """Tables of single processes, side by side."""
        with processes(2) as pool:
            self._say(f"{', '.join(parts)}: working")
            self._known |= dict(zip(parts, pool.map(_plain_rows, parts), strict=True))

    @property
    def all(self) -> list[Row]:
        order = list(TABLES)
        return [row for part in sorted(self._known, key=order.index) for row in self._known[part]]


def _plain_rows(part: str) -> list[Row]:
    if part == "changes":
        return detection_changes.rows()
    return detection_peers.rows() if part == "peers" else detection_logs.rows()


def part_of(name: str) -> str:
    """The part of the tables that a benchmark's figure comes from.

    Examples
    --------
    >>> part_of("detection_drift_delay_iterations"), part_of("detection_smd_vus_pr")
    ('changes', 'smd')
    """
    return _PARTS[name.split("_")[1]]


def benchmarks(wanted: Sequence[str] = NAMES, say: Say = lambda text: None) -> Iterator[Row]:
    """The figures `wanted`, one by one; the last has all rows and both renderings of the tables as ``tables``.

    What ``trainwarden bench`` prints are the figures; it takes ``tables``, ``text`` and ``markdown`` off the last one.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    names = [name for name in NAMES if name in wanted]
    tables = _Tables(say, [part_of(name) for name in names])
    for place, name in enumerate(names, 1):
        row = figure(name, tables.rows(part_of(name)))
        if place == len(names):
            row |= {"tables": tables.all, "text": text(tables.all), "markdown": markdown(tables.all)}
        yield row


def figure(name: str, rows: Sequence[Row]) -> Row:
    """One headline figure from its rows; value None with a reason where there is nothing to measure."""
    reason = next((str(row.get("skipped") or row.get("reason")) for row in rows if _empty(row)), None)
    if reason is not None and not any(_has_figures(row) for row in rows):
        return _result(name, None, "", None, None, reason=reason)
    part = part_of(name)
    kinds = {"changes": _change, "logs": _log, "peers": _localisation, "mixed": _mixed}
    return kinds[part](name, rows) if part in kinds else _server(name, rows)


def _empty(row: Row) -> bool:
    return "skipped" in row or row.get("value", 0) is None


def _has_figures(row: Row) -> bool:
    return not _empty(row)


def _result(
    name: str, value: float | None, unit: str, peer: Row | None, bar: str | None, holds: bool | None = None,
    *, lower: bool = False, reason: str | None = None, **more: Any,
) -> Row:  # fmt: skip
    ratio = None
    if peer is not None and value is not None and peer["value"] is not None:
        pair = (peer["value"], value) if lower else (value, peer["value"])
        ratio = pair[0] / pair[1] if pair[1] else None
    row: Row = {"name": name, "value": value, "unit": unit, "rounds": 1, "spread": more.pop("spread", None)}
    row |= {"peer": peer, "ratio": ratio, "bar": bar, "holds": holds if value is not None else None, **more}
    return row if reason is None else {**row, "skipped": reason}


def _peer(name: str, value: float | None, package: str | None = None) -> Row:
    return {"name": name, "version": version(package) if package else "this version", "value": value}


def _half_width(row: Row, name: str) -> float | None:
    """Half the 95 % interval as a share of the value."""
    interval, value = row.get(f"{name}_ci"), row.get(name)
    return (interval[1] - interval[0]) / 2.0 / value if interval and value else None


# -- server metrics ----------------------------------------------------------------------------------------


def _server(name: str, rows: Sequence[Row]) -> Row:
    by_row = {row["row"]: row for row in rows}
    if name.endswith("_vus_pr"):
        return _vus(name, by_row)
    ours, metric = by_row[detection_metrics.PRODUCT], "f1"
    if name.endswith("_blamed_top3"):
        peer = _best(by_row, "blamed_top3")
        return _result(name, by_row["ensemble"]["blamed_top3"], "share of events", peer, None,
                       by_chance=by_row["three_at_random"]["blamed_top3"],
                       spread=_half_width(by_row["ensemble"], "blamed_top3"))  # fmt: skip
    if name.endswith("_per_machine_day"):
        metric = "false_per_day"
        plain = _best(by_row, "f1", (*PLAIN, "simple_mean"))
        peer = _peer(plain["name"], by_row[plain["name"]][metric], "scikit-learn")
        return _result(name, ours[metric], "1/day", peer, None, lower=True, spread=_half_width(ours, metric),
                       recall=ours["recall"], peer_recall=by_row[plain["name"]]["recall"])  # fmt: skip
    peer = _best(by_row, metric, (*PLAIN, "simple_mean"))
    return _result(name, ours[metric], "F1", peer, None, spread=_half_width(ours, metric))


def _vus(name: str, by_row: dict[str, Row]) -> Row:
    ours, peer, mean = by_row["ensemble"], _best(by_row, "vus_pr"), by_row["simple_mean"]["vus_pr"]
    bar = "above the best single baseline and above simple_mean" if "nab" not in name else None
    holds = ours["vus_pr"] > peer["value"] and ours["vus_pr"] > mean if bar else None
    more = {"simple_mean": mean, "vus_pr_ci": ours["vus_pr_ci"], "spread": _half_width(ours, "vus_pr")}
    return _result(name, ours["vus_pr"], "VUS-PR", peer, bar, holds, **more)


def _best(by_row: dict[str, Row], metric: str, names: Sequence[str] = PLAIN) -> Row:
    """The best plain method of the same run by `metric`."""
    known = [(by_row[name][metric], name) for name in names if by_row.get(name, {}).get(metric) is not None]
    value, name = max(known)
    return _peer(name, value, None if name == "sliding_z" else "scikit-learn")


# -- change points -----------------------------------------------------------------------------------------


def _pooled(rows: Sequence[Row], method: str, sets: Sequence[str] = CHANGE_SETS) -> tuple[float, float]:
    """Job accuracy and false reports per 1,000 iterations over all jobs of all sets."""
    own = [row for row in rows if row["row"] == method and row["set"] in sets and "jobs" in row]
    jobs, iterations = (sum(row[name] for row in own) for name in ("jobs", "iterations"))
    right = sum(row["job_accuracy"] * row["jobs"] for row in own)
    return right / jobs, 1000.0 * sum(row["false"] for row in own) / iterations


def _change(name: str, rows: Sequence[Row]) -> Row:
    ours = {row["set"]: row for row in rows if row["row"] == "ours" and "jobs" in row}
    others = {row["row"] for row in rows if "jobs" in row} - {"ours", "always_off"}
    best = max(others, key=lambda method: _pooled(rows, method)[0])
    accuracy, false = _pooled(rows, "ours")
    by_set = {dataset: row["job_accuracy"] for dataset, row in ours.items()}
    if name == "detection_change_job_accuracy":
        peer = _peer(best, _pooled(rows, best)[0])
        return _result(name, accuracy, "share of jobs", peer, ">= 0.995", accuracy >= 0.995, by_set=by_set)
    if name == "detection_change_false_per_1000_iterations":
        peer = _peer(best, _pooled(rows, best)[1])
        by_set = {dataset: row["false_per_1000"] for dataset, row in ours.items()}
        return _result(name, false, "1/1000 iterations", peer, "<= 0.02", false <= 0.02, lower=True, by_set=by_set)
    slow = name == "detection_drift_delay_iterations"
    dataset, metric = ("synthetic/drift", "after_passing_p90") if slow else ("synthetic/step", "delay_median")
    value = ours[dataset][metric]
    other = next((row.get(metric) for row in rows if row["row"] == best and row["set"] == dataset), None)
    if slow:  # delays after 10 % are passed can be negative, so that a ratio means nothing
        bar = "nine in ten known within 30 iterations after 10 % are passed"
        return _result(name, value, "iterations, p90", None, bar, value is not None and value <= 30)
    return _result(name, value, "iterations, median", _peer(best, other), "<= 3 for changes of 20 % and more",
                   value is not None and value <= 3, lower=True)  # fmt: skip


# -- logs, ranks, mixtures -----------------------------------------------------------------------------------


def _log(name: str, rows: Sequence[Row]) -> Row:
    known = {(row["row"], row["metric"]): row for row in rows if "metric" in row}
    if name == "detection_log_false_findings_per_hour":
        value = max(row["value"] for (_, metric), row in known.items() if metric == "false on healthy logs per hour")
        false = known["keyword_rule", "false lines on healthy logs"]
        lines = float(false["unit"].removeprefix("of "))
        per_hour = false["value"] / (lines / detection_logs.LINES_PER_S / 3600.0)
        return _result(name, value, "1/h", _peer("keyword_rule, lines", per_hour), "0", value == 0, lower=True)
    if name == "detection_log_root_recall":
        parts = [row["unit"].split("/") for (_, metric), row in known.items() if metric.startswith("excerpts recog")]
        value = sum(int(right) for right, _ in parts) / sum(int(all_) for _, all_ in parts)
        keyword = known["keyword_rule", "window recall"]["value"]
        return _result(name, value, "share of excerpts with their class", _peer("keyword_rule, any alert", keyword),
                       None)  # fmt: skip
    value = known["rules", "window F1"]["value"]
    return _result(name, value, "F1", _peer("keyword_rule", known["keyword_rule", "window F1"]["value"]), None)


def _localisation(name: str, rows: Sequence[Row]) -> Row:
    real = name.endswith("rank_hour")
    if real:  # false alarms are counted on real healthy ranks
        own = [row for row in rows if row["set"] == "smc" and "false" in row]
        value = next((row["false_per_rank_hour"] for row in own if row["row"] == "peer_deviation"), None)
        other = next((row["false_per_rank_hour"] for row in own if row["row"] == "robust_z_5"), None)
        return _result(name, value, "1/(rank hour)", _peer("robust_z_5", other), "0", value == 0, lower=True,
                       **({} if own else {"reason": detection_peers.SKIPPED}))  # fmt: skip
    own = [row for row in rows if row["set"] == "synthetic" and row.get("top_1") is not None]
    by_row = {row["row"]: row["top_1"] for row in own}
    ours = by_row.pop("peer_deviation")
    best = max(by_row, key=lambda row: by_row[row])
    return _result(name, ours, "share of cases", _peer(best, by_row[best]), None)


def _mixed(name: str, rows: Sequence[Row]) -> Row:
    known = {row["row"]: row for row in rows if row["set"] == "all"}
    ours, peer = known[detection_mixed.WHOLE], known[detection_mixed.RULES]
    return _result(name, ours["f1"], "F1, constructed", _peer("simple_rules", peer["f1"]), None,
                   spread=_half_width(ours, "f1"), recall=ours["recall"], precision=ours["precision"])  # fmt: skip
