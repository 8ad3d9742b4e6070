"""The last status that the coordinator reported of all jobs: nodes, and WAF now, as planned and with restarts only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from trainwarden.records import TaskRecord, TaskStatus

FRESH_S: Final = 60.0  # it reports each job every 15 s
WORTH: Final = ("now", "planned", "restart_only")


def cluster(tasks: Sequence[TaskRecord], *, fresh: bool) -> dict[str, Any]:
    """Of `tasks`, the newest of each job that is not over, what a person asks about the cluster.

    Parameters
    ----------
    fresh : bool
        Whether the coordinator was heard within `FRESH_S`.

    Examples
    --------
    >>> status = TaskStatus(nodes=("n1",), planned=2, waf={"now": 1.0, "planned": 1.9, "restart_only": 1.0})
    >>> answer = cluster([TaskRecord(id="a", job="a", at_s=0.0, maximum=2, status=status)], fresh=True)
    >>> answer["waf"], answer["tasks"][0]["planned"]
    ({'now': 1.0, 'planned': 1.9, 'restart_only': 1.0}, 2)
    """
    rows, waf, waf_s = [], dict.fromkeys(WORTH, 0.0), dict.fromkeys(WORTH, 0.0)
    for task in tasks:
        status = task.status or TaskStatus()
        for name in WORTH:
            waf[name] += status.waf.get(name, 0.0)
            waf_s[name] += status.waf_s.get(name, 0.0)
        rows.append(
            {
                "job": task.job, "weight": task.weight, "minimum": task.minimum, "maximum": task.maximum,
                "phase": status.phase, "nodes": status.nodes, "planned": status.planned,
                "restart_only": status.restart_only, "throughput": status.throughput, "assumed": status.assumed,
                "waf": status.waf,
            }
        )  # fmt: skip
    last = max(tasks, key=lambda one: one.at_s, default=None)
    status = (last and last.status) or TaskStatus()
    said = {"mode": status.mode, "event": status.event or None} if last else {}
    return {"answered": fresh, **said, "tasks": rows, "waf": waf, "waf_s": waf_s}
