"""Files of other tools, read as they are. CATALOG is the table of formats.

Read `trainwarden.formats.protocol` first.
"""

from __future__ import annotations

from typing import Final

CATALOG: Final[dict[str, str]] = {
    "recorded table": "trainwarden.formats.tables.ours:OurTable",
    "flight recorder": "trainwarden.formats.dumps.flight_recorder:FlightRecorder",
    "table": "trainwarden.formats.tables.plain:PlainTable",
    "log text": "trainwarden.formats.text.log_text:LogText",
}
