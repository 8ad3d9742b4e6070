"""The one tree of errors.

::

    WardenError
    ├── ConfigError        a person's mistake in settings or on the command line (exit code 2)
    ├── DataError          a recorded folder or file that cannot be read (exit code 2)
    ├── RecordError        bytes on the bus that are no record of ours (dead letter, never fatal)
    ├── BusError           the bus refused or lost something
    │   ├── BusUnavailable     the bus is away; worth retrying later
    │   └── RecordsRefused     the bus will never take these records; everything else goes on
    ├── NotJudged          what a question needs was not there: a run, a service of ours (exit code 3)
    ├── CollectorError     a source could not be read this time
    ├── DetectorError      a detector could not score this window
    └── LauncherError      the launcher refused or failed an action
        └── LauncherUnavailable    the launcher cannot be reached; what is true is unknown

Plug-ins raise these; only the agent, the service loop and the engine catch them.
"""

from __future__ import annotations


class WardenError(Exception):
    """Root of every error that trainwarden raises on purpose."""


class ConfigError(WardenError):
    """A setting is wrong; the message is one clear sentence for the person who wrote it."""


class DataError(WardenError):
    """A recorded file or folder cannot be read; the message names file, line and column where known."""


class RecordError(WardenError):
    """Bytes that do not decode to a record of the topic they came from."""


class BusError(WardenError):
    """The bus refused or lost a record."""


class BusUnavailable(BusError):
    """The bus cannot be reached now; nothing that was not acknowledged may be taken as kept."""


class RecordsRefused(BusError):
    """The bus refuses some records for good and has let go of them; all others stay queued.

    Attributes
    ----------
    records : tuple of (topic, key, value)
        What was refused, as it was encoded.
    is_repeated : bool
        Whether each of their topics refused the record before as well: then nothing new is to be logged.
    """

    def __init__(self, text: str, records: tuple[tuple[str, str, bytes], ...], *, is_repeated: bool = False) -> None:
        super().__init__(text)
        self.records, self.is_repeated = records, is_repeated


class NotJudged(WardenError):
    """Nothing has run, or a service of ours was not there, so the question has no answer.

    Parameters
    ----------
    reason : str
    remedy : str
        What to do about it, where that is known.
    """

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(f"{reason}; {remedy}" if remedy else reason)
        self.reason, self.remedy = reason, remedy


class CollectorError(WardenError):
    """A source could not be read at this tick."""


class DetectorError(WardenError):
    """A detector could not score a window."""


class LauncherError(WardenError):
    """The launcher refused an action or failed at it."""


class LauncherUnavailable(LauncherError):
    """The launcher cannot be reached, so nothing is known about the action."""
