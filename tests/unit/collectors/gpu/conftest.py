"""Nodes over the fake driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.collectors.gpu.node import Node


@pytest.fixture
def make_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: list[str]) -> Iterator[Callable[..., Node]]:
    nodes: list[Node] = []

    def make(**options: object) -> Node:
        nodes.append(Node(tmp_path, monkeypatch, **options))  # type: ignore[arg-type]
        return nodes[-1]

    yield make
    for node in nodes:
        node.collector.close()


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    return make_node()
