"""This machine's own address on the way to others, and the interface that has it."""

from __future__ import annotations

import socket

import psutil

from trainwarden.errors import ConfigError
from trainwarden.network.host_port import host_and_port


def own_host(rdzv: str) -> str:
    """This machine's address on its way to `rdzv`; nothing is sent.

    Raises
    ------
    ConfigError
        If `rdzv` cannot be resolved, or there is no way to it.

    Examples
    --------
    >>> own_host("127.0.0.1:29401")
    '127.0.0.1'
    """
    host, port = host_and_port(rdzv, "--rdzv")
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            own: str = probe.getsockname()[0]
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--rdzv: there is no way to '{rdzv[:200]}' ({error})") from error
    return own


def interface_of(host: str) -> str | None:
    """The network interface that has the address `host`; None if none has it.

    Examples
    --------
    >>> interface_of("127.0.0.1")
    'lo'
    """
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == host for one in addresses):
            return name
    return None
