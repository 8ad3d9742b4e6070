"""The plug-in and its player, compiled once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests import nccl_player


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, require_servers: Callable[[str], NoReturn]) -> tuple[Path, Path]:
    try:
        return nccl_player.compile_plugin(tmp_path_factory.mktemp("nccl"))
    except nccl_player.CompilerMissing as missing:
        require_servers(str(missing))
