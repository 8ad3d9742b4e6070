"""What is looked for once a shape is what every line of the shape says: each fast look equals the plain one."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path

import pytest
import re2
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from trainwarden import log_text
from trainwarden.detectors.logs import loss_lines
from trainwarden.detectors.logs.ends.endings import Endings, shipped_endings
from trainwarden.detectors.logs.rules import LogRules, shipped_rules
from trainwarden.detectors.logs.templates import _NUMBERS, LogTemplates
from trainwarden.formats.text import trainers
from trainwarden.log_shapes import loosened, masked
from trainwarden.recorded import log_stamps
from trainwarden.recorded.log_stamps import Stamps

REPORTS = Path(__file__).parents[1] / "data" / "reports"
LINES = tuple(
    line
    for path in sorted(REPORTS.glob("*.toml"))
    for report in tomllib.loads(path.read_text())["report"]
    for line in report["log"].splitlines()
    if line.strip()
)
SAMPLES = (
    *(row.sample for row in log_text.PREFIXES),
    *(row.sample for row in trainers.TRAINERS),
    *(row.sample for row in shipped_endings().rows),
    "val_loss: 1.5 loss nan grad norm: 3.0.7 ppl: 1e999",
    "Progress on:train 120.0it/1.00kit rate:1.5s/it",
    "Errno 28 Errno 29 exit code 137",
)
PREFIXES = ("", "[rank3]: ", "[default1]:", "(RayTrainWorker pid=7002, ip=10.0.0.7) ", "  [rank2]: ")
STAMPS = (
    "", "2026-01-02 03:04:05,678 ", "[2026-01-02T03:04:05.6+01:00] ", "Jan  2 03:04:05 gpu-07 kernel: ",
    "E0603 03:04:05 ", "E603 03:04:05 ", "[   12.500000] ", "1700000000.5 ", "6,1234,987654321,-;",
    "[INFO|trainer.py:9] 2026-01-02 03:04:05 ", "[NeMo W 2026-01-02 03:04:05 x:1] ", "Feb 29 03:04:05 n1 ",
    "Fri Feb 29 03:04:05 UTC 2024 ",
)  # fmt: skip


def plain_printed(line: str) -> list[tuple[str, float]]:
    """The slow twin: what `printed` says, by the words of the line itself."""
    found: dict[str, float] = {}
    for word in loss_lines._WORD.finditer(line):
        what = "gradient norm" if word[0].lower() == "norm" else "loss"
        if what in found or (value := loss_lines._VALUE.match(line, word.end())) is None:
            continue
        before = line[max(0, word.start() - loss_lines._BEFORE_CHARS) : word.start()]
        number = float(value["number"])
        if what == "gradient norm":
            meant = loss_lines._GRADIENT.search(before) is not None
        elif word[0][:4].lower() == "loss":
            meant = loss_lines._is_own(before, spaced=not value["between"].strip())
        else:
            colon = bool(value["between"].strip())
            meant = colon and not math.isfinite(number) and loss_lines._is_own(before, spaced=False)
        if meant:
            found[what] = number
    return list(found.items())


def plain_writer(line: str) -> tuple[object, ...]:
    """The slow twin: prefixes taken off one by one."""
    named: dict[str, object] = {"rank": None, "local": None, "node": None, "pid": None}
    for _ in range(log_text._MOST_PREFIXES):
        match = next((one for row in log_text._ALWAYS if (one := row.match(line))), None)
        if match is None or not match.end():
            break
        told = {name: value if name == "node" else int(value) for name, value in match.groupdict().items() if value}
        named |= told
        line = line[match.end() :]
    return (line, *named.values())


@st.composite
def lines(draw: st.DrawFn) -> str:
    """A line of a report or table behind prefix and stamp, with other digits."""
    line = draw(st.sampled_from(PREFIXES)) + draw(st.sampled_from(STAMPS)) + draw(st.sampled_from(LINES + SAMPLES))
    digits = iter(draw(st.lists(st.sampled_from("0123456789"), min_size=40, max_size=40)))
    share = draw(st.sampled_from([0, 1, 3]))
    return re.sub("[0-9]", lambda one: next(digits, one[0]) if share and one.start() % share == 0 else one[0], line)


@pytest.mark.thorough
@examples(1_500)
@given(st.lists(lines(), min_size=1, max_size=4))
def test_every_look_by_shape_equals_the_plain_one(said: list[str]) -> None:
    fast, plain = Stamps(1.7e9), Stamps(1.7e9)
    for line in [*said, *said]:  # the second time all of them are known
        assert repr(loss_lines.printed(line)) == repr(plain_printed(line))
        found = log_text.writer_of(line)
        assert (found.rest, found.rank, found.local, found.node, found.pid) == plain_writer(line)
        row = next((one for one in trainers._COMPILED if one[1] in line and one[2].search(line)), None)
        step = trainers.step_line(line)
        assert (step and step.trainer) == (row and row[0])
        assert repr(fast.read(line)) == repr(plain_stamp(plain, line))
        assert (fast.guessed, fast.dated_s, fast.leap_s) == (plain.guessed, plain.dated_s, plain.leap_s)
        for text in (line, found.rest):
            assert shipped_rules().match(text) == PLAIN_RULES.match(text)
            assert shipped_endings().read(text) == PLAIN_ENDINGS.read(text)
    for line in said:
        store, masked_by = LogTemplates(100), _NUMBERS.sub("#", line[:300])
        store.find(line)
        assert set(store._cache) == {masked_by}


def plain_stamp(stamps: Stamps, line: str) -> log_stamps.Stamp:
    """The slow twin: the forms of this very line, no time remembered."""
    stamps._dates.clear()
    for form in log_stamps._find_forms(line[:200]):
        groups = [line[start:end] if end >= 0 else None for start, end in form.groups]
        if not math.isnan(time_s := form.time_of(stamps, groups)):
            stamps._near_s = time_s if form.clock != "boot" else stamps._near_s
            return log_stamps.Stamp(time_s, form.end, form.clock)
    return log_stamps._NO_STAMP


PLAIN_RULES, PLAIN_ENDINGS = LogRules(), Endings()
PLAIN_RULES._may_fit = PLAIN_ENDINGS._may_fit = lambda line: True  # type: ignore[method-assign]
PATTERNS = [row.pattern for row in (*shipped_rules().rules, *shipped_endings().rows)]


def test_every_shipped_pattern_can_be_loosened() -> None:
    assert [pattern for pattern in PATTERNS if loosened(pattern) is None] == []


@pytest.mark.thorough
@examples(300)
@given(lines())
def test_a_loosened_pattern_fits_what_its_pattern_fits_and_its_shape(line: str) -> None:
    for pattern in PATTERNS:
        if re2.search(pattern, line):
            assert re2.search(loosened(pattern), line)
            assert re2.search(loosened(pattern), masked(line).decode())
