"""Dead letters: what could not be decoded, or broke whoever handled it, kept for a person to look at."""

from __future__ import annotations

from typing import Final

from trainwarden.errors import RecordError
from trainwarden.protocols import Message
from trainwarden.records import DeadLetter
from trainwarden.topics import topic_of

KEPT_BYTES: Final = 64 * 1024  # enough to see what it was; in base64 it stays far below `topics.MAX_RECORD_BYTES`
KEPT_REASON_CHARS: Final = 1_000


def letter_of(message: Message, error: Exception) -> DeadLetter:
    """The dead letter of a record that breaks whoever handles it.

    Examples
    --------
    >>> from trainwarden.records import EventRecord
    >>> event = EventRecord(id="e1", job="j", node="n", time_s=1.0, kind="xid")
    >>> letter_of(Message("trainwarden.events", 2, 7, 1.0, "j", event), KeyError("x")).reason
    "KeyError: 'x'"
    """
    try:
        value = topic_of(message.record).encode(message.record)
    except RecordError:
        value = b""
    reason = f"{type(error).__name__}: {error}"[:KEPT_REASON_CHARS]
    return DeadLetter(
        topic=message.topic, partition=message.partition, offset=message.offset, reason=reason, value=value[:KEPT_BYTES]
    )
