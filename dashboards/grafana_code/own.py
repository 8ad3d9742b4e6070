"""Ourselves: do all services live, are they in time, and what have they lost."""

from __future__ import annotations

from typing import Final

from trainwarden.dashboards.grafana_code.frame import Line, framed
from trainwarden.dashboards.grafana_code.panels import Target, graph, number, states

_LOOPS = ("detector", "engine", "trainer", "archive", "serve")
_AT = "{{instance}}"


def _grown(name: str, legend: str, *services: str) -> tuple[Target, ...]:
    """By how much a counter of each service has grown."""
    return tuple(
        (f"increase(trainwarden_{service}_{name}[$__rate_interval])", f"{service}: {legend}") for service in services
    )


def _rates(name: str) -> tuple[Target, ...]:
    return tuple((f"rate(trainwarden_{service}_{name}[$__rate_interval])", f"{service} {_AT}") for service in _LOOPS)


_LINES: Final[list[Line]] = [
    (
        4,
        [
            number("Services without bus", "none", "count(trainwarden_up == 0) or vector(0)", bad_from=1),
            number("Longest without work", "s", "max(trainwarden:heartbeat_age:seconds)", bad_from=60),
            number("Furthest behind", "none", "max(trainwarden_bus_lag_records)", bad_from=1000),
            number("Acting stopped", "bool_yes_no", "max(trainwarden_acting_stopped)", bad_from=1),
        ],
    ),
    (
        8,
        [
            states("The bus answers", ("1 - trainwarden_up", f"{{{{service}}}} {_AT}"), good="yes", bad="no"),
            graph(
                "Since the last round of work",
                "s",
                ("trainwarden:heartbeat_age:seconds", f"{{{{service}}}} {_AT}"),
            ),
            graph("Records behind", "none", ("trainwarden_bus_lag_records", f"{{{{service}}}} {_AT}")),
        ],
    ),
    (
        8,
        [
            graph("Messages a second", "ops", *_rates("messages_total")),
            graph("Rounds that failed", "none", *_grown("errors_total", "{{kind}}", *_LOOPS)),
            graph(
                "Records that could not be handled",
                "none",
                *_grown("dead_letters_total", "{{topic}}", *_LOOPS),
                *_grown("undecodable_total", "no record", *_LOOPS),
            ),
        ],
    ),
    (
        8,
        [
            graph("Agents: CPU", "percentunit", ("trainwarden_agent_cpu_ratio", _AT)),
            graph("Agents: memory", "bytes", ("trainwarden_agent_resident_memory_bytes", _AT)),
            graph("Agents: on disk for the bus", "bytes", ("trainwarden_agent_spool_bytes", _AT)),
            graph("Agents: records given up", "none", *_grown("dropped_records_total", "{{why}}", "agent")),
        ],
    ),
    (
        8,
        [
            graph("Agents: collectors stuck", "none", ("trainwarden_agent_stuck_collectors_count", _AT)),
            graph("Collections that failed", "none", *_grown("collector_errors_total", "{{collector}}", "agent")),
            graph("Detection: set aside", "none", *_grown("set_aside_total", "{{what}}", "detector")),
            graph("Detection: jobs", "none", ("trainwarden_detector_jobs", _AT)),
        ],
    ),
    (
        8,
        [
            graph(
                "Detection: windows a second",
                "ops",
                ("rate(trainwarden_detector_windows_total[$__rate_interval])", _AT),
            ),
            graph("Launcher", "none", *_grown("launcher_errors_total", "{{kind}}", "engine")),
            states("Engine hears", ("trainwarden_engine_deaf", _AT), good="yes", bad="no"),
            graph("Archive: not yet on disk", "bytes", ("trainwarden_archive_waiting_bytes", _AT)),
        ],
    ),
]


def own() -> str:
    """The dashboard as JSON."""
    return framed(
        "self",
        "trainwarden / self",
        "Do all services live, are they in time, and what have they lost.",
        [],
        _LINES,
    )
