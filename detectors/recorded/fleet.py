"""A range of a fleet's exporters judged like a recorded folder: samples window by window, facts beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.configured_detectors import chosen
from trainwarden.detectors.job.samples import Entity, FamilySamples
from trainwarden.detectors.recorded.findings import job_object
from trainwarden.detectors.recorded.replay import replay
from trainwarden.prometheus.facts import facts_of, silent_nodes
from trainwarden.prometheus.fleet import FamilyRange
from trainwarden.prometheus.reading import Fleet
from trainwarden.recorded.job import RecordedJob
from trainwarden.records import IncidentRecord
from trainwarden.settings import DetectionSettings

Floats = npt.NDArray[np.float64]
FACTS: Final = ("gpu_xid_state", "nic_rdma_link_state", "nic_link_state")
"""What events are made of (`trainwarden.prometheus.facts`)."""
DERIVED: Final = {
    "gpu_throttle_thermal_state": "gpu_clock_event_reasons_state",
    "gpu_throttle_hardware_state": "gpu_clock_event_reasons_state",
    "gpu_throttle_power_state": "gpu_clock_event_reasons_state",
}
"""Metrics that exporters do not have, and what they follow from (`trainwarden.prometheus.exporters.states_of`)."""
WHOLE: Final = "fleet"


@dataclass(frozen=True, slots=True)
class FleetJob:
    """A part of a fleet that is judged as one job."""

    name: str
    families: Mapping[str, FamilyRange]


class FleetSamples:
    """Hands out the samples of a fleet up to a time, each once (`trainwarden.detectors.recorded.replay.Samples`)."""

    def __init__(self, families: Sequence[FamilyRange]) -> None:
        self._families = families
        self._entities = [tuple(Entity(who.node, who.device) for who in one.rows) for one in families]
        self._places = [0] * len(families)
        self.times_s: Floats = np.unique(np.concatenate([np.zeros(0), *(one.column_s for one in families)]))
        self.until_s = -np.inf

    def pop_new(self) -> tuple[FamilySamples, ...]:
        """What is new since the last call."""
        found = []
        for number, (family, entities) in enumerate(zip(self._families, self._entities, strict=True)):
            new, end = self._places[number], int(np.searchsorted(family.column_s, self.until_s, side="right"))
            if end > new:
                self._places[number] = end
                values = family.values[:, :, new:end].astype(np.float64)
                times_s = np.where(np.isfinite(values).any(axis=1), family.column_s[new:end], np.nan)
                found.append(
                    FamilySamples(
                        family=family.per, names=family.names, rows=np.arange(len(entities)), entities=entities,
                        roles=family.models, values=values, times_s=times_s,
                    )
                )  # fmt: skip
        return tuple(found)


def wanted_metrics(settings: DetectionSettings, names: Sequence[str]) -> frozenset[str] | None:
    """What is to be read for detectors `names`; None = everything.

    Raises
    ------
    ConfigError
        If a detector does not exist or a setting is wrong.
    """
    made = [one.made() for one in chosen(settings, names).values() if one.role.reads == "samples"]
    asked = [one.role.metrics for one in made if one.role.metrics or one.role.past]  # settings may name further ones
    if not all(asked):
        return None
    wanted = {*FACTS, *(name for metrics in asked for name in metrics)}
    return frozenset(wanted | {DERIVED[name] for name in wanted if name in DERIVED})


def jobs_of(fleet: Fleet) -> list[FleetJob]:
    """The fleet by its label; ports and hosts, which have none, go with every job that has a GPU on their node."""
    gpus = fleet.families.get("gpu")
    labelled = {group for one in fleet.families.values() for group in one.groups if group is not None}
    if not labelled:
        return [FleetJob(WHOLE, fleet.families)]
    jobs = []
    for name in sorted(labelled):
        nodes = (
            {who.node for who, group in zip(gpus.rows, gpus.groups, strict=True) if group == name} if gpus else set()
        )
        parts = {}
        for per, family in fleet.families.items():
            of_job = [group == name or (group is None and per != "gpu" and who.node in nodes)
                      for who, group in zip(family.rows, family.groups, strict=True)]  # fmt: skip
            if any(of_job):
                parts[per] = family.part(np.flatnonzero(of_job).tolist())
        jobs.append(FleetJob(name, parts))
    return jobs


def judge_fleet_job(
    job: FleetJob,
    settings: DetectionSettings,
    names: Sequence[str],
    progress: Callable[[float], None] = lambda share: None,
) -> tuple[dict[str, Any], list[IncidentRecord]]:
    """The object of one job (contracts: as of a recorded folder) and its incidents; reasons end in the GPU's UUID."""
    facts = facts_of(dict(job.families), job.name)
    samples = FleetSamples(list(job.families.values()))
    recorded = RecordedJob(job.name, Path())
    result = replay(recorded, settings, names=names, facts=facts, samples=samples, progress=progress)
    uuids: dict[tuple[str, str], set[str]] = {}  # several, if GPUs were exchanged or numbered anew
    for who in (who for one in job.families.values() for who in one.rows if who.uuid):
        uuids.setdefault((who.node, who.device), set()).add(who.uuid)
    result.incidents[:] = [_with_uuids(record, uuids) for record in result.incidents]
    answer = job_object(result)
    answer["input"] |= _input(job)
    if silent := silent_nodes(dict(job.families)):
        answer["silent"] = silent
    return answer, result.incidents


def _input(job: FleetJob) -> dict[str, Any]:
    families = job.families.values()
    times_s = [float(time_s) for one in families for time_s in (one.first_s.min(), one.last_s.max())]
    return {
        "metrics_rows": sum(one.measured for one in families),
        "entities": sum(len(one.rows) for one in families),
        "metrics": sum(len(one.names) for one in families),
        "nodes": len({who.node for one in families for who in one.rows}),
        "span_s": max(times_s) - min(times_s) if times_s else None,
    }


def _with_uuids(record: IncidentRecord, uuids: Mapping[tuple[str, str], set[str]]) -> IncidentRecord:
    suspects = []
    for one in record.suspects:
        (uuid, *more) = uuids.get((one.node or "", one.device or ""), {""})
        told = f"{one.reason} ({uuid})" if uuid and not more and uuid not in one.reason else one.reason
        suspects.append(msgspec.structs.replace(one, reason=told))
    return msgspec.structs.replace(record, suspects=tuple(suspects))
