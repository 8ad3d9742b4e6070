"""Text of exporters, as they write it and as they do not."""

from __future__ import annotations

import time

import pytest

from collectors.prometheus.exposition import samples_of

KNOWN = {"t": "it"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("t 1", [("t", {}, 1.0)]),
        ("t{} 1", [("t", {}, 1.0)]),
        ('t{a="1",b="2"} 3e2 1700000000', [("t", {"a": "1", "b": "2"}, 300.0)]),
        ('t{a="1",} 3', [("t", {"a": "1"}, 3.0)]),
        ('t{a="x}y, z=\\"1\\"\\n\\\\"} 3', [("t", {"a": 'x}y, z="1"\n\\'}, 3.0)]),
        ('t{a="ü"} 1 # {trace="1"} 2', [("t", {"a": "ü"}, 1.0)]),
        ("t", []),
        ("t{", []),
        ('t{a="1"', []),
        ("tt 1", []),
        ("# HELP t it", []),
        ("t one", []),
        ("\x00\x01", []),
        ("", []),
    ],
)
def test_lines(line, expected):
    assert list(samples_of(line, KNOWN)) == expected


def test_hostile_lines_cost_little():
    lines = [
        't{a="' + "\\" * 16_000 + "} 1",
        "t{" + 'a="' * 5_000 + "} 1",
        "t{" + "a" * 16_000 + "} 1",
        't{a="' + '\\"' * 8_000 + "} 1",
        "t" * 10_000_000,
    ]
    begun_s = time.process_time()
    list(samples_of("\n".join(lines), KNOWN))
    assert time.process_time() - begun_s < 1.0
