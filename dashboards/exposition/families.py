"""The table of metric families that `trainwarden serve` and the services tell Prometheus. Names never change.

``training_job`` is the run that is watched: ``job`` is Prometheus' own word for what it scrapes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family."""

    name: str
    kind: Literal["gauge", "counter"]
    labels: tuple[str, ...]
    help: str


_JOB: Final = "training_job"

INCIDENTS_OPEN: Final = Family(
    "trainwarden_incidents_open",
    "gauge",
    (_JOB, "kind", "severity"),
    "Incidents that are open, or whose job is down by them.",
)
INCIDENTS: Final = Family(
    "trainwarden_incidents_total", "counter", (_JOB, "kind", "severity"), "Incidents opened; 0 for what never was."
)
DETECTOR_SCORE: Final = Family(
    "trainwarden_detector_score", "gauge", (_JOB, "detector"), "Score of the newest vote, 0..1; absent if it abstains."
)
DETECTOR_ANOMALOUS: Final = Family(
    "trainwarden_detector_anomalous", "gauge", (_JOB, "detector"), "1 if the newest vote is for an anomaly."
)
ANOMALOUS: Final = Family("trainwarden_verdict_anomalous", "gauge", (_JOB,), "1 if the newest verdict is an anomaly.")
VERDICT_TIME: Final = Family(
    "trainwarden_verdict_timestamp_seconds", "gauge", (_JOB,), "When the newest verdict came, Unix time."
)
SUSPECT_SCORE: Final = Family(
    "trainwarden_suspect_score",
    "gauge",
    (_JOB, "rank", "node", "device", "kind"),
    "Suspects of open incidents, 0..1, the ten most likely of a job.",
)
ITERATION: Final = Family("trainwarden_iteration_seconds", "gauge", (_JOB,), "Iteration time, median over ranks.")
ITERATION_HEALTHY: Final = Family(
    "trainwarden_iteration_healthy_seconds", "gauge", (_JOB,), "Median iteration time while no incident was open."
)
STEP: Final = Family("trainwarden_job_step", "gauge", (_JOB,), "Highest step that any rank has finished.")
RANKS: Final = Family("trainwarden_job_ranks", "gauge", (_JOB,), "Ranks that have reported.")
NODES: Final = Family("trainwarden_job_nodes", "gauge", (_JOB,), "Nodes that have reported.")
RANK_COMPUTE: Final = Family(
    "trainwarden_rank_compute_seconds",
    "gauge",
    (_JOB, "rank"),
    'Compute time of an iteration: the ten slowest ranks, and rank="median".',
)
RANK_WAIT: Final = Family(
    "trainwarden_rank_wait_seconds",
    "gauge",
    (_JOB, "rank"),
    "Time that an iteration waits for other ranks, of the ranks of rank_compute_seconds.",
)
ACTIONS: Final = Family("trainwarden_actions_total", "counter", (_JOB, "kind", "outcome"), "Actions by outcome.")
ACTIONS_WAITING: Final = Family(
    "trainwarden_actions_waiting", "gauge", (_JOB,), "Actions that wait for a person's word."
)
TRANSITION: Final = Family(
    "trainwarden_transition_seconds_total",
    "counter",
    (_JOB, "phase"),
    "Time in which survivors of a lost rank went on with its step, or took it back: agreeing on members, forming the "
    "group, handing on state, computing its micro-batches again.",
)
STOPPED: Final = Family("trainwarden_acting_stopped", "gauge", (), "1 while a person has stopped all acting.")
MODEL: Final = Family(
    "trainwarden_model_info", "gauge", ("detector", "version", "alias"), "1 for each model that votes now."
)
NODE_SEEN: Final = Family(
    "trainwarden_node_seen_timestamp_seconds",
    "gauge",
    (_JOB, "node"),
    "When a node's newest heartbeat came, Unix time.",
)
COORDINATOR_SEEN: Final = Family(
    "trainwarden_coordinator_seen_timestamp_seconds",
    "gauge",
    (),
    "When the coordinator last reported jobs that share nodes, Unix time.",
)
HEARTBEAT: Final = Family(
    "trainwarden_heartbeat_timestamp_seconds", "gauge", ("service",), "End of the newest round of work, Unix time."
)
UP: Final = Family("trainwarden_up", "gauge", ("service",), "1 while the bus answers the service, 0 while it is away.")
LAG: Final = Family(
    "trainwarden_bus_lag_records", "gauge", ("service",), "Records on the bus that the service has not handled yet."
)

OF_JOBS: Final = (
    INCIDENTS_OPEN, INCIDENTS, DETECTOR_SCORE, DETECTOR_ANOMALOUS, ANOMALOUS, VERDICT_TIME, SUSPECT_SCORE, ITERATION,
    ITERATION_HEALTHY, STEP, RANKS, NODES, RANK_COMPUTE, RANK_WAIT, ACTIONS, ACTIONS_WAITING, TRANSITION, STOPPED,
    MODEL, NODE_SEEN, COORDINATOR_SEEN,
)  # fmt: skip
"""Told by `trainwarden serve`, from the board."""
OF_SERVICES: Final = (HEARTBEAT, UP, LAG)
"""Told by every service of itself."""
