"""What a notice says, as JSON for programs and as a message for a chat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from trainwarden.dashboards.explain.explanation import Explanation
from trainwarden.json_objects import action_object, incident_object
from trainwarden.records import ActionRecord, IncidentRecord

VERSION: Final = 1
MOST_EVIDENCE: Final = 5
SECTION_CHARS: Final = 3_000  # Slack takes no more in a section
GRAVE: Final = "\N{MODIFIER LETTER GRAVE ACCENT}"  # ends no block of code, and no quotation of a shell
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
            about = f"{self.incident.kind} ({self.incident.severity}) of job {self.job} {self.incident.state}"
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
