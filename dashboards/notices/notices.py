"""From what is new in the overview to notices: each state of an incident or action once while the process lives."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Final

import httpx
import msgspec

from trainwarden.clock import Clock
from trainwarden.dashboards.explain.explanation import explain, opening
from trainwarden.dashboards.notices.courier import Courier
from trainwarden.dashboards.notices.targets import Target
from trainwarden.dashboards.notices.texts import News, as_json, as_slack
from trainwarden.dashboards.overview.job import waits
from trainwarden.dashboards.overview.overview import Overview
from trainwarden.records import ActionRecord, IncidentRecord, Record
from trainwarden.self_metrics import SelfMetrics

MAX_TOLD: Final = 20_000
TOLD_OUTCOMES: Final = frozenset({"done", "failed"})


class Notices:
    """Listens to an overview; what came before it was ready is history and is told to nobody.

    Parameters
    ----------
    client : httpx.Client
        Of all targets.
    """

    def __init__(
        self,
        overview: Overview,
        targets: Sequence[Target],
        clock: Clock,
        metrics: SelfMetrics,
        *,
        client: httpx.Client | None = None,
    ) -> None:
        self._overview = overview
        self._clock = clock
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs whole addresses, and those of chats are secrets
        client = client or httpx.Client(follow_redirects=False)
        self.couriers = [Courier(target, client, clock, metrics) for target in targets]
        self._told: dict[tuple[str, str, str | None, int], None] = {}
        overview.listen(self.apply)

    def start(self) -> None:
        """A thread for each target: one that is slow holds up no other."""
        for courier in self.couriers:
            threading.Thread(target=courier.run, name=f"notices-{courier.target.host}", daemon=True).start()

    def apply(self, record: Record) -> None:
        """Offer what is worth telling to those who want it; called with the overview's lock held."""
        event = _event(record)
        if event is None or not isinstance(record, IncidentRecord | ActionRecord):
            return
        wanted = self._not_told(event, record)
        if not wanted or not self._overview.ready:
            return
        news = self._news(event, record)
        if news.incident is not None and self._overview.silences.over(news.incident, self._clock.now_s()):
            for courier in wanted:
                courier.count("silenced")
            return
        bodies = {"json": as_json, "slack": as_slack}
        for courier in wanted:
            courier.offer(msgspec.json.encode(bodies[courier.target.settings.style](news)))

    def _not_told(self, event: str, record: IncidentRecord | ActionRecord) -> list[Courier]:
        """Whose wish it is and who has not been told; from now on they have."""
        if event == "incident.closed":  # each revision comes once
            for place in range(len(self.couriers)):
                self._told.pop((record.id, "incident.opened", None, place), None)
        incident = self._incident_of(record)
        plan = record.plan_digest if event == "action.proposed" and isinstance(record, ActionRecord) else None
        wanted = []
        for place, courier in enumerate(self.couriers):
            told = (record.id, event, plan, place)
            if told not in self._told and courier.target.wants(incident):
                wanted.append(courier)
                self._told[told] = None
                if len(self._told) > MAX_TOLD:
                    del self._told[next(iter(self._told))]
        return wanted

    def _incident_of(self, record: IncidentRecord | ActionRecord) -> IncidentRecord | None:
        if isinstance(record, IncidentRecord):
            return record
        return self._overview.jobs[record.job].incidents.get(record.cause)

    def _news(self, event: str, record: IncidentRecord | ActionRecord) -> News:
        job = self._overview.jobs[record.job]
        action = record if isinstance(record, ActionRecord) else None
        incident = self._incident_of(record)
        explanation = None
        if incident is not None:
            actions = [one for one in job.actions.values() if one.incident == incident.id]
            explanation = explain(incident, actions, opening(incident, job.verdicts))
        return News(event=event, job=record.job, incident=incident, action=action, explanation=explanation)


def _event(record: Record) -> str | None:
    """What has happened, if it is worth telling."""
    if isinstance(record, IncidentRecord):  # one that gets graver is as new to whoever wants only such
        return "incident.closed" if record.state == "closed" else "incident.opened"
    if isinstance(record, ActionRecord) and (record.outcome in TOLD_OUTCOMES or waits(record)):
        return f"action.{record.outcome}"
    return None
