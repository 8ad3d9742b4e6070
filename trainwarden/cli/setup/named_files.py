"""The files that settings name (tokens, secrets, certificates and keys): what would be said of each where it is used.

All are read as the services read them, so they are looked at on the machine where `check-config` runs. What is no
file (a pipe, a device) is not opened: a pipe that nobody fills would hold the command up for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

from trainwarden.cli.setup.mistakes import Mistake, Path_
from trainwarden.errors import ConfigError
from trainwarden.metrics_http.access import Tokens, read_token
from trainwarden.metrics_http.certificates import (
    check_authority,
    check_certificate,
    check_client_certificate,
    check_peers,
)
from trainwarden.metrics_http.tls import peer_tls
from trainwarden.metrics_http.web_config import WebConfigFile
from trainwarden.network.host_port import host_and_port
from trainwarden.settings import ServeSettings
from trainwarden.signing import look_at, read_secret

_TLS: Final = ("tls_ca", "tls_certificate", "tls_key")
_SHARED: Final = "token_file"


def of_serve(serve: ServeSettings) -> Iterator[Mistake]:
    """Mistakes in the tokens, secrets and certificates of `trainwarden serve`."""
    paths = serve.tokens or ()
    paths = (paths,) if isinstance(paths, str) else paths
    at = ("serve", "tokens")
    found = [one for path in paths for one in file_at(at, path, partial(Tokens.of_file, Path(path)))]
    yield from found
    if len(paths) > 1 and not found:
        yield from said_by(at, lambda: Tokens.of_files(map(Path, paths)))
    for name in ("grafana_secret_file", "slack_secret_file"):
        path = getattr(serve, name)
        yield from file_at(("serve", name), path, partial(read_secret, path, f"serve.{name}"))
    yield from _serving(serve)


def _serving(serve: ServeSettings) -> Iterator[Mistake]:
    certificate, key, ca = serve.tls_certificate, serve.tls_key, serve.tls_client_ca
    named = [name for name in ("tls_certificate", "tls_key", "tls_client_ca") if getattr(serve, name) is not None]
    if not named:
        return
    if certificate is None or key is None:
        sentence = "serve: tls_certificate and tls_key need each other, and tls_client_ca needs both"
        yield Mistake(("serve", named[0]), sentence)
        return
    bad = [one for name in named for one in file_at(("serve", name), getattr(serve, name))]
    yield from bad
    if not bad:
        at = ("serve", "tls_certificate")
        yield from said_by(at, lambda: check_certificate(certificate, key, None, "serve.tls_certificate"))
        if ca is not None:
            yield from said_by(("serve", "tls_client_ca"), lambda: check_authority(ca, "serve.tls_client_ca"))


def of_peers(table: Mapping[str, Any], at: Path_) -> Iterator[Mistake]:
    """Mistakes in the certificates of services that ask each other (`tls_ca`, `tls_certificate`, `tls_key`)."""
    named = [name for name in _TLS if table.get(name) is not None]
    bad = [one for name in named for one in file_at((*at, name), table[name])]
    yield from bad
    if named and not bad:
        yield from said_by((*at, named[0]), lambda: _peers(table, ".".join(at)))


def _peers(table: Mapping[str, Any], setting: str) -> None:
    tls = peer_tls(*(table.get(name) for name in _TLS))
    assert tls is not None
    check_peers(tls, setting)


def of_launcher(table: Mapping[str, Any], at: Path_) -> Iterator[Mistake]:
    """Mistakes in what a launcher's settings name; they go by the same words in all launchers."""
    for one in str(table.get("endpoint") or "").split(","):
        if one.strip():
            yield from said_by((*at, "endpoint"), partial(host_and_port, one.strip(), "launcher_settings.endpoint"))
    if (token := table.get(_SHARED)) is not None:
        yield from file_at((*at, _SHARED), token, lambda: read_token(Path(token)))
    if (secret := table.get("secret_file")) is not None:
        setting = "launcher_settings.secret_file"
        yield from file_at((*at, "secret_file"), secret, lambda: read_secret(secret, setting))
    for name in ("kubeconfig", "slurm_conf"):
        if table.get(name) is not None:
            yield from file_at((*at, name), table[name])
    yield from of_peers(table, at)


def of_kafka(table: Mapping[str, Any], at: Path_) -> Iterator[Mistake]:
    """Mistakes in the files of a Kafka client."""
    bad: list[Mistake] = []
    for name in ("ca_file", "cert_file", "key_file", "password_file"):
        if table.get(name) is not None:
            bad += file_at((*at, name), table[name])
    yield from bad
    if bad:
        return
    certificate, key, ca = (table.get(name) for name in ("cert_file", "key_file", "ca_file"))
    if ca is not None:
        yield from said_by((*at, "ca_file"), lambda: check_authority(ca, "kafka.ca_file"))
    if certificate is not None and key is not None:
        place = (*at, "cert_file")
        yield from said_by(place, lambda: check_client_certificate(certificate, key, "kafka.cert_file"))


def check_web_config(path: Path) -> None:
    """That the exporters' web configuration at `path` can be used, with the certificate that it names.

    Raises
    ------
    ConfigError
        If it cannot.
    """
    tls = WebConfigFile(path).now()[0].tls_server_config
    if tls is not None:
        certificate, key = str(path.parent / tls.cert_file), str(path.parent / tls.key_file)
        ca = None if tls.client_ca_file is None else str(path.parent / tls.client_ca_file)
        check_certificate(certificate, key, ca, str(path))


def said_by(at: Path_, use: Callable[[], object]) -> list[Mistake]:
    """What is said against the file that a setting names, where it is used."""
    try:
        use()
    except ConfigError as error:
        return [Mistake(at, str(error))]
    return []


def file_at(at: Path_, path: str | None, use: Callable[[], object] | None = None) -> list[Mistake]:
    """What is said against the file at `path`, where one is named: that it is no file, else what `use` says."""
    if path is None:
        return []
    bad = said_by(at, lambda: look_at(Path(path), ".".join(at)))
    return bad if bad or use is None else said_by(at, use)
