"""``HOST:PORT``, read in one place."""

from __future__ import annotations

import re
from typing import Final

from trainwarden.errors import ConfigError

MAX_PORT: Final = 65_535  # 16 bits (RFC 9293)
# A name, an IPv4 address, or an IPv6 address in brackets (RFC 3986, 3.2.2); nothing of a URL, and linear to match.
_HOST_PORT: Final = re.compile(r"(?:\[([0-9A-Za-z:.%_-]{2,128})\]|([^\s\x00-\x1f:/@\[\]]{1,255})):([0-9]{1,5})")


def host_and_port(text: str, setting: str, *, least_port: int = 1) -> tuple[str, int]:
    """Host, without brackets, and port of `text`.

    Parameters
    ----------
    setting : str
        Where `text` stands, for the error.
    least_port : int
        0 where a listener may take any port that is free.

    Raises
    ------
    ConfigError
        If `text` is no such address.

    Examples
    --------
    >>> host_and_port("10.0.0.1:29401", "--rdzv"), host_and_port("[fd00::1]:29401", "--rdzv")
    (('10.0.0.1', 29401), ('fd00::1', 29401))
    """
    found = _HOST_PORT.fullmatch(text)
    if found is None or not least_port <= int(found[3]) <= MAX_PORT:
        brackets = "; an IPv6 address stands in brackets" if text.count(":") > 1 and "[" not in text else ""
        raise ConfigError(f"{setting}: '{text[:200]}' is not HOST:PORT{brackets}")
    return found[1] or found[2], int(found[3])
