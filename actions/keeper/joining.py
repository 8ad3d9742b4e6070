"""How a keeper that was started with its job learns the ring: by two files in a folder of the launcher.

It leaves there where it listens and its request for a certificate, and finds the ring of the newest round. Its key is
made here and lies in no file: what TLS reads it from is memory of this process.
"""

from __future__ import annotations

import os
import socket
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from trainwarden.errors import ConfigError
from trainwarden.hook.memory import read_beside
from trainwarden.metrics_http.tls import PeerTls
from trainwarden.torchrun.files import put_whole

REQUEST: Final = "request.json"
RING: Final = "ring.json"
_MOST_BYTES: Final = 1024 * 1024


class Known(msgspec.Struct, frozen=True):
    """The ring as the rendezvous service says it (`trainwarden.actions.launchers.torchrun.messages.Ring`)."""

    round: int
    nodes: tuple[tuple[str, str, int], ...]
    ca: str
    certificate: str


@dataclass(frozen=True, slots=True)
class Joined:
    """The keepers of a round with their addresses, in the order of copying, and how they are spoken to."""

    round: int
    places: Mapping[str, tuple[str, int]]
    serving: ssl.SSLContext
    asking: ssl.SSLContext


class Joining:
    """See the module.

    Parameters
    ----------
    folder : Path
        Of the launcher.
    host : str
        The address of this node by which the others reach it; nothing else is listened on.
    node : str
        This node's name.

    Raises
    ------
    ConfigError
        If the address cannot be listened on, the package that makes keys is missing, or others can write into `folder`.
    """

    def __init__(self, folder: Path, host: str, node: str) -> None:
        self._node = node
        self._folder = Path(_path(_ours(folder)))  # this very one, whatever is put in its place
        try:
            family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
            self.server = socket.create_server((host, 0), family=family)
            key, request = _request(node)
        except OSError as error:
            raise ConfigError(f"--joins: {host} cannot be listened on ({error.strerror or error})") from error
        except ImportError as error:
            raise ConfigError("--joins: the keys of several nodes need the package cryptography") from error
        self._key = _in_memory("key", key)
        self._read = b""
        port = self.server.getsockname()[1]
        asked = msgspec.json.encode({"pid": os.getpid(), "port": port, "request": request})
        put_whole(self._folder / REQUEST, asked.decode())

    def news(self) -> Joined | None:
        """The ring, if it is another than at the last call.

        Raises
        ------
        OSError
            If what lies there is no plain file.
        ConfigError
            If its certificate is not for our key: it was asked for by a keeper before us.
        """
        try:
            said = read_beside(str(self._folder / RING), _MOST_BYTES)
        except FileNotFoundError:
            return None
        if said == self._read:
            return None
        try:
            known = msgspec.json.decode(said, type=Known)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"--joins: {RING} is not what a launcher writes ({error})") from error
        with (
            os.fdopen(_in_memory("ca", known.ca.encode()), "rb") as ca,
            os.fdopen(_in_memory("certificate", known.certificate.encode()), "rb") as certificate,
        ):
            files = PeerTls(ca=_path(ca.fileno()), certificate=_path(certificate.fileno()), key=_path(self._key))
            joined = Joined(
                known.round, {name: (host, port) for name, host, port in known.nodes}, files.serving(), files.asking()
            )
        if self._node not in joined.places:
            raise ConfigError(f"--joins: the ring does not name this node, '{self._node}'")
        joined.serving.minimum_version = ssl.TLSVersion.TLSv1_3
        self._read = said
        return joined


def _request(node: str) -> tuple[bytes, str]:
    """A new key and the request for its certificate."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, node[:64])])
    asked = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return private, asked.public_bytes(pem).decode()


def _ours(folder: Path) -> int:
    """The open folder: whoever writes there says whom the keeper gives the checkpoints to."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(f"--joins: {folder} cannot be used ({error.strerror or error})") from error
    about = os.fstat(descriptor)
    if about.st_uid != os.geteuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(descriptor)
        raise ConfigError(f"--joins: {folder} must belong to this user, and nobody else may write into it")
    return descriptor


def _in_memory(name: str, data: bytes) -> int:
    descriptor = os.memfd_create(f"trainwarden-{name}", os.MFD_CLOEXEC)
    os.write(descriptor, data)
    return descriptor


def _path(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"
