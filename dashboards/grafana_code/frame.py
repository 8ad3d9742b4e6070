"""What all our dashboards share: where panels stand, the variables on top, and the marks of incidents and actions."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

from grafana_foundation_sdk.builders import dashboard
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import (
    DashboardCursorSync,
    DashboardLinkType,
    GridPos,
    VariableRefresh,
    VariableSort,
)

from trainwarden.dashboards.grafana_code.panels import SOURCE, Placed

WIDTH: Final = 24
TAG: Final = "trainwarden"
Line = tuple[int, Sequence[Placed]]
"""Height of a line of panels, and the panels, which share its width."""
Variable = tuple[str, str, str]
"""Name, the metric that has it, and the label; its values are those of the label."""
JOB: Final[Variable] = ("job", "trainwarden_job_nodes", "training_job")
NODE: Final[Variable] = ("node", "trainwarden_node_seen_timestamp_seconds", "node")


def framed(name: str, title: str, about: str, variables: Iterable[Variable], lines: Iterable[Line]) -> str:
    """The dashboard `name` as JSON."""
    variables = list(variables)
    built = (
        dashboard.Dashboard(title)
        .uid(f"trainwarden-{name}")
        .description(about)
        .tags([TAG])
        .timezone("browser")
        .refresh("5s")
        .time("now-30m", "now")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .link(dashboard.DashboardLink("trainwarden").type(DashboardLinkType.DASHBOARDS).tags([TAG]).keep_time(True))
    )
    for variable in variables:
        built = built.with_variable(_variable(*variable))
    picked = ',training_job=~"$job"' if JOB in variables else ""
    for mark in _marks(picked):
        built = built.annotation(mark)
    number, top = 1, 0
    for height, panels in lines:
        width = WIDTH // len(panels)
        for place, panel in enumerate(panels):
            built = built.with_panel(panel.id(number).grid_pos(GridPos(h=height, w=width, x=place * width, y=top)))
            number += 1
        top += height
    text = JSONEncoder(sort_keys=True, indent=2).encode(built.build())
    return json.dumps(json.loads(text), sort_keys=True, indent=2, ensure_ascii=False) + "\n"


def _variable(name: str, metric: str, label: str) -> dashboard.QueryVariable:
    return (
        dashboard.QueryVariable(name)
        .label(name)
        .datasource(SOURCE)
        .query({"query": f"label_values({metric}, {label})", "refId": "values"})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.NATURAL_ASC)
        .include_all(True)
        .all_value(".*")
        .multi(True)
    )


def _marks(picked: str) -> Iterable[dashboard.AnnotationQuery]:
    """Incidents that opened and actions that began: whatever has changed within a minute."""
    incidents = f'changes(trainwarden_incidents_total{{kind!=""{picked}}}[1m]) > 0'
    yield _mark("Incidents", "red", incidents).title_format("{{kind}}").text_format("{{severity}} in {{training_job}}")
    actions = f'changes(trainwarden_actions_total{{outcome="started"{picked}}}[1m]) > 0'
    yield _mark("Actions", "blue", actions).title_format("{{kind}}").text_format("started in {{training_job}}")


def _mark(name: str, colour: str, expr: str) -> dashboard.AnnotationQuery:
    return (
        dashboard.AnnotationQuery().name(name).datasource(SOURCE).enable(True).icon_color(colour).expr(expr).step("1m")
    )
