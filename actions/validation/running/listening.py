"""Where the store of a validation listens: at the ranks' address and no other."""

from __future__ import annotations

import errno
import ipaddress
import socket
from typing import Final

from trainwarden.errors import ConfigError

_HERE: Final = "127.0.0.1"


def listen(address: str, port: int, *, alone: bool) -> socket.socket:
    """A socket at `address`; of this machine alone where all ranks are here.

    An address that is none of this host's, such as that of a service which forwards to it, is reached by whichever it
    is forwarded to; so is a name that this host alone takes for its loopback (Debian's 127.0.1.1).

    Raises
    ------
    ConfigError
        If its port is taken.
    """
    try:
        for family, own in [(socket.AF_INET, _HERE)] if alone else _addresses(address):
            try:
                return socket.create_server((own, port), family=family)
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
        return socket.create_server(("", port), family=socket.AF_INET)
    except OSError as error:
        raise ConfigError(f"validate: port {port} cannot be listened on ({error.strerror})") from error


def _addresses(name: str) -> list[tuple[int, str]]:
    """Families and addresses of `name`, as far as others could mean the same by it; IPv4 first."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    told = {(int(family), str(at[0])) for family, _, _, _, at in found}
    if name == "localhost":
        return sorted(told)
    return sorted(
        one for one in told if one[1] == name or not ipaddress.ip_address(one[1].partition("%")[0]).is_loopback
    )
