"""Whose words the engine obeys, and its own: what is refused is counted, and logged once."""

from __future__ import annotations

import logging
from typing import Final, get_args

from trainwarden.clock import Clock
from trainwarden.commands.builders import latch
from trainwarden.commands.keys import Signer, signer_of
from trainwarden.commands.trust import Reason, Refusal, Trust, signed
from trainwarden.errors import ConfigError
from trainwarden.protocols import Message
from trainwarden.records import ActionRecord, CommandRecord, Record
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import CommandsSettings

log = logging.getLogger("trainwarden.engine")

RECENT_S: Final = 3_600.0  # words are kept for ever: older ones, refused at each start, would be counted each time
MOST_LOGGED: Final = 1_000  # names are free: who floods the topic must not flood the log


class CommandGate:
    """Between the topic of commands and the engine.

    Parameters
    ----------
    signer : Signer, optional
        The engine's own key. A latch is its word on the bus, and has to be believed after a restart.

    Raises
    ------
    ConfigError
        If words have to be signed, and a latch signed by the engine would not count.
    """

    def __init__(self, trust: Trust, signer: Signer | None, clock: Clock, metrics: SelfMetrics) -> None:
        self._trust, self._signer, self._clock, self._metrics = trust, signer, clock, metrics
        self._since_s = clock.now_s() - RECENT_S
        self._logged: set[tuple[str, str]] = set()
        self._counted: dict[int, int] = {}  # by partition, the place of the last one: what is read again is no news
        action = ActionRecord(id="", incident="", job="", kind="ignore", outcome="proposed", at_s=0.0, why="")
        try:
            signed(latch(action, "", "", 0.0), signer, trust, 0.0)
        except ConfigError as error:
            raise ConfigError(
                f"commands.key: the engine needs a trusted key with the right 'latch' ({error})"
            ) from error
        for reason in get_args(Reason) if trust.asks else ():
            self._count(reason, 0)

    @classmethod
    def of(cls, settings: CommandsSettings, clock: Clock, metrics: SelfMetrics) -> CommandGate:
        """The gate that `settings` ask for.

        Raises
        ------
        ConfigError
            If the key or the file of trusted keys cannot be used.
        """
        return cls(Trust.of(settings.trusted), signer_of(settings), clock, metrics)

    @property
    def asks(self) -> bool:
        """Whether words have to be signed."""
        return self._trust.asks

    def admits(self, message: Message) -> bool:
        """Whether what `message` carries is to be heard: anything but a command that does not count."""
        command = message.record
        if not isinstance(command, CommandRecord) or (refusal := self._trust.refusal(message)) is None:
            return True
        if message.offset > self._counted.get(message.partition, -1):
            self._counted[message.partition] = message.offset
            self._count(refusal.reason, int(message.time_s > self._since_s))
            self._log(command, refusal)
        return False

    def sealed(self, record: Record) -> Record:
        """`record` as it should go to the bus: a command is signed."""
        if self._signer is None or not isinstance(record, CommandRecord):
            return record
        return self._signer.sign(record, self._clock.now_s())

    def _log(self, command: CommandRecord, refusal: Refusal) -> None:
        claimed = command.by[:80] if command.signature is None else command.signature.by[:80]
        if (claimed, refusal.reason) in self._logged or len(self._logged) >= MOST_LOGGED:
            return
        self._logged.add((claimed, refusal.reason))
        fields = {"command": command.id[:80], "kind": command.kind, "job": command.job[:80], "by": command.by[:80]}
        log.warning("command refused", extra={"fields": {**fields, "claims": claimed, "why": refusal.why}})

    def _count(self, reason: str, times: int) -> None:
        self._metrics.count("commands_refused_total", "Words on the bus that do not count.", times, reason=reason)
