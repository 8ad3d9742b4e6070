"""What `detect` has found, kept as a run, so that explain, incidents and report find it afterwards."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from trainwarden.bus import address as buses
from trainwarden.cli.shared import kept_runs
from trainwarden.errors import WardenError
from trainwarden.records import IncidentRecord
from trainwarden.settings import Settings
from trainwarden.topics import INCIDENTS

log = logging.getLogger("trainwarden.cli")


def keep_result(name: str, records: Sequence[IncidentRecord], answer: Mapping[str, Any]) -> None:
    """Keep `records` and the answer under the runs of this user; a disk that refuses takes nothing from the answer."""
    if not records:
        return
    settings = Settings()
    try:
        run = kept_runs.begin(name, kept_runs.DETECT, settings.runs)
    except OSError as error:
        log.warning("result not kept", extra={"fields": {"error": str(error)}})
        return
    try:
        bus = buses.connect(f"embedded:{run.path / 'bus.db'}", settings.kafka)
        try:
            for record in records:
                bus.publish(INCIDENTS, record.job, record)
            bus.flush()
        finally:
            bus.close()
        run.finished({"exit_code": 1, "steps": None, "incidents": [record.id for record in records], **answer})
    except (WardenError, OSError) as error:
        log.warning("result not kept", extra={"fields": {"error": str(error)}})
    finally:
        run.close()
