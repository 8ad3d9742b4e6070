"""`trainwarden doctor`: is this machine fit to be watched?"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from trainwarden import plugins, rundir
from trainwarden.bus import address as buses
from trainwarden.cli.shared.options import ConfigFile, Json
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import WardenError
from trainwarden.protocols import Scope
from trainwarden.settings import Settings, load

MAX_CLOCK_STEP_S = 1.0  # more between two reads of one machine's clock means that it jumps


def doctor(*, config: ConfigFile = None, json: Json = None) -> int:
    """Is everything reachable, permitted and in time?

    Example: trainwarden doctor --config trainwarden.toml
    """
    voice = Voice(json)
    settings = load(config)
    checks = [_check_bus(settings), _check_clock(), _check_shm(), *_check_collectors(settings)]
    for check in checks:
        voice.say(f"{check['state']:>5}  {check['name']}: {check['what']}")
    voice.answer({"checks": checks})
    return 1 if any(check["state"] == "bad" for check in checks) else 0


def _row(name: str, state: str, what: str) -> dict[str, str]:
    return {"name": name, "state": state, "what": what}


def _check_bus(settings: Settings) -> dict[str, str]:
    """Whether the bus answers; an embedded one that does not exist yet is not made by asking."""
    scheme, _, place = settings.bus.partition(":")
    if scheme == "embedded" and not Path(place).exists():
        usable = os.access(Path(place).absolute().parent, os.W_OK)
        what = "does not exist yet; the first service makes it" if usable else "its folder may not be written to"
        return _row("bus", "note" if usable else "bad", f"{settings.bus}: {what}")
    try:
        buses.connect(settings.bus, settings.kafka).close()
    except WardenError as error:
        return _row("bus", "bad", f"{settings.bus}: {error}")
    return _row("bus", "fine", settings.bus)


def _check_clock() -> dict[str, str]:
    wall_s, steady_s = time.time(), time.monotonic()
    time.sleep(0.05)
    drift_s = abs((time.time() - wall_s) - (time.monotonic() - steady_s))
    state = "fine" if drift_s < MAX_CLOCK_STEP_S else "bad"
    return _row("clock", state, f"wall and steady clock differ by {drift_s * 1000:.1f} ms over 50 ms")


def _check_shm() -> dict[str, str]:
    if not os.access("/dev/shm", os.W_OK):
        return _row("tmpfs", "note", "/dev/shm may not be written: hook files go to disk")
    free = shutil.disk_usage("/dev/shm").free
    if free < rundir.HOOK_ROOM_BYTES:
        return _row("tmpfs", "note", f"/dev/shm has {free / 2**20:.0f} MiB free: hook files go to disk")
    return _row("tmpfs", "fine", "/dev/shm holds the hook's files")


def _check_collectors(settings: Settings) -> list[dict[str, str]]:
    import collectors
    from trainwarden.clock import SystemClock

    scope = Scope(job=settings.job, node=settings.node, run_dir=settings.run_dir or ".")
    rows = []
    for name, raw in plugins.chosen(collectors.CATALOG, collectors.ENTRY_POINTS, settings.agent.collectors).items():
        plugin = plugins.load(collectors.CATALOG, collectors.ENTRY_POINTS, name)
        collector = plugin(plugins.configure(plugin, raw, f"agent.collectors.{name}"), scope, SystemClock())
        reason = collector.supported()
        collector.close()
        rows.append(_row(f"collector {name}", "fine" if reason is None else "note", reason or "supported here"))
    return rows
