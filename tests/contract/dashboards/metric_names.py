"""Every metric that we tell Prometheus, read from the code, and the names that an expression asks for."""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.house import parsed
from tests.places import ROOT
from trainwarden.catalogue import CATALOGUE
from trainwarden.dashboards.alerts.prometheus import RECORDINGS
from trainwarden.dashboards.exposition import families

LOOPS = ("detector", "engine", "trainer", "archive", "serve")
PLACES = {
    "collectors": ("agent",),
    "detectors": ("detector",),
    "actions": ("engine",),
    "actions/coordinator": ("coordinator",),
    "actions/keeper": ("keeper",),
    "trainer_offline/service": ("trainer",),
    "trainer_offline/archive": ("archive",),
    "dashboards": ("serve",),
    "trainwarden/commands": ("engine",),
    "trainwarden/service_loop.py": LOOPS,
    "trainwarden/self_metrics.py": ("agent", *LOOPS),
}
"""Where `SelfMetrics` is told something, and of which services."""
PROMETHEUS = {"up", "scrape_duration_seconds", "scrape_samples_scraped"}
WORDS = {
    "by", "without", "on", "ignoring", "group_left", "group_right", "and", "or", "unless", "bool", "offset",
}  # fmt: skip


@cache
def own_names() -> frozenset[str]:
    """Names of `SelfMetrics` calls: their first argument, where it is a constant, behind the service's prefix."""
    found = {f"trainwarden_{name}" for name in CATALOGUE if name.startswith("agent_")}
    for place, services in PLACES.items():
        path = ROOT / place
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            for node in ast.walk(parsed(file)):
                if _tells(node):
                    found |= {f"trainwarden_{service}_{node.args[0].value}" for service in services}
    return frozenset(found)


def _tells(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("count", "gauge")
        and len(node.args) >= 2
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    )


@cache
def known_names() -> frozenset[str]:
    """What an expression may ask for."""
    told = {family.name for family in (*families.OF_JOBS, *families.OF_SERVICES)}
    aliases = {alias for metric in CATALOGUE.values() for alias in metric.aliases}
    return own_names() | told | aliases | {one.name for one in RECORDINGS} | PROMETHEUS


def names_in(expr: str) -> set[str]:
    """Metric names in a PromQL expression.

    Examples
    --------
    >>> sorted(names_in('sum by (a) (rate(x_total{b="c"}[$__rate_interval])) / on (a) y:z > 0'))
    ['x_total', 'y:z']
    """
    bare = re.sub(r'"(?:[^"\\]|\\.)*"', "", expr)
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", bare)
    bare = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", bare)
    bare = re.sub(r"\b\d+(\.\d+)?(e[+-]?\d+)?(ms|[smhdwy])?\b", " ", bare)
    words = re.findall(r"[A-Za-z_:$][A-Za-z0-9_:]*(?!\s*\()\b", bare)
    calls = set(re.findall(r"([A-Za-z_:][A-Za-z0-9_:]*)\s*\(", bare))
    return {word for word in words if word not in WORDS and word not in calls and not word.startswith("$")} - {
        word for word in re.findall(r"([a-z_]+)\s+by\b", bare)
    }
