"""TLS of our own servers and askers: contexts from files, and one sentence for whatever goes wrong."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any, Final

import msgspec

from trainwarden.errors import ConfigError

_TEXT: Final = b"this port speaks TLS: ask by https://\n"
PLAIN_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_TEXT), _TEXT)
)
"""What somebody is told who asks a port that speaks TLS in plain text."""
HANDSHAKE: Final = 22  # the first byte of a connection that begins with TLS (RFC 8446, section 5.1)
_ALERTS: Final = {
    "CERTIFICATE_EXPIRED": "it says that our certificate is out of date",
    "CERTIFICATE_REQUIRED": "it wants a certificate of ours",
    "HANDSHAKE_FAILURE": "it wants a certificate of ours, or another version of TLS",
    "UNKNOWN_CA": "it does not trust who signed our certificate",
}


class _Telling(ssl.SSLObject):
    """A connection that says why nothing comes of it: asyncio hangs up before TLS's own word for that has gone out."""

    outgoing: ssl.MemoryBIO
    told = False

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError as error:
            if error.reason == "HTTP_REQUEST" and not self.told:
                self.outgoing.write(PLAIN_ANSWER)
            if self.told or not self.outgoing.pending:
                raise
            self.told = True
            raise ssl.SSLWantReadError from error  # by which asyncio sends what is to go out, and the other hangs up


class ServerContext(ssl.SSLContext):
    """A server's context, for asyncio, by which those who are not let in are told why."""

    sslobject_class = _Telling

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **more: Any) -> ssl.SSLObject:
        """See `ssl.SSLContext`."""
        made = super().wrap_bio(incoming, outgoing, *args, **more)
        assert isinstance(made, _Telling)
        made.outgoing = outgoing
        return made


class PeerTls(msgspec.Struct, frozen=True, kw_only=True):
    """Files of one of several services that ask each other, all of them with certificates by the authority `ca`."""

    ca: str
    certificate: str
    key: str

    def serving(self) -> ssl.SSLContext:
        """For answering: only who shows a certificate by `ca`.

        Raises
        ------
        ConfigError
            If a file cannot be used.
        """
        return server_context(self.certificate, self.key, self.ca, "tls")

    def asking(self) -> ssl.SSLContext:
        """For asking, with our certificate.

        Raises
        ------
        ConfigError
            If a file cannot be used.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        _trust(context, self.ca, "tls")
        _load(context, self.certificate, self.key, "tls")
        return context


def peer_tls(ca: str | Path | None, certificate: str | Path | None, key: str | Path | None) -> PeerTls | None:
    """The files that settings or options name; None if they name none.

    Raises
    ------
    ConfigError
        If they name some and not all.
    """
    named = [None if path is None else str(path) for path in (ca, certificate, key)]
    if named == [None, None, None]:
        return None
    if None in named:
        raise ConfigError("tls: the authority (tls-ca), the certificate and its key need each other")
    return PeerTls(ca=str(ca), certificate=str(certificate), key=str(key))


def server_context(certificate: str, key: str, client_ca: str | None, setting: str) -> ServerContext:
    """For a server with `certificate` and `key`, which lets in those alone whose certificate `client_ca` has signed.

    Raises
    ------
    ConfigError
        If one of the files cannot be used; it names `setting`.
    """
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    _load(context, certificate, key, setting)
    if client_ca is not None:
        _trust(context, client_ca, setting)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def trouble(error: Exception) -> str:
    """What went wrong with a connection, in one clause.

    Examples
    --------
    >>> trouble(ConnectionRefusedError(111, "Connection refused"))
    '[Errno 111] Connection refused'
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not good: {error.verify_message.rstrip('.')}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or ""
        if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
            return "it does not speak TLS"
        said = next((said for name, said in _ALERTS.items() if reason.endswith(f"ALERT_{name}")), None)
        return said or f"TLS: {reason.replace('_', ' ').lower() or error}"
    return str(error)


def _load(context: ssl.SSLContext, certificate: str, key: str, setting: str) -> None:
    try:
        # An empty password: a key that asks for one must not stop a service at a prompt.
        context.load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{setting}: {_files(certificate, key)} cannot be used ({_why(error)})") from error


def _trust(context: ssl.SSLContext, ca: str, setting: str) -> None:
    try:
        context.load_verify_locations(ca)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{setting}: {ca} cannot be used ({_why(error)})") from error


def _files(certificate: str, key: str) -> str:
    missing = [path for path in (certificate, key) if not Path(path).exists()]
    return missing[0] if missing else f"{certificate} with {key}"


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    return getattr(error, "strerror", None) or str(error)
