"""Text of exporters, as they write it and as they do not."""

from __future__ import annotations

import time

import pytest

from trainwarden.collectors.prometheus import exposition
from trainwarden.collectors.prometheus.exposition import samples_of

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


@pytest.mark.thorough
def test_hostile_lines_cost_little():
    lines = [
        't{a="' + "\\" * 16_000 + "} 1",
        "t{" + 'a="' * 5_000 + "} 1",
        "t{" + "a" * 16_000 + "} 1",
        't{a="' + '\\"' * 8_000 + "} 1",
        "t" * 10_000_000,
    ]
    hostile = "\n".join(lines)
    ordinary = 't{a="b"} 1\n' * (len(hostile) // 11)
    begun_s = time.process_time()
    list(samples_of(hostile, KNOWN))
    read_s = time.process_time()
    list(samples_of(ordinary, KNOWN))
    assert read_s - begun_s < time.process_time() - read_s


@pytest.mark.parametrize("part", ['\\"', "\\\\", "x", ",", '",a="'])
def test_a_long_line_costs_no_more_than_as_many_characters_in_short_ones(part, monkeypatch):
    monkeypatch.setattr(exposition, "MAX_LINE_CHARS", 1_000_000)

    def cost_s(repeats, lines):
        text = "\n".join(['t{a="' + part * repeats + '"} 1'] * lines)
        best_s = []
        for _ in range(3):
            begun_s = time.process_time()
            list(samples_of(text, KNOWN))
            best_s.append(time.process_time() - begun_s)
        return min(best_s)

    long = 200_000 // len(part)
    assert cost_s(long, 1) < 4.0 * cost_s(long // 64, 64)
