"""`trainwarden doctor`: is this machine fit to be watched?"""

from __future__ import annotations

import os
import shutil
import time
import urllib.request
from pathlib import Path

from trainwarden import hook, plugins, rundir
from trainwarden.bus import address as buses
from trainwarden.cli.shared.formatting import NO_CHECKPOINTS
from trainwarden.cli.shared.options import ConfigFile, Json
from trainwarden.cli.shared.output import Voice
from trainwarden.collectors.nccl_profiler import build as nccl_profiler
from trainwarden.collectors.ranks import ProcessFinder, rank_processes
from trainwarden.commands.keys import signer_of
from trainwarden.commands.trust import Trust, unsigned_text
from trainwarden.errors import LauncherUnavailable, WardenError
from trainwarden.protocols import Scope
from trainwarden.records import HeartbeatRecord
from trainwarden.settings import Settings, checkpoints_of, load
from trainwarden.topics import HEARTBEATS

MAX_CLOCK_STEP_S = 1.0  # more between two reads of one machine's clock means that it jumps
MAX_CLOCK_OFF_S = 1.0  # NTP keeps milliseconds; logs of different nodes cannot be put in order beyond this
CLOCKS_OVER_S = 120.0
HTTP_S = 3.0


def doctor(*, config: ConfigFile = None, json: Json = None) -> int:
    """Is everything reachable, permitted and in time?

    Example: trainwarden doctor --config trainwarden.toml
    """
    voice = Voice(json)
    settings = load(config)
    checks = [
        _check_bus(settings),
        _check_clock(),
        _check_clocks(settings),
        _check_shm(),
        _check_nccl_profiler(),
        *_check_run_folder(settings),
        _check_launcher(settings),
        _check_checkpoints(settings),
        _check_registry(settings),
        _check_archive(settings),
        _check_serve(settings),
        _check_commands(settings),
        *_check_collectors(settings),
    ]
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


def _check_checkpoints(settings: Settings) -> dict[str, str]:
    """Whether restarts of `launch` can be verified."""
    folder = checkpoints_of(settings)
    if folder is None:
        return _row("checkpoints", "note", NO_CHECKPOINTS)
    if not folder.is_dir():
        return _row("checkpoints", "note", f"{folder} does not exist yet; the training script makes it")
    if not os.access(folder, os.R_OK | os.X_OK):
        return _row("checkpoints", "bad", f"{folder} may not be read")
    return _row("checkpoints", "fine", f"restarts are verified against {folder}")


def _check_clock() -> dict[str, str]:
    wall_s, steady_s = time.time(), time.monotonic()
    time.sleep(0.05)
    drift_s = abs((time.time() - wall_s) - (time.monotonic() - steady_s))
    state = "fine" if drift_s < MAX_CLOCK_STEP_S else "bad"
    return _row("clock", state, f"wall and steady clock differ by {drift_s * 1000:.1f} ms over 50 ms")


def _check_clocks(settings: Settings) -> dict[str, str]:
    """Whether the clocks of the nodes that speak are that of the bus, which stamps each record as it comes."""
    scheme, _, place = settings.bus.partition(":")
    if scheme == "embedded" and not Path(place).exists():
        return _row("clocks", "note", "nobody has spoken yet")
    ahead_s: dict[str, float] = {}
    try:
        bus = buses.connect(settings.bus, settings.kafka)
        try:
            for message in bus.read(HEARTBEATS, from_time_s=time.time() - CLOCKS_OVER_S):
                if isinstance(beat := message.record, HeartbeatRecord):
                    # What waited on its way came late: the least delay tells of the clock.
                    ahead_s[beat.node] = max(beat.time_s - message.time_s, ahead_s.get(beat.node, float("-inf")))
        finally:
            bus.close()
    except WardenError as error:
        return _row("clocks", "note", f"cannot be compared: {error}")
    if not ahead_s:
        return _row("clocks", "note", f"no agent has spoken within {CLOCKS_OVER_S:.0f} s")
    wrong = {node: off_s for node, off_s in sorted(ahead_s.items()) if abs(off_s) > MAX_CLOCK_OFF_S}
    said = ", ".join(
        f"{node} is {abs(off_s):.1f} s {'ahead' if off_s > 0 else 'behind'}" for node, off_s in wrong.items()
    )
    what = f"of {len(ahead_s)} nodes against the bus: {said or 'all alike'}"
    return _row("clocks", "bad" if wrong else "fine", what)


def _check_launcher(settings: Settings) -> dict[str, str]:
    """What the engine could do to the job now."""
    from trainwarden.actions.engine.service import make_launcher

    name = f"launcher {settings.engine.launcher}"
    try:
        scope = Scope(job=settings.job, node=settings.node, run_dir=settings.run_dir or ".")
        launcher = make_launcher(settings.engine, scope)
        able, state = launcher.capabilities(), launcher.state(settings.job)
    except LauncherUnavailable as error:
        return _row(name, "note", f"cannot be reached; has it started the job? ({error})")
    except WardenError as error:
        return _row(name, "bad", str(error))
    what = f"job {state.job} is {state.phase}; it can {', '.join(sorted(able.can))}"
    # The verbs that the shipped remedies ask for, besides a restart.
    wanting = [why for verb in ("evict", "stop") if (why := able.refusal(verb)) is not None]
    return _row(name, "fine", "; ".join((what, *wanting)))


def _check_serve(settings: Settings) -> dict[str, str]:
    """Whether `trainwarden serve` could begin: its address, tokens, secrets and notices."""
    own = settings.serve
    try:
        from trainwarden.dashboards.notices.targets import targets_of
        from trainwarden.dashboards.web.server import listen_at, secrets_of, tls_of, tokens_of
    except ImportError as error:
        return _row("serve", "note", f"cannot run here ({error}); pip install 'trainwarden[serve]'")
    try:
        tokens_of(own.listen, own.tokens)
        secrets_of(own)
        tls_of(own)
        targets_of(own.notices)
    except WardenError as error:
        return _row("serve", "bad", str(error))
    try:
        listen_at(own.listen).close()
    except WardenError as error:
        return _row("serve", "note", f"{error}; fine where serve runs already")
    return _row("serve", "fine", f"{own.listen} can be listened on")


def _check_commands(settings: Settings) -> dict[str, str]:
    """Whose words the engine would obey, and whether the key here is one of those."""
    try:
        trust, signer = Trust.of(settings.commands.trusted), signer_of(settings.commands)
    except WardenError as error:
        return _row("commands", "bad", str(error))
    if (unsigned := unsigned_text(settings)) is not None:
        return _row("commands", "note", unsigned)
    if not trust.asks:
        return _row("commands", "fine", "unsigned; the bus is a file of its owner's")
    ours = "no key here (commands.key)" if signer is None else f"the key here is that of {signer.name}"
    return _row("commands", "fine", f"have to be signed; {ours}")


def _check_registry(settings: Settings) -> dict[str, str]:
    """Whether models can be fetched, where settings name a place for them."""
    models = settings.trainer.registry or settings.detection.models
    if models is None:
        return _row("models", "note", "none are named (detection.models, trainer.registry); metric votes abstain")
    if not models.startswith(("http:", "https:")):
        place = Path(models.removeprefix("sqlite:///"))
        return _row(
            "models", "fine" if place.exists() else "bad", f"{models}{'' if place.exists() else ' is not there'}"
        )
    try:
        with urllib.request.urlopen(f"{models.rstrip('/')}/health", timeout=HTTP_S) as answer:
            return _row("models", "fine", f"{models} answers {answer.status}")
    except OSError as error:
        return _row("models", "bad", f"{models}: {error}")


def _check_archive(settings: Settings) -> dict[str, str]:
    folder = Path(settings.archive.folder)
    if not folder.exists():
        return _row("archive", "note", f"{folder} does not exist; nothing is archived yet")
    usable = os.access(folder, os.W_OK)
    return _row("archive", "fine" if usable else "bad", f"{folder}{'' if usable else ' may not be written to'}")


def _check_shm() -> dict[str, str]:
    if not os.access("/dev/shm", os.W_OK):
        return _row("tmpfs", "note", "/dev/shm may not be written: hook files go to disk")
    free = shutil.disk_usage("/dev/shm").free
    if free < rundir.HOOK_ROOM_BYTES:
        return _row("tmpfs", "note", f"/dev/shm has {free / 2**20:.0f} MiB free: hook files go to disk")
    return _row("tmpfs", "fine", "/dev/shm holds the hook's files")


def _check_nccl_profiler() -> dict[str, str]:
    """Whether there is a plug-in for NCCL to load."""
    why = nccl_profiler.state()
    return _row("nccl profiler", "fine" if why is None else "note", why or f"ranks can load {nccl_profiler.LIBRARY}")


def _check_run_folder(settings: Settings) -> list[dict[str, str]]:
    """Who may write where the hooks write, and whether their files can be read and their processes seen."""
    if settings.run_dir is None or not (folder := Path(settings.run_dir) / rundir.HOOK).is_dir():
        if settings.run_dir is not None and Path(settings.run_dir).exists() and not Path(settings.run_dir).is_dir():
            return [_row("run folder", "bad", f"{settings.run_dir} is no folder: the agent cannot make it")]
        return [_row("run folder", "note", "there is none yet; the agent makes it for its own user alone")]
    mode, owner = folder.stat().st_mode, folder.stat().st_uid
    if mode & 0o002:
        what = f"anybody may write to {folder}: files of strangers are left out; take that right away (chmod o-w)"
        return [_row("run folder", "bad", what)]
    shared = "" if mode & 0o020 else ": ranks of other users cannot report there (docs/operations.md, Other users)"
    rows = [_row("run folder", "fine", f"{folder} belongs to user {owner}{shared}")]
    headers = [(one, hook.read_header(one.path)) for one in rank_processes(Path(settings.run_dir))]
    unread = [str(one.rank) for one, header in headers if header is None]
    if unread:
        rows.append(_row("ranks", "bad", f"hook files cannot be read, of ranks {', '.join(unread)}"))
    lookout = ProcessFinder()
    unseen = [str(one.rank) for one, header in headers if header is not None and not lookout.look(header).state]
    if unseen:
        what = f"ranks {', '.join(unseen)} are in another pid namespace: their ends, CPU and memory are not known"
        rows.append(_row("ranks", "note", f"{what}; run the agent with the host's (hostPID, --pid=host)"))
    return rows


def _check_collectors(settings: Settings) -> list[dict[str, str]]:
    from trainwarden import collectors
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
