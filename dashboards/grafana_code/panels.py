"""The few kinds of panels that our dashboards are made of."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from grafana_foundation_sdk.builders import common, dashboard, prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.models import common as words
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    FieldColorModeId,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE: Final = DataSourceRef(type_val="prometheus", uid="${datasource}")
Target = tuple[str, str]
"""Expression and legend."""


Placed = timeseries.Panel | stat.Panel | table.Panel | statetimeline.Panel
"""A panel's builder, of whatever kind."""


def graph(title: str, unit: str, *targets: Target, stacked: bool = False, about: str = "") -> timeseries.Panel:
    """Lines over time."""
    legend = common.VizLegendOptions().show_legend(True).display_mode(words.LegendDisplayMode.LIST)
    panel = (
        timeseries.Panel()
        .title(title)
        .description(about)
        .unit(unit)
        .datasource(SOURCE)
        .legend(legend.placement(words.LegendPlacement.BOTTOM))
        .fill_opacity(25 if stacked else 0)
        .show_points(words.VisibilityMode.NEVER)
        .min(0)
    )
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(words.StackingMode.NORMAL))
    for query in _queries(targets):
        panel = panel.with_target(query)
    return panel


def number(title: str, unit: str, expr: str, *, bad_from: float | None = None, about: str = "") -> stat.Panel:
    """The newest value, large; red from `bad_from` on."""
    steps = [Threshold(value=None, color="green")]
    if bad_from is not None:
        steps.append(Threshold(value=bad_from, color="red"))
    return (
        stat.Panel()
        .title(title)
        .description(about)
        .unit(unit)
        .datasource(SOURCE)
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        .color_scheme(dashboard.FieldColor().mode(FieldColorModeId.THRESHOLDS))
        .graph_mode(words.BigValueGraphMode.NONE)
        .no_value("-")
        .with_target(prometheus.Dataquery().expr(expr).instant().ref_id("A"))
    )


def states(title: str, *targets: Target, good: str = "normal", bad: str = "anomalous") -> statetimeline.Panel:
    """Bars over time of what is 0 or 1; the words stand in them, so that colour is not alone."""
    options = {
        "0": ValueMappingResult(text=good, color="green", index=0),
        "1": ValueMappingResult(text=bad, color="red", index=1),
    }
    panel = statetimeline.Panel().title(title).unit("none").datasource(SOURCE).mappings([ValueMap(options=options)])
    for query in _queries(targets):
        panel = panel.with_target(query)
    return panel.show_value(words.VisibilityMode.AUTO)


def rows(title: str, unit: str, expr: str, *, about: str = "", links: Iterable[tuple[str, str]] = ()) -> table.Panel:
    """A table of what is now: a row for each series, its labels as columns."""
    left_out = dict.fromkeys(("Time", "__name__", "instance", "job"), True)
    return (
        table.Panel()
        .title(title)
        .description(about)
        .unit(unit)
        .datasource(SOURCE)
        .with_target(prometheus.Dataquery().expr(expr).instant().format(PromQueryFormat.TABLE).ref_id("A"))
        .with_transformation(DataTransformerConfig(id_val="organize", options={"excludeByName": left_out}))
        .data_links([dashboard.DashboardLink(name).url(url) for name, url in links])
    )


def _queries(targets: Iterable[Target]) -> list[prometheus.Dataquery]:
    return [
        prometheus.Dataquery().expr(expr).legend_format(legend).range().ref_id(chr(ord("A") + place))
        for place, (expr, legend) in enumerate(targets)
    ]
