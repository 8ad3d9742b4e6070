"""`trainwarden launch --rdzv`: this node's part of a job on several nodes, as a torchrun with our rendezvous."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from trainwarden import rundir
from trainwarden.actions.remedies.policy import Mode, Rules
from trainwarden.cli.run.job_run import JobRun, elsewhere, settings_for
from trainwarden.cli.run.torchrun_here import RANK, STOPPED_CODE, Torchrun
from trainwarden.cli.run.warm_up import warm_up
from trainwarden.cli.run.watched import JobOutput
from trainwarden.cli.shared.engine_beside import EngineBeside, as_toml
from trainwarden.cli.shared.extras import need
from trainwarden.cli.shared.foreign_signals import ForeignSignals
from trainwarden.cli.shared.output import Voice
from trainwarden.cli.shared.stop_signals import stop_signals
from trainwarden.clock import SystemClock
from trainwarden.errors import ConfigError
from trainwarden.network.host_port import host_and_port
from trainwarden.network.own_address import interface_of, own_host
from trainwarden.settings import LaunchSettings, Settings, checkpoints_of

if TYPE_CHECKING:
    from trainwarden.actions.launchers.torchrun.client import JobClient
    from trainwarden.actions.launchers.torchrun.host import RendezvousHost

LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
JOIN_S: Final = 30.0  # for nodes that are missing, before the job begins with fewer
MAX_RESTARTS: Final = 3  # without a newer checkpoint
LOOK_S: Final = 0.1
IN_MEMORY: Final = "{checkpoints}"


class Here(msgspec.Struct, frozen=True, kw_only=True):
    """What the options of `trainwarden launch` say of this machine's part."""

    nproc: int
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
    weight: float | None = None
    renews: bool = True  # torchrun may start a rank again alone

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
            "--tokens": self.tokens, "--node-rank": self.node_rank, "--weight": self.weight,
        }  # fmt: skip
        for option, value in said.items():
            if value is not None:
                raise ConfigError(f"{option}: that is of a job on several nodes; name --rdzv HOST:PORT or leave it out")

    def job(self, here: Here) -> str | None:
        """Its name, which all nodes have to know it by; None where a settings file says it."""
        if here.job is not None or here.config is not None or self.rdzv is None:
            return here.job
        return f"launch-{host_and_port(self.rdzv.split(',')[0], '--rdzv')[1]}"

    def engine(self, settings: Settings, mode: Mode, **more: Any) -> dict[str, str]:
        """Environment of the engine beside the first node; `more` is of its launcher."""
        own, launch = settings.engine, settings.launch
        said = own.launcher_settings if own.launcher == "torchrun" else {}
        where = {
            "endpoint": self.rdzv, "token_file": None if self.token_file is None else str(self.token_file.absolute()),
            "tls_ca": launch.tls_ca, "tls_certificate": launch.tls_certificate, "tls_key": launch.tls_key,
        }  # fmt: skip
        return {
            "TRAINWARDEN_ENGINE_MODE": mode,
            "TRAINWARDEN_ENGINE_LAUNCHER": "torchrun",
            "TRAINWARDEN_ENGINE_LAUNCHER_SETTINGS": as_toml({**said, **where, **more}),
        }

    def torchrun(self, job: str, ranks: int, launch: LaunchSettings) -> list[str]:
        """The options of torchrun that say all this, with `ranks` on each node.

        A rank that fails is followed by another round `max_restarts` times, so one failure more ends the job. One with
        a weight is the coordinator's: its nodes wait until they are given to it, however many there are.
        """
        shared = self.weight is not None
        conf = {
            "last_call_timeout": JOIN_S if self.join_wait_s is None else self.join_wait_s,
            "spares": self.spares if shared else self.spares or 0,
            "token_file": None if self.token_file is None else self.token_file.absolute(), "grow": self.grow,
            "node_rank": self.node_rank,
            "max_failures": 1 + (MAX_RESTARTS if self.max_restarts is None else self.max_restarts),
            "tls_ca": launch.tls_ca, "tls_certificate": launch.tls_certificate, "tls_key": launch.tls_key,
            "weight": self.weight, "held": "yes" if shared else None, "renew": None if self.renews else "no",
        }  # fmt: skip
        known = {name: value for name, value in conf.items() if value is not None}
        for name, value in known.items():
            if "," in str(value) or "=" in str(value):
                raise ConfigError(f"{name} {value}: torchrun takes no path with a comma or an equals sign")
        return [
            f"--nnodes={self.min_nodes or self.nnodes}:{self.nnodes}", f"--nproc-per-node={ranks}",
            "--rdzv-backend=trainwarden", f"--rdzv-endpoint={self.rdzv}", f"--rdzv-id={job}",
            f"--rdzv-conf={','.join(f'{name}={value}' for name, value in known.items())}",
        ]  # fmt: skip


def launch_node(
    command: Sequence[str], voice: Voice, here: Here, asked: NodesAsked, mode: Mode, *, validate: bool
) -> int:  # fmt: skip
    """Take part in the job until it is over; its exit code. Where its first rank is an engine runs, if it may act.

    With `validate` this node is tested first, alone, and takes no part where something of it is at fault.
    """
    config, foreign = here.config, ForeignSignals()
    settings = settings_for(config, asked.job(here), "launch")
    options = asked.torchrun(settings.job, here.nproc, settings.launch)
    overrides = {} if mode == "observe" else asked.engine(settings, mode)
    _check(settings, here, asked, mode)
    need_storage(command, settings, here)
    if validate:
        warm_up(here.nproc, voice, checkpoints=checkpoints_of(settings, here.checkpoints), config=config)
    # What the nodes' agents say belongs together, so a bus of this node alone would be read by nobody.
    services = ("agent",) if elsewhere(settings, config) else ()
    with JobRun(settings, own_services=services, config=config, overrides=overrides, command=command) as run:
        voice.say(f"job {settings.job}: this node's part of {asked.nnodes} nodes, {here.nproc} ranks each")
        if not services:
            voice.say("trainwarden: nothing watches this job; a settings file (--config) names the bus of services")
        if overrides:
            voice.say(f"trainwarden: the node of the first rank has an engine beside it, mode {mode}")
        code = _Node(run, here, asked, voice, acts=bool(overrides)).carry_out([*options, *_words(command)], foreign)
        result = run.result(code)
        if here.keep is not None:
            run.stack.stop("agent")  # its last words are on the bus then
            run.keep(here.keep, voice)
        voice.say(f"trainwarden: job {settings.job} ended with exit code {code}")
        voice.say(f"trainwarden: records and logs: {run.run_dir}")
    voice.answer_if_possible(result)
    return code


def _check(settings: Settings, here: Here, asked: NodesAsked, mode: Mode) -> None:
    """Refuse what cannot be done, before anything begins."""
    if mode != "observe":
        Rules.of(msgspec.structs.replace(settings.engine, mode=mode))
    if asked.grow == "now" and checkpoints_of(settings, here.checkpoints) is None:
        raise ConfigError("--grow now: a job grows at a checkpoint; name the folder with --checkpoints")
    for one in (asked.rdzv or "").split(","):
        host, _ = host_and_port(one.strip(), "--rdzv")
        if asked.token_file is None and host not in LOOPBACK:
            raise ConfigError(f"--token-file: {host} is reached by others, so the nodes have to share a token")
    _check_bus(settings, here, mode)
    need("torch", "launch --rdzv")


def _check_bus(settings: Settings, here: Here, mode: Mode) -> None:
    """Refuse what needs a bus that all nodes reach, where none is named."""
    if elsewhere(settings, here.config):
        return
    how = 'name it (bus = "kafka://...") in a settings file, pass that with --config on each node'
    beside = "and have trainwarden detector --config FILE run somewhere (docs/torchrun.md)"
    if mode != "observe":
        raise ConfigError(f"--mode {mode}: its engine needs a bus that all nodes reach: {how}, {beside}")
    if here.keep is not None:
        raise ConfigError(f"--keep: what all nodes say is on a bus that all reach: {how}")


class _Node:
    """torchrun on this node, and what is beside it."""

    def __init__(self, run: JobRun, here: Here, asked: NodesAsked, voice: Voice, *, acts: bool) -> None:
        self._run, self._here, self._asked, self._voice = run, here, asked, voice
        self._torchrun: Torchrun | None = None
        self._engine = EngineBeside(run.stack, self._is_first, SystemClock()) if acts else None
        self._stops: list[int] = []

    def _is_first(self) -> bool:
        return self._torchrun is not None and self._torchrun.place.get("node_rank") == 0

    def carry_out(self, words: Sequence[str], foreign: ForeignSignals) -> int:
        """Run torchrun with `words` until it ends; its exit code."""
        from trainwarden.self_metrics import log_to_stderr

        log_to_stderr()
        for number in stop_signals():
            signal.signal(number, lambda n, _frame: self._stops.append(n))
        assert self._asked.rdzv is not None
        hosts = [rendezvous_host(one, self._asked, self._run.settings.launch) for one in self._asked.rdzv.split(",")]
        for one in hosts:
            one.start()
        try:
            return self._follow(words, foreign)
        finally:
            for one in hosts:
                one.close()

    def _follow(self, words: Sequence[str], foreign: ForeignSignals) -> int:
        run, asked = self._run, self._asked
        environ = ranks_environment(run, self._here.checkpoints, asked.rdzv or "", in_memory=asks_for_memory(words))
        job = partial(job_client, run.settings.job, asked, run.settings.launch)
        log = run.run_dir / rundir.LOGS / "job.log"
        output = JobOutput(log, run.settings.runs.log_bytes, self._voice.stream.fileno(), os.environ)
        try:
            streams = (output.ends[0], output.ends[1])
            process = Torchrun(run, words, environ, streams=streams, say=self._voice.say, client=job)
        finally:
            output.begun()
        self._torchrun = process
        while process.runs:
            time.sleep(LOOK_S)
            for sentence in output.tend():
                self._voice.say(f"trainwarden: {sentence}")
            process.pass_on(foreign.pop_new())
            process.tend()
            if self._engine is not None:
                self._engine.tend()
            run.stack.limit_logs()
            if self._stops:
                process.stop()
        code = process.end()
        output.end()
        return STOPPED_CODE if self._stops else code


def _words(command: Sequence[str]) -> list[str]:
    """The words of torchrun that start `command` as it is, but for the folder of its checkpoints."""
    own = [sys.executable, "-I", "-S", str(RANK), "exec", "0"] if asks_for_memory(command) else []
    return ["--no-python", *own, *command]


def asks_for_memory(command: Sequence[str]) -> bool:
    """Whether the command is to write its checkpoints to a folder in memory."""
    return any(IN_MEMORY in word for word in command)


def need_storage(command: Sequence[str], settings: Settings, here: Here) -> None:
    """Refuse a command that asks for a folder of checkpoints where nobody has named one."""
    if asks_for_memory(command) and checkpoints_of(settings, here.checkpoints) is None:
        raise ConfigError(f"{IN_MEMORY}: name the storage that checkpoints go to in the end, with --checkpoints")


def ranks_environment(
    run: JobRun, checkpoints: Path | None, rdzv: str, *, in_memory: bool = False
) -> dict[str, str]:  # fmt: skip
    """What torchrun's ranks find around them; `checkpoints` is what the option names, and if `in_memory` the store."""
    environ = {**os.environ, **run.environ()}
    environ.pop("LOCAL_RANK", None)  # of a torchrun around us
    folder = checkpoints_of(run.settings, checkpoints)
    if folder is not None:
        environ["TRAINWARDEN_CHECKPOINTS_STORE" if in_memory else "TRAINWARDEN_CHECKPOINTS"] = str(folder.absolute())
    interface = interface_of(own_host(rdzv.split(",", maxsplit=1)[0]))
    if interface is not None:  # a machine's own name need not resolve, or resolves to what others cannot reach
        environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    return environ


def rendezvous_host(address: str, asked: NodesAsked, launch: LaunchSettings, **more: Any) -> RendezvousHost:
    """The rendezvous at `address`; `more` is of its service."""
    from trainwarden.actions.launchers.torchrun.host import RendezvousHost
    from trainwarden.metrics_http.access import Tokens, read_token
    from trainwarden.metrics_http.tls import peer_tls

    return RendezvousHost(
        address.strip(), token=None if asked.token_file is None else read_token(asked.token_file),
        people=None if asked.tokens is None else Tokens.of_file(asked.tokens),
        tls=peer_tls(launch.tls_ca, launch.tls_certificate, launch.tls_key), **more,
    )  # fmt: skip


def job_client(name: str, asked: NodesAsked, launch: LaunchSettings) -> JobClient:
    """The way to the job's rendezvous."""
    from trainwarden.actions.launchers.torchrun.client import JobClient, TorchrunConfig, TorchrunLauncher
    from trainwarden.protocols import Scope

    config = TorchrunConfig(
        endpoint=asked.rdzv or "", token_file=None if asked.token_file is None else str(asked.token_file),
        tls_ca=launch.tls_ca, tls_certificate=launch.tls_certificate, tls_key=launch.tls_key,
    )  # fmt: skip
    return JobClient(TorchrunLauncher(config, Scope(job=name, node="", run_dir="")))
