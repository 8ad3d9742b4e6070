"""Decoding for both engines.

What is no record of its topic goes to dead letters, is counted, and stops nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from trainwarden.errors import RecordError
from trainwarden.records import DeadLetter, Record
from trainwarden.topics import DEAD_LETTERS, KEPT_BYTES, KEPT_REASON_CHARS, Topic

log = logging.getLogger("trainwarden.bus")


class Decoder:
    """Bytes to records for one reader; `dead_letters` counts what could not be decoded.

    Parameters
    ----------
    topics : mapping
        Topic by name.
    publish : callable, optional
        Given a `DeadLetter` for each undecodable record. None for a reader that only looks and writes nothing.
    """

    def __init__(self, topics: Mapping[str, Topic[Any]], publish: Callable[[DeadLetter], None] | None) -> None:
        self._topics = topics
        self._publish = publish
        self.dead_letters = 0
        self.unkept = False

    def decode(self, topic: str, partition: int, offset: int, value: bytes | None) -> Record | None:
        """The record, or None once the bytes have been handed to dead letters.

        Raises
        ------
        BusUnavailable
            If the dead letter cannot be queued now; nothing was counted, decode it again later.
        """
        try:
            if value is None:  # a Kafka tombstone, written by another program
                raise RecordError("no value")
            record: Record = self._topics[topic].decode(value)
            return record
        except RecordError as error:
            reason = str(error)
        # A dead letter that is itself undecodable is counted only: else it would breed another one for ever.
        if self._publish is not None and topic != DEAD_LETTERS.name:
            kept = (value or b"")[:KEPT_BYTES]
            cut = reason[:KEPT_REASON_CHARS]
            self._publish(DeadLetter(topic=topic, partition=partition, offset=offset, reason=cut, value=kept))
            self.unkept = True
        self.dead_letters += 1
        fields = {"topic": topic, "partition": partition, "offset": offset, "error": reason[:200]}
        log.warning("record is undecodable", extra={"fields": fields})
        return None

    def flush(self, flush: Callable[[], None]) -> None:
        """Make queued dead letters durable before the reader commits past the records they came from."""
        if self.unkept:
            flush()
            self.unkept = False
