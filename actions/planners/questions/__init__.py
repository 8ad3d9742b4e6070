"""What `trainwarden plan NAME` may be asked: one file per planner. CATALOG is the table of what there is.

Read `actions.planners.questions.protocol` first.
"""

from __future__ import annotations

from typing import Final

CATALOG: Final[dict[str, str]] = {
    "microbatches": "actions.planners.questions.microbatches:Microbatches",
    "topology": "actions.planners.questions.topology:Topology",
    "ladder": "actions.planners.questions.ladder:LadderPlan",
    "cluster": "actions.planners.questions.cluster:Cluster",
}
