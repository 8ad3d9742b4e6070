"""The rendezvous of torchrun jobs beside another command: its address said once, gone with it."""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from trainwarden import plugins
from trainwarden.actions.launchers.torchrun.client import TorchrunConfig, TorchrunLauncher
from trainwarden.actions.launchers.torchrun.host import RendezvousHost
from trainwarden.actions.remedies.policy import Rules
from trainwarden.cli.shared.engine_beside import as_toml
from trainwarden.errors import ConfigError
from trainwarden.metrics_http.access import read_token
from trainwarden.metrics_http.tls import peer_tls
from trainwarden.settings import Settings
from trainwarden.torchrun.files import put_whole

SERVED_S: Final = 10.0
WORD: Final = "rendezvous.token"


def run_token(run_dir: Path) -> Path:
    """A file with a new token of this run, which only this user can read.

    Raises
    ------
    ConfigError
        If it cannot be written.
    """
    token = (run_dir / WORD).absolute()
    try:
        put_whole(token, secrets.token_hex(16))
    except OSError as error:
        raise ConfigError(f"the rendezvous' token cannot be written: {error}") from error
    return token


class RendezvousBeside:
    """Serves where the engine of `settings` looks for it; nothing is served for an engine with another launcher.

    Where the settings name no endpoint it is served on a free port, with a token of its own: an engine never asks the
    rendezvous of another user of this machine.

    Parameters
    ----------
    bus : str
        To which nodes that nobody watches are watched.

    Attributes
    ----------
    engine : mapping of str to str
        What the engine is started with.

    Raises
    ------
    ConfigError
        If the launcher's settings, its token or a file of TLS cannot be used, or no port can be had.
    """

    def __init__(self, settings: Settings, run_dir: Path, bus: str) -> None:
        self._job, self._run_dir, self.engine = settings.job, run_dir, dict[str, str]()
        self._host: RendezvousHost | None = None
        self._said: set[bool] = set()
        # Where a restart is only proposed, or waits for approval, a failed rank ends its job, as under torchrun alone.
        restarts = Rules.of(settings.engine).mode_of("restart_process") == "auto"
        self._restarts = () if restarts else ("max_failures=1", "renew=no")
        if settings.engine.launcher != "torchrun":
            return
        asked = settings.engine.launcher_settings
        own = "endpoint" not in asked
        if own:
            asked = {"token_file": str(run_token(run_dir)), **asked, "endpoint": "127.0.0.1:0"}
        self._config = _configured(asked)
        config = self._config
        self._host = RendezvousHost(
            config.endpoint.split(",")[0].strip(),
            token=None if config.token_file is None else read_token(Path(config.token_file)),
            tls=peer_tls(config.tls_ca, config.tls_certificate, config.tls_key), bus=bus,
        )  # fmt: skip
        self._host.start()
        if own:
            address = self._host.served(SERVED_S)
            if address is None:
                raise ConfigError(f"no rendezvous was served within {SERVED_S:.0f} s: {self._host.why}")
            asked = {**asked, "endpoint": address}
            self.engine = {"TRAINWARDEN_ENGINE_LAUNCHER_SETTINGS": as_toml(asked)}

    def news(self) -> str | None:
        """One sentence, each once: how a torchrun job joins, and before that why none is served here yet."""
        if self._host is None or True in self._said:
            return None
        served = self._host.served(0.0)
        if served is None and (self._said or not self._host.why):
            return None
        self._said.add(served is not None)
        if served is None:
            return f"no rendezvous is served here yet: {self._host.why}"
        return f"a torchrun job joins it by: {self._joining(served)} torchrun --nproc-per-node 4 train.py"

    def close(self) -> None:
        """Serve no more; ranks train on without it."""
        if self._host is not None:
            self._host.close(farewell_s=0.0)

    def _joining(self, address: str) -> str:
        """The environment by which a torchrun of this machine takes part, watched by the agent that is here already."""
        names = "token_file", "tls_ca", "tls_certificate", "tls_key"
        paths = ((name, getattr(self._config, name)) for name in names)
        conf = ",".join(
            [*(f"{name}={Path(path).absolute()}" for name, path in paths if path is not None), *self._restarts]
        )
        words = {
            "TRAINWARDEN_RUN_DIR": str(self._run_dir), "PET_RDZV_BACKEND": "trainwarden",
            "PET_RDZV_ENDPOINT": address, "PET_RDZV_ID": self._job, **({"PET_RDZV_CONF": conf} if conf else {}),
        }  # fmt: skip
        return " ".join(f"{name}={shlex.quote(value)}" for name, value in words.items())


def _configured(settings: Mapping[str, Any]) -> TorchrunConfig:
    config = plugins.configure(TorchrunLauncher, settings, "engine.launcher_settings")
    assert isinstance(config, TorchrunConfig)
    return config
