"""`trainwarden validate`: burn-in, link tests, disk and memory of a group of ranks, before anybody is blamed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from trainwarden.cli.shared.options import Checkpoints, ConfigFile, Json
from trainwarden.cli.shared.output import Voice
from trainwarden.cli.shared.stop_signals import stop_signals
from trainwarden.errors import ConfigError
from trainwarden.launching import CHECKS
from trainwarden.settings import Settings, checkpoints_of, load

if TYPE_CHECKING:
    from trainwarden.actions.validation.programme import Wanted
    from trainwarden.actions.validation.results import Validation
    from trainwarden.actions.validation.running.node import Place

PORT: Final = 29_555
"""Beside torchrun's 29500 and its rendezvous' 29400: the store of a job is never ours."""
LOOPBACK: Final = "127.0.0.1"
READY: Final = "ready"
MOST_DIGITS: Final = 8


def validate(
    *,
    nproc: Annotated[
        int | None, typer.Option("--nproc", min=1, max=1024, help="Ranks on this node; else RANK and WORLD_SIZE.")
    ] = None,
    nnodes: Annotated[int, typer.Option("--nnodes", min=1, max=65_536, help="Nodes with --nproc ranks each.")] = 1,
    node_rank: Annotated[int, typer.Option("--node-rank", min=0, help="Which of them this is.")] = 0,
    master_addr: Annotated[
        str | None, typer.Option("--master-addr", metavar="HOST", help="Where rank 0 is; else MASTER_ADDR.")
    ] = None,
    port: Annotated[int, typer.Option("--port", min=1, max=65_535, help="Of the validation's own store.")] = PORT,
    ranks: Annotated[
        str | None, typer.Option("--ranks", metavar="A,B,...", help="Whom it is about; else everybody.")
    ] = None,
    nodes: Annotated[
        str | None, typer.Option("--nodes", metavar="N,M,...", help="The same, by names of nodes.")
    ] = None,
    checks: Annotated[str, typer.Option("--checks", help="Those to make, separated by commas.")] = (
        "gemm,links,disk,memory"
    ),
    checkpoints: Checkpoints = None,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", metavar="FILE", help="What all took when well; learnt once.")
    ] = None,
    burn_in: Annotated[float, typer.Option("--burn-in", min=0.05, max=3600.0, help="Seconds of each device.")] = 0.1,
    join: Annotated[
        float, typer.Option("--join", min=1.0, max=3600.0, help="Seconds in which ranks must come.")
    ] = 60.0,
    when_told: Annotated[bool, typer.Option("--when-told", hidden=True)] = False,
    json: Json = None,
    config: ConfigFile = None,
) -> int:
    """Test devices, links, disk and memory of a group of ranks; exit code 1 if somebody is at fault.

    Examples: trainwarden validate --nproc 8 --checkpoints ckpt; srun trainwarden validate --nproc 8 --nnodes 4
    --node-rank $SLURM_NODEID --master-addr node-0; torchrun ... --no-python trainwarden validate
    """
    from trainwarden.self_metrics import log_to_stderr

    log_to_stderr()
    voice = Voice(json)
    settings = load(config)
    numbers = (nproc, nnodes, node_rank, master_addr)
    options: dict[str, Any] = {"port": port, "checkpoints": checkpoints_of(settings, checkpoints), "join_s": join}
    place = place_of(numbers, os.environ, settings, options)
    if when_told and not told():
        return 0
    result = run(place, wanted_of(place, checks, burn_in, ranks, nodes), baseline)
    if isinstance(result, int):
        return result
    from trainwarden.actions.validation.messages import lines

    if place.first_rank == 0 or (result.accused and place.number is not None):  # once a node
        for line in lines(result):
            voice.say(line)
    voice.answer(result)
    return result.exit_code


def place_of(
    numbers: tuple[int | None, int, int, str | None],
    environ: Mapping[str, str],
    settings: Settings,
    options: Mapping[str, Any],
) -> Place:
    """This process's place: by the numbers of its options, else by what torchrun, or a launcher like it, has set.

    Raises
    ------
    ConfigError
        If neither says which ranks there are, or they do not fit.
    """
    needs_torch()
    from trainwarden.actions.validation.running.node import Place

    nproc, nnodes, node_rank, master = numbers
    address = master or environ.get("MASTER_ADDR") or (LOOPBACK if nnodes == 1 else None)
    if nproc is not None:
        if node_rank >= nnodes:
            raise ConfigError(f"validate: --node-rank {node_rank} is not below --nnodes {nnodes}")
        if address is None:
            raise ConfigError("validate: --nnodes above 1 needs --master-addr, the host of rank 0")
        return Place(
            node=settings.node, ranks=nproc, first_rank=node_rank * nproc, world_size=nnodes * nproc,
            number=node_rank, nodes=nnodes, processes=nnodes,
            address=LOOPBACK if nnodes == 1 else address,
            **{**options, "port": options["port"] if nnodes > 1 else 0},
        )  # fmt: skip
    try:
        rank, world_size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
        local_rank, local_size = int(environ.get("LOCAL_RANK", rank)), int(environ.get("LOCAL_WORLD_SIZE", world_size))
    except (KeyError, ValueError):
        raise ConfigError("validate: --nproc says how many ranks, or RANK and WORLD_SIZE in the environment") from None
    if not 0 <= rank < world_size:
        raise ConfigError(f"validate: RANK {rank} is none of WORLD_SIZE {world_size}")
    local_size = max(1, min(local_size, world_size))
    return Place(
        node=settings.node, ranks=1, first_rank=rank, first_local_rank=local_rank, world_size=world_size,
        number=rank // local_size if local_rank == 0 or local_size == 1 else None, nodes=-(-world_size // local_size),
        processes=world_size, address=address or LOOPBACK, **options,
    )  # fmt: skip


def told() -> bool:
    """Say that torch is there, and wait until standard input has a line; False if it ends without one.

    So whoever stops a job for us stops it for what is measured, not for an import of many seconds.
    """
    print(READY, flush=True)  # noqa: T201 - to the launcher that has started us
    return bool(sys.stdin.readline())


def needs_torch() -> None:
    """Import torch, with its C++ silent and our hook asleep: this is no training process.

    Raises
    ------
    ConfigError
        If torch is not installed.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # a peer that is gone is ours to tell, in one sentence
    os.environ.pop("TRAINWARDEN_HOOK_DIR", None)
    try:
        import torch.distributed  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError("validate: torch is not installed here; pip install torch") from error


def wanted_of(place: Place, checks: str, burn_in_s: float, ranks: str | None, nodes: str | None) -> Wanted:
    """What is asked, by the options.

    Raises
    ------
    ConfigError
        If there is no such check or no such rank.
    """
    from trainwarden.actions.validation.participants import ValidationTargets
    from trainwarden.actions.validation.programme import Wanted

    words = _words(checks)
    if unknown := [one for one in words if one not in CHECKS]:
        raise ConfigError(f"validate: --checks knows {', '.join(CHECKS)}, not '{unknown[0]}'")
    numbers = _words(ranks or "")
    for one in numbers:
        if not (one.isascii() and one.isdigit() and len(one) < MOST_DIGITS and int(one) < place.world_size):
            raise ConfigError(f"validate: --ranks are numbers below {place.world_size}, not '{one}'")
    named = ValidationTargets(ranks=tuple(map(int, numbers)), nodes=_words(nodes or ""))
    if not named and (ranks is not None or nodes is not None):
        raise ConfigError("validate: --ranks and --nodes name at least one")
    return Wanted(checks=words, burn_in_s=burn_in_s, named=named)  # type: ignore[arg-type]


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.strip() for one in text.split(",") if one.strip()))


def run(place: Place, wanted: Wanted, baseline: Path | None) -> Validation | int:
    """The result of this place's part; a signal's exit code where one has ended it."""
    from trainwarden.actions.validation.baseline import Baseline
    from trainwarden.actions.validation.running.node import Node, Stopped

    if place.world_size == place.ranks:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # a machine's own name need not resolve
    asked: list[int] = []
    for number in stop_signals():
        signal.signal(number, lambda n, _frame: asked.append(n))
    try:
        return Node(place, wanted, lambda: bool(asked)).run(Baseline(baseline))
    except Stopped:
        return 128 + asked[0]
