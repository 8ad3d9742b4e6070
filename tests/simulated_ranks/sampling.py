"""A simulated job as the detection service sees it live, with agents that grant its requests for denser samples."""

from __future__ import annotations

from tests.simulated_ranks.records import EVERY, START_S, records_of_step
from tests.simulated_ranks.steps import Ranks
from trainwarden.detectors.configured_detectors import chosen, rule
from trainwarden.detectors.job_monitor import JobMonitor
from trainwarden.records import CollectivesRecord, EventRecord, IncidentRecord, SamplingRecord
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import DetectionSettings

HEARD_S = 2.5  # from a request to the files of the ranks


def watched(ranks: Ranks, steps: int, *, granted: bool = True) -> tuple[list[IncidentRecord], list[SamplingRecord]]:
    """Incidents as they were opened, and requests, of `steps` steps; every 64th is sampled, and what is asked for."""
    detectors = {name: choice.made() for name, choice in chosen(DetectionSettings(), None).items()}
    watch = JobMonitor("job", detectors, rule(DetectionSettings()), SelfMetrics("simulated"))
    fields = {"world_size": ranks.layout.ranks}
    watch.state.feed(EventRecord(id="s", job="job", node="", time_s=START_S, kind="job_start", fields=fields))
    incidents: list[IncidentRecord] = []
    requests: list[SamplingRecord] = []
    end_s = START_S
    for number in range(steps):
        calls, took_s = ranks.step()
        end_s += took_s
        asked = any(one.time_s + HEARD_S <= end_s and one.from_step <= number < one.until_step for one in requests)
        for record in records_of_step(ranks, calls, number, end_s, took_s):
            if not isinstance(record, CollectivesRecord) or number % EVERY == 0 or (asked and granted):
                watch.state.feed(record)
        for found in watch.score(end_s):
            if isinstance(found, IncidentRecord):
                incidents.append(found)
            elif isinstance(found, SamplingRecord):
                requests.append(found)
    return incidents, requests
