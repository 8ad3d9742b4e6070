"""Nodes over the fake driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from tests.servers.fake_nvml import CompilerMissing
from tests.unit.collectors.gpu.node import Node


@pytest.fixture
def make_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, require_servers: Callable[[str], NoReturn]
) -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def make(**options: object) -> Node:
        try:
            nodes.append(Node(tmp_path, monkeypatch, **options))  # type: ignore[arg-type]
        except CompilerMissing as missing:
            require_servers(str(missing))
        return nodes[-1]

    yield make
    for node in nodes:
        node.collector.close()


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    return make_node()
