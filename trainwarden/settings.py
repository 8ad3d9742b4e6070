"""Settings: one TOML file, then environment variables, checked at start, one clear sentence per mistake."""

from __future__ import annotations

import os
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

from trainwarden.errors import ConfigError
from trainwarden.signing import read_file

PositiveSeconds = Annotated[float, msgspec.Meta(gt=0.0, le=86_400.0)]
ArchivedTopic = Literal["metrics", "iterations", "collectives", "logs", "events", "verdicts", "incidents", "actions"]
PluginSettings = dict[str, Any] | bool
"""What settings say of one plug-in: its own table, True (run it as it comes), or False (do not run it)."""
S = TypeVar("S", bound=msgspec.Struct)
MAX_BYTES: Final = 1_048_576  # what is longer is no settings file


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Root of all configuration: frozen, unknown keys refused, bounds in the annotations."""


class AgentSettings(Config, frozen=True, kw_only=True):
    """The node agent. `collectors` says what differs from the default set, collector by collector.

    A collector whose turn takes longer than `collect_deadline_s` is skipped until it comes back.
    """

    collectors: dict[str, PluginSettings] = msgspec.field(default_factory=dict)
    spool_bytes: Annotated[int, msgspec.Meta(ge=65_536)] = 256 * 1024 * 1024
    flush_timeout_s: PositiveSeconds = 5.0
    collect_deadline_s: PositiveSeconds = 2.0
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None = None


class DetectionSettings(Config, frozen=True, kw_only=True):
    """The detection service, and the folder of its `models`; without any, `own_models` are taught by each job's start.

    `detectors` says what differs from the default set, detector by detector, `ensemble` what differs from the rule.
    """

    detectors: dict[str, PluginSettings] = msgspec.field(default_factory=dict)
    models: str | None = None
    models_every_s: PositiveSeconds = 10.0
    own_models: bool = True
    shadow: bool = True
    ensemble: dict[str, Any] = msgspec.field(default_factory=dict)
    rewind_s: PositiveSeconds = 3600.0
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None = None


class EngineSettings(Config, frozen=True, kw_only=True):
    """The action engine: what it may do and how often; `policy` holds limits (`trainwarden.actions.remedies.policy`).

    `remedies` names a file laid over the table of what is done about what (``actions/remedies/remedies.toml``).
    """

    mode: Literal["observe", "confirm", "auto"] = "observe"
    launcher: str = "torchrun"
    launcher_settings: dict[str, Any] = msgspec.field(default_factory=dict)
    policy: dict[str, Any] = msgspec.field(default_factory=dict)
    remedies: str | None = None
    actions_per_hour: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 12
    cool_down_s: Annotated[float, msgspec.Meta(ge=0.0, le=86_400.0)] = 10.0
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None = None

    def __post_init__(self) -> None:
        """Whoever names the launcher of earlier versions is told of its successor."""
        if self.launcher == "local":
            raise ValueError("launcher 'local' is gone, use 'torchrun'")


class TaskSettings(Config, frozen=True, kw_only=True):
    """A job that may be given nodes, and taken from; see `trainwarden.records.TaskRecord`."""

    job: Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
    weight: Annotated[float, msgspec.Meta(ge=0.0, le=1e6)] = 1.0
    minimum: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 1
    maximum: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    work_per_step: Annotated[float, msgspec.Meta(gt=0.0, le=1e30)] = 1.0
    work_grows: bool = False
    throughput: tuple[Annotated[float, msgspec.Meta(ge=0.0, le=1e30)] | None, ...] = ()


class CoordinatorSettings(Config, frozen=True, kw_only=True):
    """The coordinator of many jobs' nodes. The engine's settings say what it may do, how often, and by which launcher.

    `running_s` is the expected time to the next change of the cluster, `transition_s` how long a changed job stands
    still.
    """

    tasks: Annotated[tuple[TaskSettings, ...], msgspec.Meta(max_length=1000)] = ()
    running_s: PositiveSeconds = 86_400.0
    transition_s: PositiveSeconds = 120.0
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None = None


class LaunchSettings(Config, frozen=True, kw_only=True):
    """The command ``launch``: how long it waits for whom, and where the job's checkpoints lie.

    In mode ``confirm`` a failed job waits `person_grace_s` for a restart that a person asks for. Between SIGTERM and
    SIGKILL lie `stop_grace_s`. Before a restart is measured whom `validate_restarts` names. Nodes speak TLS with those
    whose certificate `tls_ca` has signed, and show `tls_certificate`.
    """

    checkpoints: str | None = None
    person_grace_s: PositiveSeconds = 3600.0
    stop_grace_s: PositiveSeconds = 3.0
    validate_restarts: Literal["off", "suspects", "always"] = "suspects"
    tls_ca: str | None = None
    tls_certificate: str | None = None
    tls_key: str | None = None


class ArchiveSettings(Config, frozen=True, kw_only=True):
    """The archive service: where, how long rows wait in memory, when files are joined and when they go.

    `keep_days` counts from the day a record reached the bus; a topic that is not named keeps its default.
    """

    folder: str = "trainwarden-archive"
    flush_bytes: Annotated[int, msgspec.Meta(ge=4_096, le=4 * 1024**3)] = 64 * 1024 * 1024
    flush_s: PositiveSeconds = 60.0
    compact_files: Annotated[int, msgspec.Meta(ge=2, le=10_000)] = 32
    compact_bytes: Annotated[int, msgspec.Meta(ge=65_536)] = 512 * 1024 * 1024
    maintain_every_s: PositiveSeconds = 60.0
    keep_days: dict[ArchivedTopic, Annotated[int, msgspec.Meta(ge=1, le=36_500)]] = msgspec.field(default_factory=dict)
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None = None


class TrainerSettings(Config, frozen=True, kw_only=True):
    """The trainer service: what it trains on (default the archive), where models go, and when it trains again.

    Besides every `every_s`, it trains when the normal scores of a detector drift: when the median of its last
    `drift_verdicts` normal votes leaves the middle 98 % of its first ones under the same version. Two trainings are
    `pause_s` apart at least, except where a person asks. `prepare`, `models` and `gate` say how data is prepared, what
    is fitted and which floors hold, for the command ``train`` too (docs/training.md); so does `dask`, the address of a
    Dask scheduler whose workers read and prepare the data.
    """

    data: str | None = None
    registry: str | None = None
    normal_until: str | None = None
    dask: str | None = None
    every_s: Annotated[float, msgspec.Meta(gt=0.0, le=366 * 86_400.0)] = 7 * 86_400.0
    check_every_s: PositiveSeconds = 10.0
    drift_verdicts: Annotated[int, msgspec.Meta(ge=20, le=1_000_000)] = 1_000
    pause_s: Annotated[float, msgspec.Meta(ge=0.0, le=366 * 86_400.0)] = 3_600.0
    prepare: dict[str, Any] = msgspec.field(default_factory=dict)
    models: dict[str, Any] = msgspec.field(default_factory=dict)
    gate: dict[str, Any] = msgspec.field(default_factory=dict)
    metrics_port: Annotated[int, msgspec.Meta(ge=0, le=65_535)] | None = None


class ServeSettings(Config, frozen=True, kw_only=True):
    """The API, the page and the metrics of all jobs: where it listens, and who may ask.

    `tokens` names files with lines ``NAME ROLE TOKEN``; without one only this machine may be listened on, and a token
    is made up at each start. `hosts` are names by which browsers may call this server, besides its own. Clients need
    a certificate that `tls_client_ca` has signed. Files of secrets check signed webhooks; of the chat's members only
    `slack_users` (their ids) may act. `notices` are tables of who is told (`trainwarden.dashboards.notices.targets`).
    """

    listen: str = "127.0.0.1:8760"
    tokens: str | tuple[str, ...] | None = None
    hosts: tuple[str, ...] = ()
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None
    grafana_secret_file: str | None = None
    slack_secret_file: str | None = None
    slack_users: tuple[str, ...] = ()
    notices: tuple[dict[str, Any], ...] = ()


class CommandsSettings(Config, frozen=True, kw_only=True):
    """The file of the `key` that signs our words to the engine, and that of the keys that are `trusted` (None: all)."""

    key: str | None = None
    trusted: str | None = None


class RunsSettings(Config, frozen=True, kw_only=True):
    """Runs of watch, launch and demo that are kept for their user, and how large one may grow.

    Runs stay for `keep_days`, in `total_bytes` at most, newest first, and `keep` in number where that is set.
    `log_bytes` is for the output of one job,
    `bus_bytes` for an embedded bus (also that of `up`): above it the oldest records go. With `page`, watch and launch
    serve the page of their run on a free port of this machine.
    """

    keep: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None
    keep_days: Annotated[int, msgspec.Meta(ge=1, le=36_500)] = 30
    total_bytes: Annotated[int, msgspec.Meta(ge=1_048_576)] = 8 * 1024**3
    log_bytes: Annotated[int, msgspec.Meta(ge=65_536)] = 256 * 1024**2
    bus_bytes: Annotated[int, msgspec.Meta(ge=1_048_576)] = 1024**3
    page: bool = True


JOB_NAME: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
"""A regular expression; records, metrics, files and operations of launchers are named by it."""
DEFAULT_BUS: Final = "embedded:trainwarden.db"


class Settings(Config, frozen=True, kw_only=True):
    """Everything. `bus` is ``embedded:PATH`` or ``kafka://host:port[,host:port...]``.

    `metrics_address` is where every service with a `metrics_port` listens; only this machine, if nothing is said.
    `metrics_web_config` is a file with TLS and passwords for that, in the form of Prometheus' exporters.
    """

    job: Annotated[str, msgspec.Meta(pattern=f"^{JOB_NAME}$")] = "job"
    node: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,252}$")] = msgspec.field(
        default_factory=socket.gethostname
    )
    bus: str = DEFAULT_BUS
    run_dir: str | None = None
    state_dir: str | None = None
    metrics_address: str = "127.0.0.1"
    metrics_web_config: str | None = None
    kafka: dict[str, Any] = msgspec.field(default_factory=dict)
    agent: AgentSettings = msgspec.field(default_factory=AgentSettings)
    detection: DetectionSettings = msgspec.field(default_factory=DetectionSettings)
    engine: EngineSettings = msgspec.field(default_factory=EngineSettings)
    coordinator: CoordinatorSettings = msgspec.field(default_factory=CoordinatorSettings)
    launch: LaunchSettings = msgspec.field(default_factory=LaunchSettings)
    archive: ArchiveSettings = msgspec.field(default_factory=ArchiveSettings)
    trainer: TrainerSettings = msgspec.field(default_factory=TrainerSettings)
    serve: ServeSettings = msgspec.field(default_factory=ServeSettings)
    runs: RunsSettings = msgspec.field(default_factory=RunsSettings)
    commands: CommandsSettings = msgspec.field(default_factory=CommandsSettings)


def checkpoints_of(settings: Settings, named: Path | None = None) -> Path | None:
    """The folder of the job's checkpoints: `named` by a command, else the settings'; None if neither names it."""
    return named or (Path(settings.launch.checkpoints) if settings.launch.checkpoints else None)


def parse(kind: type[S], raw: Mapping[str, Any], where: str) -> S:
    """`raw` as a checked `kind`.

    Raises
    ------
    ConfigError
        One sentence: where, what is wrong, what is allowed.

    Examples
    --------
    >>> parse(EngineSettings, {"mode": "yolo"}, "engine")
    Traceback (most recent call last):
    trainwarden.errors.ConfigError: engine: invalid enum value 'yolo' at mode
    """
    try:
        return msgspec.convert(raw, kind, strict=True)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {sentence_of(str(error))}") from error


def sentence_of(message: str) -> str:
    """msgspec's message with the path in a person's words."""
    text, _, path = message.partition(" - at `$")
    path = path.rstrip("`").lstrip(".")
    text = text[:1].lower() + text[1:]
    text = text.replace("object contains unknown field `", "unknown key `").replace("object missing", "missing")
    return f"{text} at {path}" if path else text


def load(path: Path | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from `path` (TOML) with ``TRAINWARDEN_JOB``, ``TRAINWARDEN_ENGINE_MODE`` and the like laid over it.

    Raises
    ------
    ConfigError
        If the file cannot be read, is no TOML, or holds a mistake.
    """
    raw = {} if path is None else read(path)[0]
    raw = _overlay(raw, os.environ if environ is None else environ)
    return parse(Settings, raw, str(path) if path else "settings")


def read(path: Path) -> tuple[dict[str, Any], str]:
    """A settings file as it is, unchecked: its table and its text.

    Raises
    ------
    ConfigError
        If the file cannot be read, is none, has more than `MAX_BYTES` or is no TOML.
    """
    try:
        text = read_file(path, MAX_BYTES).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
        return tomllib.loads(text), text
    except (ValueError, RecursionError) as error:  # also of a number with thousands of digits
        raise ConfigError(f"{path}: is not valid TOML ({error})") from error


_TOP = ("job", "node", "bus", "run_dir", "state_dir", "metrics_address", "metrics_web_config")
_SECTIONS: dict[str, type[Config]] = {
    field.name: field.type
    for field in msgspec.structs.fields(Settings)
    if isinstance(field.type, type) and issubclass(field.type, Config)
}


def _overlay(raw: dict[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """`raw` with environment variables laid over it; values are read as TOML where that works, else as text."""
    merged = dict(raw)
    for key in _TOP:
        if (value := environ.get(f"TRAINWARDEN_{key.upper()}")) is not None:
            merged[key] = value
    for section, kind in _SECTIONS.items():
        for field in kind.__struct_fields__:
            value = environ.get(f"TRAINWARDEN_{section}_{field}".upper())
            if value is not None and isinstance(merged.get(section, {}), dict):
                merged[section] = {**merged.get(section, {}), field: _plain(value)}
    return merged


def _plain(value: str) -> Any:
    try:
        return tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return value
