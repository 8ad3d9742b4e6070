"""Files of secrets and keys are read whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trainwarden.commands.keys import new_signer, trusted_of
from trainwarden.dashboards.notices import targets
from trainwarden.errors import ConfigError
from trainwarden.metrics_http.access import Tokens, read_token
from trainwarden.signing import read_secret

LINE = new_signer("ann").public_line("act") + "\n"
READERS: list[tuple[Callable[[Path], object], str, str]] = [
    (trusted_of, LINE, "# ours\n" * 200_000),
    (Tokens.of_file, "ann observe " + "t" * 40 + "\n", "# ours\n" * 200_000),
    (read_token, "t" * 40, "\n" * 20_000),
    (lambda path: read_secret(str(path), "x"), "s" * 40, "\n" * 5_000),
    (lambda path: targets._held(str(path), "x"), "w" * 40, "\n" * 5_000),
]


@pytest.mark.parametrize(("reader", "text", "more"), READERS, ids=["trusted", "tokens", "lease", "secret", "notice"])
def test_what_is_too_long_is_refused_and_never_cut(
    reader: Callable[[Path], object], text: str, more: str, tmp_path: Path
) -> None:
    path = tmp_path / "held"
    path.write_text(text + more)
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="has more than"):
        reader(path)
    path.write_text(text)
    reader(path)
