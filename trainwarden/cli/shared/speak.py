"""A person's word, on its way to the engine: signed where there is a key."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from trainwarden.commands.keys import Signer
from trainwarden.commands.trust import Trust, in_order, signed
from trainwarden.protocols import Bus, Message
from trainwarden.records import CommandRecord
from trainwarden.settings import Settings
from trainwarden.topics import COMMANDS


def speak(bus: Bus, command: CommandRecord, key: Path | None, settings: Settings) -> CommandRecord:
    """Keep `command` on the bus, signed by `key` or ``commands.key``, whose name it is then said by.

    Raises
    ------
    ConfigError
        If the key cannot be used, or the keys that are trusted here say that the engine would not hear it.
    """
    path = key or settings.commands.key
    signer = None if path is None else Signer.of_file(path, "--key" if key else "commands.key")
    if signer is not None:
        command = msgspec.structs.replace(command, by=signer.name)
    said = signed(command, signer, Trust.of(settings.commands.trusted), time.time())
    bus.publish(COMMANDS, said.job, said)
    bus.flush()
    return said


def heard(messages: Iterable[Message], settings: Settings) -> Iterator[Message]:
    """Those of `messages` that count, by the keys that are trusted here."""
    trust = Trust.of(settings.commands.trusted)
    return (message for message in in_order(messages) if trust.refusal(message) is None)
