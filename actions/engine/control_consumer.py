"""What every engine hears, whichever jobs are its own: people's words, what other engines do, and facts of the jobs.

Incidents are shared out among the members of a group. A stop must reach all of them, and an approval whoever owns its
job, so these topics are read here by readers of its own, before every decision and every call of a launcher. Words and
deeds are apart from events, of which there may always be more.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, Final

from trainwarden.protocols import Bus, Consumer, Message
from trainwarden.topics import ACTIONS, COMMANDS, EVENTS, Topic

WORDS_AND_DEEDS: Final[tuple[Topic[Any], ...]] = (COMMANDS, ACTIONS)
FACTS: Final[tuple[Topic[Any], ...]] = (EVENTS,)
JOINING_S: Final = 0.1  # how long one call waits for the bus to let the reader in: Kafka wants several answers for that
OVERLAP_S: Final = 300.0  # what came while the reader was being let in is read again; the bus's clock may be off


class ControlConsumer:
    """A reader that belongs to this engine alone.

    Parameters
    ----------
    topics : sequence of Topic
        What it reads.
    now_s : float
        Wall-clock seconds; what was written well before is known already.

    Raises
    ------
    BusUnavailable
        If the bus is away.
    """

    def __init__(self, bus: Bus, topics: Sequence[Topic[Any]], now_s: float) -> None:
        self._consumer: Consumer = bus.consumer(topics, f"engine-hears-{uuid.uuid4().hex}")
        self._since_s = now_s - OVERLAP_S
        self._placed = False

    def new(self) -> Sequence[Message] | None:
        """What was written since the last call, repeats among it; None while the bus has not let the reader in.

        Raises
        ------
        BusUnavailable
            If the bus is away.
        """
        found: list[Message] = []
        while messages := self._consumer.poll(0.0 if self._placed else JOINING_S):
            if self._placed:
                found += messages
        if not self._consumer.assignment():
            self._placed = False  # not let in yet, or put out: what is written meanwhile is read once it is let in
            return None
        if not self._placed:
            self._consumer.seek_to_time(self._since_s)
            self._placed = True
            return self.new()
        return found

    def behind(self) -> bool:
        """Whether more was written than `new` has returned: a bus may know of more than it hands out at once.

        Raises
        ------
        BusUnavailable
            If the bus is away.
        """
        lag = self._consumer.lag()
        return lag is None or lag > 0
