"""What `trainwarden plan NAME` may be asked: one file per planner. CATALOG is the table of what there is.

Read `trainwarden.actions.planners.questions.protocol` first.
"""

from __future__ import annotations

from typing import Final

CATALOG: Final[dict[str, str]] = {
    "microbatches": "trainwarden.actions.planners.questions.microbatches:Microbatches",
    "topology": "trainwarden.actions.planners.questions.topology:Topology",
    "ladder": "trainwarden.actions.planners.questions.ladder:LadderPlan",
    "cluster": "trainwarden.actions.planners.questions.cluster:Cluster",
    "interval": "trainwarden.actions.planners.questions.interval:Interval",
}
