"""What certificates say once they are shown: whether they are in time, and whether who is asked believes who asks.

Nothing is sent: both ends of a TLS connection are held in memory, so that the words are those of OpenSSL itself.
"""

from __future__ import annotations

import ssl
import time
from typing import Final

from trainwarden.errors import ConfigError
from trainwarden.metrics_http.tls import PeerTls, server_context

_ROUNDS: Final = 16  # a handshake takes three
_OUT_OF_TIME: Final = frozenset({9, 10})  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED


def check_certificate(certificate: str, key: str, client_ca: str | None, setting: str) -> None:
    """That a server could show `certificate` with `key` now, and ask for certificates by `client_ca`.

    Raises
    ------
    ConfigError
        If a file cannot be used or is out of date; it names `setting`.
    """
    server = server_context(certificate, key, client_ca, setting)
    server.verify_mode = ssl.CERT_NONE  # nobody shows one here
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.load_verify_locations(certificate)
    asking.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # who signed it is the business of those who ask
    error = _refused(server, asking)
    if error is not None and error.verify_code in _OUT_OF_TIME:
        raise ConfigError(f"{setting}: {certificate}: {error.verify_message}")
    if client_ca is not None:
        check_authority(client_ca, setting)


def check_client_certificate(certificate: str, key: str, setting: str) -> None:
    """That a client could show `certificate` with `key` now.

    Raises
    ------
    ConfigError
        If a file cannot be used or is out of date; it names `setting`.
    """
    server = server_context(certificate, key, certificate, setting)
    server.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    asking = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    asking.check_hostname = False
    asking.verify_mode = ssl.CERT_NONE
    asking.load_cert_chain(certificate, key, password="")
    error = _refused(server, asking)
    if error is not None and error.verify_code in _OUT_OF_TIME:
        raise ConfigError(f"{setting}: {certificate}: {error.verify_message}")


def check_authority(ca: str, setting: str) -> None:
    """That the file `ca` holds an authority that is in time.

    Raises
    ------
    ConfigError
        If it cannot be used, or all that it holds are out of date; it names `setting`.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(ca)
    except (OSError, ValueError) as error:
        said = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{setting}: {ca} cannot be used ({said.replace('_', ' ').lower()})") from error
    ends_s = [ssl.cert_time_to_seconds(str(one["notAfter"])) for one in context.get_ca_certs() if "notAfter" in one]
    if ends_s and max(ends_s) < time.time():
        raise ConfigError(f"{setting}: {ca}: certificate has expired")


def check_peers(tls: PeerTls, setting: str) -> None:
    """That two services with these files would let each other in now.

    Raises
    ------
    ConfigError
        If a file cannot be used, or they would not; it names `setting`.
    """
    try:
        serving, asking = tls.serving(), tls.asking()
    except ConfigError as error:
        raise ConfigError(f"{setting}: {str(error).removeprefix('tls: ')}") from error
    asking.check_hostname = False  # by which name a node is asked is not known here
    why = _refused(serving, asking)
    if why is not None:
        raise ConfigError(f"{setting}: {tls.certificate} by {tls.ca}: {why.verify_message}")


def _refused(serving: ssl.SSLContext, asking: ssl.SSLContext) -> ssl.SSLCertVerificationError | None:
    """Why one of the two ends would not believe the other; None if both would."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [asking.wrap_bio(to_client, to_server), serving.wrap_bio(to_server, to_client, server_side=True)]
    for _ in range(_ROUNDS):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError as waits:
                if isinstance(waits.__cause__, ssl.SSLCertVerificationError):  # a server of ours says why first
                    return waits.__cause__
            except ssl.SSLCertVerificationError as error:
                return error
            except ssl.SSLError:
                return None  # of another kind: what a certificate says is not why
    return None
