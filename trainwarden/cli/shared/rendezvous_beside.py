"""The rendezvous of torchrun jobs beside another command: its address said once, gone with it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Final

from trainwarden import plugins
from trainwarden.actions.launchers.torchrun.client import TorchrunConfig, TorchrunLauncher
from trainwarden.actions.launchers.torchrun.host import RendezvousHost
from trainwarden.clock import SystemClock
from trainwarden.metrics_http.access import read_token
from trainwarden.metrics_http.tls import peer_tls
from trainwarden.settings import Settings

SERVED_S: Final = 2.0  # a free port is had at once


class RendezvousBeside:
    """Serves where the engine of `settings` looks for it; nothing is served for an engine with another launcher.

    Parameters
    ----------
    bus : str
        To which nodes that nobody watches are watched.

    Raises
    ------
    ConfigError
        If the launcher's settings, its token or a file of TLS cannot be used.
    """

    def __init__(self, settings: Settings, run_dir: Path, bus: str) -> None:
        self._job, self._run_dir, self._host = settings.job, run_dir, None
        self._said = settings.engine.launcher != "torchrun"
        if self._said:
            return
        raw = settings.engine.launcher_settings
        config = plugins.configure(TorchrunLauncher, raw, "engine.launcher_settings")
        assert isinstance(config, TorchrunConfig)
        self._config, self._begun_s = config, SystemClock().monotonic_s()
        self._host = RendezvousHost(
            config.endpoint.split(",")[0].strip(),
            token=None if config.token_file is None else read_token(Path(config.token_file)),
            tls=peer_tls(config.tls_ca, config.tls_certificate, config.tls_key), bus=bus,
        )  # fmt: skip
        self._host.start()

    def news(self) -> str | None:
        """One sentence, once: how a torchrun job joins, or why none is served here yet."""
        if self._said or self._host is None:
            return None
        served = self._host.served(0.0)
        self._said = served is not None or SystemClock().monotonic_s() - self._begun_s > SERVED_S
        if served is not None:
            return f"a torchrun job joins it by: {self._joining(served)} torchrun --nproc-per-node 4 train.py"
        return f"no rendezvous is served here: {self._host.why}" if self._said else None

    def close(self) -> None:
        """Serve no more; ranks train on without it."""
        if self._host is not None:
            self._host.close(farewell_s=0.0)

    def _joining(self, address: str) -> str:
        """The environment by which a torchrun of this machine takes part, watched by the agent that is here already."""
        names = "token_file", "tls_ca", "tls_certificate", "tls_key"
        paths = ((name, getattr(self._config, name)) for name in names)
        conf = ",".join(f"{name}={Path(path).absolute()}" for name, path in paths if path is not None)
        words = {
            "TRAINWARDEN_RUN_DIR": str(self._run_dir), "PET_RDZV_BACKEND": "trainwarden",
            "PET_RDZV_ENDPOINT": address, "PET_RDZV_ID": self._job, **({"PET_RDZV_CONF": conf} if conf else {}),
        }  # fmt: skip
        return " ".join(f"{name}={shlex.quote(value)}" for name, value in words.items())
