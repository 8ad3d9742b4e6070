"""From what is new in the overview to notices: each state of an incident or action once while the process lives.

Brings notices to one target: in order, tried again with longer and longer waits, from a queue of a fixed size.

What a notice says, as JSON for programs and as a message for a chat.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from trainwarden.clock import Clock
from trainwarden.dashboards.explain.explanation import Explanation, explain, opening
from trainwarden.dashboards.notices.targets import Target
from trainwarden.dashboards.overview.job import waits
from trainwarden.dashboards.overview.overview import Overview
from trainwarden.json_objects import action_object, incident_object
from trainwarden.records import ActionRecord, IncidentRecord, Record
from trainwarden.self_metrics import SelfMetrics
from trainwarden.signing import signed_headers

if TYPE_CHECKING:
    import httpx

VERSION: Final = 1
MOST_EVIDENCE: Final = 5
SECTION_CHARS: Final = 3_000  # Slack takes no more in a section
GRAVE: Final = "\N{MODIFIER LETTER GRAVE ACCENT}"  # ends no block of code, and no quotation of a shell
# SeverityNumber of OpenTelemetry's data model of logs: FATAL, ERROR, WARN; INFO.
OTLP_SEVERITIES: Final = {"sev1": 21, "sev2": 17, "sev3": 13}
INFORMATION: Final = 9
BUTTON_CHARS: Final = 2_000  # Slack takes no more in a button's value


class News(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to tell: `event` is ``incident.opened``, ``action.done`` and the like."""

    event: str
    job: str
    incident: IncidentRecord | None
    action: ActionRecord | None
    explanation: Explanation | None

    @property
    def title(self) -> str:
        """One line."""
        if self.action is not None:
            about = f"{self.action.kind} of job {self.job} {self.event.partition('.')[2]}: {self.action.why}"
        else:
            assert self.incident is not None
            about = f"{self.incident.kind} ({self.incident.severity}) of job {self.job} {self.incident.standing}"
            about += f": {self.incident.reason}"
        return " ".join("".join(letter if letter.isprintable() else " " for letter in about[:600]).split())


def as_json(news: News) -> dict[str, Any]:
    """The body for a program."""
    told = news.explanation
    return {
        "version": VERSION,
        "event": news.event,
        "job": news.job,
        "text": news.title,
        "incident": None if news.incident is None else incident_object(news.incident),
        "action": None if news.action is None else action_object(news.action),
        "where": told.where if told else None,
        "evidence": list(told.evidence) if told else [],
        "next": list(told.next) if told else [],
    }


def as_slack(news: News) -> dict[str, Any]:
    """The body for a chat: title, evidence, commands, and buttons where an action waits."""
    told = news.explanation
    blocks: list[dict[str, Any]] = [_section(f"*{_plain(news.title)}*")]
    if told is not None and told.evidence:
        blocks.append(_section("\n".join(f"• {_plain(line)}" for line in told.evidence[:MOST_EVIDENCE])))
    if told is not None and news.event != "incident.closed":
        blocks.append(_section("```" + _whole_lines(told.next[:MOST_EVIDENCE]) + "```"))
    if (action := news.action) is not None and news.event == "action.proposed":
        value = msgspec.json.encode({"action": action.id, "plan_digest": action.plan_digest}).decode()
        if len(value) <= BUTTON_CHARS:
            blocks.append({"type": "actions", "elements": [_button(word, value) for word in ("approve", "deny")]})
    return {"text": _plain(news.title), "blocks": blocks}


def as_otlp(news: News) -> dict[str, Any]:
    """The body for an OpenTelemetry collector's ``/v1/logs``: one log record (OTLP 1, its encoding as JSON).

    The time is that of the record, so what waited for a collector that was away keeps its place.
    """
    record = news.action or news.incident
    assert record is not None
    at_s = record.finished_at_s or record.at_s if isinstance(record, ActionRecord) else record.updated_at_s
    named: dict[str, Any] = {"trainwarden.job": news.job}
    if (incident := news.incident) is not None:
        named |= {"trainwarden.incident.id": incident.id, "trainwarden.incident.kind": incident.kind}
        named["trainwarden.incident.severity"] = incident.severity
        named["trainwarden.suspect.nodes"] = [one.node for one in incident.suspects if one.node is not None]
        named["trainwarden.suspect.ranks"] = [one.rank for one in incident.suspects if one.rank is not None]
        named["trainwarden.suspect.devices"] = [one.device for one in incident.suspects if one.device is not None]
    if (action := news.action) is not None:
        named |= {"trainwarden.action.id": action.id, "trainwarden.action.kind": action.kind}
    over = news.event in ("incident.closed", "action.done")
    severity = "sev3" if incident is None else incident.severity
    log_record = {
        "timeUnixNano": str(int(at_s * 1e9)),
        "severityNumber": INFORMATION if over else OTLP_SEVERITIES[severity],
        "severityText": "info" if over else severity,
        "eventName": f"trainwarden.{news.event}",
        "body": {"stringValue": news.title},
        "attributes": _attributes(named),
    }
    resource = {"attributes": _attributes({"service.name": "trainwarden"})}
    return {
        "resourceLogs": [
            {"resource": resource, "scopeLogs": [{"scope": {"name": "trainwarden"}, "logRecords": [log_record]}]}
        ]
    }


def _attributes(named: dict[str, Any]) -> list[dict[str, Any]]:
    """`named` as OTLP has it; an empty list is left out."""
    return [{"key": key, "value": _value(value)} for key, value in named.items() if value != []]


def _value(value: str | int | list[Any]) -> dict[str, Any]:
    if isinstance(value, list):
        return {"arrayValue": {"values": [_value(one) for one in value]}}
    return {"stringValue": value} if isinstance(value, str) else {"intValue": str(value)}  # 64 bits are text in JSON


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text[:SECTION_CHARS]}}


def _whole_lines(commands: Sequence[str]) -> str:
    """`commands` as far as there is room: half a command is none, and one without its end may be another."""
    lines, room = [], SECTION_CHARS - 2 * len("```")
    for line in map(_plain, commands):
        room -= len(line) + 1
        if room >= 0:
            lines.append(line)
    return "\n".join(lines) or "trainwarden incidents --open"


def _button(word: str, value: str) -> dict[str, Any]:
    text = {"type": "plain_text", "text": word.capitalize()}
    return {"type": "button", "action_id": word, "text": text, "value": value}


def _plain(text: str) -> str:
    """`text` as a chat shows it and does not obey it, nor a shell that a command of it is pasted into."""
    text = text.replace("`", GRAVE)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


log = logging.getLogger("trainwarden.serve")

MOST_WAITING: Final = 1_000
WAITS_S: Final = (1.0, 4.0, 15.0, 60.0)
AGAIN: Final = frozenset({408, 425, 429})  # of what is the asker's fault, these pass


class Courier:
    """Of one target.

    Parameters
    ----------
    client : httpx.Client
        Follows no redirect: what is sent may carry a token.
    """

    def __init__(self, target: Target, client: httpx.Client, clock: Clock, metrics: SelfMetrics) -> None:
        self.target = target
        self._client = client
        self._clock = clock
        self._metrics = metrics
        self._waiting: queue.Queue[bytes] = queue.Queue(MOST_WAITING)

    def offer(self, body: bytes) -> None:
        """Have `body` brought; where too many wait already it is dropped and counted. Never waits."""
        try:
            self._waiting.put_nowait(body)
        except queue.Full:
            self.count("dropped")

    def run(self) -> None:
        """Bring what is offered, for as long as the process lives."""
        while True:
            self.bring(self._waiting.get())

    def bring_all(self) -> None:
        """Bring what waits now."""
        while not self._waiting.empty():
            self.bring(self._waiting.get())

    def bring(self, body: bytes) -> None:
        """Bring one, however often it must be tried."""
        for wait_s in (*WAITS_S, None):
            said = self._try(body)
            if said is None:
                self.count("sent")
                return
            if wait_s is None or (said.isdigit() and int(said) < 500 and int(said) not in AGAIN):
                break
            self._clock.sleep(wait_s)
        self.count("failed")
        log.warning("notice was not taken", extra={"fields": {"host": self.target.host, "said": said}})

    def count(self, outcome: str) -> None:
        """One more notice that came to this."""
        self._metrics.count("notices_total", "Notices by what became of them.", host=self.target.host, outcome=outcome)

    def _try(self, body: bytes) -> str | None:
        """None if it was taken, else what was said instead."""
        import httpx

        headers = {"content-type": "application/json", "user-agent": "trainwarden"}
        if self.target.token is not None:
            headers["authorization"] = f"Bearer {self.target.token}"
        if self.target.secret is not None:
            headers |= signed_headers(self.target.secret, body, self._clock.now_s())
        try:
            # Only the head is read: nothing that is answered is of use, and it may be endless.
            with self._client.stream(
                "POST", self.target.url, content=body, headers=headers, timeout=self.target.settings.timeout_s
            ) as response:
                return None if response.is_success else str(response.status_code)
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # the last of a host that is no name
            return type(error).__name__


MAX_TOLD: Final = 20_000
TOLD_OUTCOMES: Final = frozenset({"done", "failed"})


def _couriers(
    targets: Sequence[Target], client: httpx.Client | None, clock: Clock, metrics: SelfMetrics
) -> list[Courier]:
    import httpx  # a page that sends no notices starts without it

    client = client or httpx.Client(follow_redirects=False)
    return [Courier(target, client, clock, metrics) for target in targets]


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
        self.couriers = _couriers(targets, client, clock, metrics) if targets else []
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
        bodies = {"json": as_json, "slack": as_slack, "otlp": as_otlp}
        for courier in wanted:
            courier.offer(msgspec.json.encode(bodies[courier.target.settings.style](news)))

    def _not_told(self, event: str, record: IncidentRecord | ActionRecord) -> list[Courier]:
        """Whose wish it is and who has not been told; from now on they have."""
        other = {"incident.closed": "incident.opened", "incident.opened": "incident.closed"}.get(event)
        for place in range(len(self.couriers)) if other else ():  # what turns again is told again
            self._told.pop((record.id, other or "", None, place), None)
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
        return "incident.opened" if record.wants_action else "incident.closed"
    if isinstance(record, ActionRecord) and (record.outcome in TOLD_OUTCOMES or waits(record)):
        return f"action.{record.outcome}"
    return None
