"""`trainwarden launch --rdzv`: this node's part of a job on several nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from actions.remedies.policy import Mode, Rules
from trainwarden.cli.run.job_run import JobRun, elsewhere, settings_for
from trainwarden.cli.run.warm_up import warm_up
from trainwarden.cli.shared.engine_beside import EngineBeside, as_toml
from trainwarden.cli.shared.foreign_signals import ForeignSignals
from trainwarden.cli.shared.output import Voice
from trainwarden.cli.shared.stop_signals import stop_signals
from trainwarden.errors import ConfigError
from trainwarden.network.host_port import host_and_port
from trainwarden.settings import Settings, checkpoints_of

if TYPE_CHECKING:
    from actions.launchers.cluster.launcher import Meeting
    from actions.launchers.cluster.words import Shape


class Here(msgspec.Struct, frozen=True, kw_only=True):
    """What the options of `trainwarden launch` say of this machine's part."""

    nproc: int
    preload: tuple[str, ...]
    checkpoints: Path | None
    job: str | None
    keep: Path | None
    config: Path | None


class NodesAsked(msgspec.Struct, frozen=True, kw_only=True):
    """What the options of `trainwarden launch` say of several nodes; None where nothing is said."""

    rdzv: str | None = None
    nnodes: int = 1
    min_nodes: int | None = None
    join_wait_s: float | None = None
    spares: int | None = None
    max_restarts: int | None = None
    grow: Literal["worth", "now", "restart"] | None = None
    token_file: Path | None = None
    tokens: Path | None = None
    node_rank: int | None = None

    def check(self) -> None:
        """Refuse what several nodes cannot do, and, on one, what is of several alone: nothing said is passed over.

        Raises
        ------
        ConfigError
            With the option at fault.
        """
        if self.rdzv is None:
            self._check_alone()
            return
        if self.min_nodes is not None and self.min_nodes > self.nnodes:
            raise ConfigError(f"--min-nodes {self.min_nodes}: that is more than --nnodes {self.nnodes}")
        if self.tokens is not None and self.token_file is None:
            raise ConfigError("--tokens: without --token-file whoever is on this machine may do all anyway")
        there = self.nnodes + (self.spares or 0)
        if self.node_rank is not None and self.node_rank >= there:
            raise ConfigError(f"--node-rank {self.node_rank}: counted from 0 there are {there}, spares among them")

    def _check_alone(self) -> None:
        if self.nnodes > 1:
            raise ConfigError("--nnodes: several nodes find each other by --rdzv HOST:PORT")
        said = {
            "--min-nodes": self.min_nodes, "--join-wait": self.join_wait_s, "--spares": self.spares,
            "--max-restarts": self.max_restarts, "--grow": self.grow, "--token-file": self.token_file,
            "--tokens": self.tokens, "--node-rank": self.node_rank,
        }  # fmt: skip
        for option, value in said.items():
            if value is not None:
                raise ConfigError(f"{option}: that is of a job on several nodes; name --rdzv HOST:PORT or leave it out")

    def job(self, here: Here) -> str | None:
        """Its name, which all nodes have to know it by; None where a settings file says it."""
        if here.job is not None or here.config is not None or self.rdzv is None:
            return here.job
        return f"launch-{host_and_port(self.rdzv, '--rdzv')[1]}"

    def engine(self, settings: Settings, mode: Mode) -> dict[str, str]:
        """What the engine beside the leader is told in its environment."""
        own, launch = settings.engine, settings.launch
        said = own.launcher_settings if own.launcher == "cluster" else {}
        where = {
            "rdzv": self.rdzv, "token_file": None if self.token_file is None else str(self.token_file.absolute()),
            "tls_ca": launch.tls_ca, "tls_certificate": launch.tls_certificate, "tls_key": launch.tls_key,
        }  # fmt: skip
        return {
            "TRAINWARDEN_ENGINE_MODE": mode,
            "TRAINWARDEN_ENGINE_LAUNCHER": "cluster",
            "TRAINWARDEN_ENGINE_LAUNCHER_SETTINGS": as_toml({**said, **where}),
        }

    def shape(self, ranks: int) -> Shape:
        """What all nodes have to be asked alike, with `ranks` on each."""
        from actions.launchers.cluster.words import Shape

        said: dict[str, Any] = {"spares": self.spares, "restarts": self.max_restarts, "grow": self.grow}
        said = {name: value for name, value in said.items() if value is not None}
        return Shape(nodes=self.nnodes, least_nodes=self.min_nodes or self.nnodes, ranks=ranks, **said)


def launch_node(
    command: Sequence[str], voice: Voice, here: Here, asked: NodesAsked, mode: Mode, *, validate: bool
) -> int:  # fmt: skip
    """Take part in the job until it is over; its exit code. While it leads an engine is beside it, if it may act.

    With `validate` this node is tested first, alone, and takes no part where something of it is at fault.
    """
    config, foreign = here.config, ForeignSignals()
    settings = settings_for(config, asked.job(here), "launch")
    overrides = {} if mode == "observe" else asked.engine(settings, mode)
    _check_bus(settings, here, mode)
    if validate:
        warm_up(here.nproc, voice, checkpoints=checkpoints_of(settings, here.checkpoints), config=config)
    # What the nodes' agents say belongs together, so a bus of this node alone would be read by nobody.
    services = ("agent",) if elsewhere(settings, config) else ()
    with JobRun(settings, own_services=services, config=config, overrides=overrides, command=command) as run:
        voice.say(f"job {settings.job}: this node's part of {asked.nnodes} nodes, {here.nproc} ranks each")
        if not services:
            voice.say("trainwarden: nothing watches this job; a settings file (--config) names the bus of services")
        if overrides:
            voice.say(f"trainwarden: whichever launcher leads has an engine beside it, mode {mode}")
        code = _take_part(command, asked, run, here, voice, foreign=foreign, acts=bool(overrides))
        result = run.result(code)
        if here.keep is not None:
            run.stack.stop("agent")  # its last words are on the bus then
            run.keep(here.keep, voice)
        voice.say(f"trainwarden: job {settings.job} ended with exit code {code}")
        voice.say(f"trainwarden: records and logs: {run.run_dir}")
    voice.answer_if_possible(result)
    return code


def _check_bus(settings: Settings, here: Here, mode: Mode) -> None:
    """Refuse what needs a bus that all nodes reach, where none is named."""
    if mode != "observe":
        Rules.of(msgspec.structs.replace(settings.engine, mode=mode))
    if elsewhere(settings, here.config):
        return
    how = 'name it (bus = "kafka://...") in a settings file, pass that with --config on each node'
    beside = "and have trainwarden detector --config FILE run somewhere (docs/several_nodes.md)"
    if mode != "observe":
        raise ConfigError(f"--mode {mode}: its engine needs a bus that all nodes reach: {how}, {beside}")
    if here.keep is not None:
        raise ConfigError(f"--keep: what all nodes say is on a bus that all reach: {how}")


def _take_part(
    command: Sequence[str], asked: NodesAsked, run: JobRun, here: Here, voice: Voice, *,
    foreign: ForeignSignals, acts: bool,
) -> int:  # fmt: skip
    from actions.launchers.cluster.launcher import NodeLauncher
    from actions.launchers.local.ranks import Place
    from actions.suspicions.on_bus import SuspicionsOnBus
    from collectors.nccl_profiler import build as nccl_profiler
    from trainwarden.clock import BootClock, SystemClock
    from trainwarden.self_metrics import log_to_stderr

    log_to_stderr()
    settings = run.settings
    stopped: list[int] = []
    for number in stop_signals():
        signal.signal(number, lambda n, _frame: stopped.append(n))
    place = Place(
        command=tuple(command), ranks=here.nproc, run_dir=run.run_dir, job=settings.job, node=settings.node,
        log_bytes=settings.runs.log_bytes, show=voice.stream.fileno(),
        checkpoints=checkpoints_of(settings, here.checkpoints), preload=here.preload,
    )  # fmt: skip
    if asked.grow == "now" and place.checkpoints is None:
        raise ConfigError("--grow now: a job grows at a checkpoint; name the folder with --checkpoints")
    meeting = _meeting(asked, settings, here.nproc)
    environ = {**os.environ, **nccl_profiler.offer(os.environ)}
    bus = run.bus_address if elsewhere(settings, here.config) else None
    launcher = NodeLauncher(
        place, meeting, BootClock(), environ, stop_grace_s=settings.launch.stop_grace_s,
        suspicions=SuspicionsOnBus.of(settings, SystemClock(), bus),
    )  # fmt: skip
    engine = EngineBeside(run.stack, launcher.leads, SystemClock()) if acts else None

    def asked_to_stop() -> bool:
        if engine is not None:
            engine.tend()
        return bool(stopped)

    return launcher.run(asked_to_stop, foreign.take)


def _meeting(asked: NodesAsked, settings: Settings, ranks: int) -> Meeting:
    from actions.launchers.cluster.launcher import Meeting
    from actions.launchers.cluster.words import Patience
    from actions.launchers.leases.server import read_token
    from trainwarden.metrics_http.access import Tokens
    from trainwarden.metrics_http.tls import peer_tls

    assert asked.rdzv is not None
    launch = settings.launch
    return Meeting(
        rdzv=asked.rdzv,
        shape=asked.shape(ranks),
        token=None if asked.token_file is None else read_token(asked.token_file),
        people=None if asked.tokens is None else Tokens.of_file(asked.tokens),
        tls=peer_tls(launch.tls_ca, launch.tls_certificate, launch.tls_key),
        patience=Patience() if asked.join_wait_s is None else Patience(join_s=asked.join_wait_s),
        node_rank=asked.node_rank,
    )
