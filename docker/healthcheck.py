"""Is the service in this container well? Asked by the image's HEALTHCHECK; standard library only.

TRAINWARDEN_HEALTH_URL is a page of the service that must answer 200; without it there is nothing to ask, and all is
well. Where that page is of metrics and tells the end of the service's newest round of work, that is to be younger than
TRAINWARDEN_HEALTH_S seconds (60): a process whose answers still come may have stopped working.
"""

from __future__ import annotations

import os
import sys
import time
import urllib.request

MOST_BYTES = 16 * 1024 * 1024
HEARTBEAT = "trainwarden_heartbeat_timestamp_seconds{"


def oldest_round_s(page: str) -> float | None:
    """Unix time of the oldest heartbeat on a page of metrics; None if it tells none."""
    lines = (line for line in page.splitlines() if line.startswith(HEARTBEAT))
    return min((float(line.rpartition(" ")[2]) for line in lines), default=None)


def main() -> int:
    url = os.environ.get("TRAINWARDEN_HEALTH_URL")
    if not url:
        return 0
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            beat_s = oldest_round_s(answer.read(MOST_BYTES).decode("utf-8", "replace"))
    except (OSError, ValueError) as error:
        print(f"{url}: {error}")
        return 1
    old_s = 0.0 if beat_s is None else time.time() - beat_s
    if old_s > float(os.environ.get("TRAINWARDEN_HEALTH_S", "60")):
        print(f"{url}: the newest round of work ended {old_s:.0f} s ago")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
