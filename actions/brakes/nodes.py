"""How many nodes may be taken out: not too many within a time, of all and of one job, and not where others are ill.

A detector that is wrong, or a switch that takes a row of nodes with it, would otherwise empty a cluster node by node.
What trips here is latched: no more nodes are taken out until a person has looked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from trainwarden.actions.brakes.active_brake import ActiveBrake, BrakeInput
from trainwarden.actions.brakes.history import NODES_OUT, carried_out, counts_s
from trainwarden.commands.builders import EVERY_JOB
from trainwarden.records import ActionRecord, Ratio
from trainwarden.settings import Config

WEEK_S: Final = 7 * 86_400.0  # no longer than the engine remembers
RESET: Final = "until a person resets it (trainwarden actions reset)"
TAKEN: Final = "nodes"  # the names of the two holds
UNKNOWN: Final = "nodes_unknown"
NAMES: Final = 10  # nodes that a sentence names


class NodeLimits(Config, frozen=True, kw_only=True):
    """Within `within_s` at most `at_most` nodes are taken out, of all jobs and by all engines together.

    Of one job at most `share` of its nodes, rounded up. Of its other nodes `least_healthy_share`, rounded up, and
    `least_healthy` nodes in number, have to be healthy.
    """

    at_most: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 5  # EKS stops its repairs over 5 nodes
    share: Ratio = 0.2  # ... or 20 % of them
    within_s: Annotated[float, msgspec.Meta(gt=0.0, le=WEEK_S)] = 3600.0
    least_healthy: Annotated[int, msgspec.Meta(ge=0, le=100_000)] = 0
    least_healthy_share: Ratio = 0.51  # medik8s' minHealthy

    def hold(self, now_s: float, asked: BrakeInput) -> ActiveBrake | None:
        """The brake on taking nodes out, if `asked` would and one is on."""
        if asked.action.kind not in NODES_OUT:
            return None
        if (latch := asked.latch) is not None:
            return ActiveBrake(TAKEN, f"no more nodes are taken out, {RESET}: {latch.why}")
        if not asked.nodes:
            return ActiveBrake(
                UNKNOWN, "the launcher does not tell which nodes the job has; it may go ahead once it does"
            )
        return self._of_all(now_s, asked) or self._of_job(now_s, asked) or self._ill(asked)

    def _of_all(self, now_s: float, asked: BrakeInput) -> ActiveBrake | None:
        out = self._out(now_s, asked, asked.actions)
        if len(out | targets(asked.action)) <= self.at_most:
            return None
        said = f"{self._said(out)}, and the limit of all jobs together is {self.at_most}"
        return ActiveBrake(TAKEN, f"{said}; held {RESET}", latches=EVERY_JOB)

    def _of_job(self, now_s: float, asked: BrakeInput) -> ActiveBrake | None:
        action = asked.action
        out = self._out(now_s, asked, (other for other in asked.actions if other.job == action.job))
        of_job = {node.node for node in asked.nodes} | out | targets(action)
        limit = _part(self.share, len(of_job))
        if len(out | targets(action)) <= limit:
            return None
        part = f"{limit} of {len(of_job)} ({self.share:.0%}, rounded up)"
        said = f"{self._said(out)}, and the limit of this job is {part}"
        return ActiveBrake(TAKEN, f"{said}; held {RESET}", latches=action.job)

    def _ill(self, asked: BrakeInput) -> ActiveBrake | None:
        others = {node.node: node.state for node in asked.nodes if node.node not in targets(asked.action)}
        healthy = {name for name, state in others.items() if state in ("healthy", "spare")} - asked.suspected
        least = max(self.least_healthy, _part(self.least_healthy_share, len(others)))
        if len(healthy) >= least:
            return None
        said = f"of the job's {len(others)} other nodes {len(healthy)} are healthy, and {least} have to be"
        ill = _names(others.keys() - healthy)
        return ActiveBrake(
            TAKEN, f"{said}{f' (not healthy: {ill})' if ill else ''}; held {RESET}", latches=asked.action.job
        )

    def _out(self, now_s: float, asked: BrakeInput, actions: Iterable[ActionRecord]) -> set[str]:
        """Nodes that others of `actions` have taken out within the time, or are about to.

        Before its own record is on the bus, an engine goes by its clock and those of others; after that by the bus's.
        """
        own_s = asked.said_s.get(asked.action.id) if asked.action.outcome == "started" else None
        since_s = (now_s if own_s is None else own_s) - self.within_s
        found: set[str] = set()
        for other in actions:
            if other.kind in NODES_OUT and other.id != asked.action.id and carried_out(other):
                said_s = asked.said_s.get(other.id, math.inf)
                going_on = other.outcome == "started"
                if going_on or (counts_s(now_s, other) if own_s is None else said_s) > since_s:
                    found |= targets(other)
        return found

    def _said(self, out: set[str]) -> str:
        names = f" ({_names(out)})" if out else ""
        return f"{len(out)} nodes were taken out within {self.within_s:.0f} s{names}"


def targets(action: ActionRecord) -> set[str]:
    """Nodes that `action` is about."""
    nodes = action.plan.get("nodes")
    return {str(node) for node in nodes} if isinstance(nodes, list | tuple) else set()


def _part(share: float, count: int) -> int:
    """A share of `count`, rounded up as Kubernetes' disruption budgets are; 0.07 of 100 is 7, not 8."""
    return math.ceil(round(share * count, 9))


def _names(nodes: Iterable[str]) -> str:
    found = sorted(nodes)
    return ", ".join(found[:NAMES]) + (f" and {len(found) - NAMES} more" if len(found) > NAMES else "")
