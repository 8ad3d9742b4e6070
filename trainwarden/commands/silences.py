"""Which silences stand, and over which incidents they lie."""

from __future__ import annotations

import time
from typing import Any, Final

from trainwarden.commands.builders import EVERY_JOB
from trainwarden.records import CommandRecord, IncidentRecord

KEPT_S: Final = 86_400.0  # an ended silence is remembered, so that an older word that comes again does not revive it


class Silences:
    """Silences by what they are of; of each the newest word stands.

    Examples
    --------
    >>> from trainwarden.commands.builders import silence
    >>> silences = Silences()
    >>> silences.apply(silence("ann", 1.0, 100.0, node="n1"), offset=0)
    >>> [one.by for one in silences.standing(99.0)], silences.standing(100.0)
    (['ann'], [])
    """

    def __init__(self) -> None:
        self._words: dict[tuple[str, str | None, str | None], tuple[int, CommandRecord]] = {}

    def apply(self, command: CommandRecord, offset: int) -> None:
        """Take one word in; `offset` is its place on the bus, which keeps the order of what was said."""
        if command.kind != "silence" or command.until_s is None:
            return
        of = (command.job, command.incident_kind, command.node)
        if offset >= self._words.get(of, (0, None))[0]:
            self._words[of] = (offset, command)

    def standing(self, now_s: float) -> list[CommandRecord]:
        """Those that last at `now_s`."""
        return [one for _, one in self._words.values() if one.until_s is not None and one.until_s > now_s]

    def over(self, incident: IncidentRecord, now_s: float) -> CommandRecord | None:
        """The silence that lies over `incident`: over its job, its kind and the node of its first suspect."""
        node = incident.suspects[0].node if incident.suspects else None
        for one in self.standing(now_s):
            of_job = one.job in (EVERY_JOB, incident.job)
            if of_job and one.incident_kind in (None, incident.kind) and one.node in (None, node):
                return one
        return None

    def forget(self, now_s: float) -> None:
        """Let go of those that ended a day ago."""
        before_s = now_s - KEPT_S
        for of, (_, one) in list(self._words.items()):
            if max(one.at_s, one.until_s or 0.0) < before_s:
                del self._words[of]


def silenced_text(command: CommandRecord) -> str:
    """Who has said so, and until when."""
    until = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(command.until_s))
    return f"silenced by {command.by or 'somebody without a name'} until {until}"


def silence_object(command: CommandRecord) -> dict[str, Any]:
    """A silence as people's scripts read it, from the API and the command line."""
    return {
        "id": command.id,
        "job": None if command.job == EVERY_JOB else command.job,
        "kind": command.incident_kind,
        "node": command.node,
        "until_s": command.until_s,
        "by": command.by,
        "at_s": command.at_s,
    }
