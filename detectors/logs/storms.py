"""Sources that log far more than they normally do: sliding event-time windows per source.

After Wu et al., TRANSOM, 2023, section IV-B.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Annotated, Any, Final

import msgspec

from trainwarden.detectors.job.window import LogLine
from trainwarden.log_shapes import by_shape, unmasked
from trainwarden.records import Suspect, Vote
from trainwarden.settings import Config

MAX_SUSPECTS: Final = 16
MAX_SOURCES: Final = 100_000
_FRAME: Final = re.compile(r"\s{0,8}(?:\[rank[0-9]{1,6}\]: ?)?\s{0,8}frame #[0-9]{1,4}: ")
_DIGITS: Final = re.compile(r"[0-9]+(?:\.[0-9]+)?")  # linear: no nested repetition
_template_of = by_shape(lambda shape: _DIGITS.sub("0", unmasked(shape)[:200]))


def is_frame(line: str) -> bool:
    """Whether `line` is a frame of a C++ backtrace, of which c10d prints twenty for each rank that gives up.

    Examples
    --------
    >>> is_frame("frame #3: c10d::ProcessGroupNCCL::watchdogHandler() + 0x3a0"), is_frame("frames 3")
    (True, False)
    """
    return "frame #" in line and _FRAME.match(line) is not None


class StormConfig(Config, frozen=True, kw_only=True):
    """How many lines are too many.

    Attributes
    ----------
    window_s : float
        Length of the sliding window.
    storm_lines, storm_factor
        Error lines of one source within the window that make a storm, and how many times its normal number.
    same_lines, same_factor
        Like lines of one source within the window, and how many times its busiest window so far.
    """

    window_s: Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)] = 5.0
    storm_lines: Annotated[int, msgspec.Meta(ge=1)] = 30
    storm_factor: Annotated[float, msgspec.Meta(ge=1.0)] = 8.0
    same_lines: Annotated[int, msgspec.Meta(ge=1)] = 200
    same_factor: Annotated[float, msgspec.Meta(ge=1.0)] = 10.0
    settle_s: Annotated[float, msgspec.Meta(ge=0.0)] = 10.0


class Source(msgspec.Struct):
    """The sliding window of one source."""

    node: str
    rank: int | None
    first_s: float
    errors: deque[tuple[float, int]] = msgspec.field(default_factory=deque)
    lines: deque[tuple[float, int, str]] = msgspec.field(default_factory=deque)
    norm: float = 0.0
    busiest: int = 0
    storm_s: float | None = None
    sample: str = ""


class LogStorms:
    """The sliding windows of all sources of a job.

    Parameters
    ----------
    config : StormConfig
    """

    def __init__(self, config: StormConfig) -> None:
        self._config = config
        self._sources: dict[str, Source] = {}

    def observe(self, line: LogLine) -> Source | None:
        """Count `line`; the source that it belongs to. Frames of a backtrace are part of one line: not counted."""
        if is_frame(line.line):
            return None
        speaker = f"{line.node}/{line.source}/{line.rank}"  # one file may hold the lines of all ranks
        source = self._sources.get(speaker)
        if source is None:
            if len(self._sources) >= MAX_SOURCES:
                del self._sources[next(iter(self._sources))]
            source = self._sources[speaker] = Source(line.node, line.rank, line.time_s)
        source.lines.append((line.time_s, line.count, _template_of(line.line)))
        return source

    def judge(self, now_s: float) -> None:
        """See which sources storm at `now_s`."""
        config = self._config
        bursting = []
        for source in self._sources.values():
            errors = _within(source.errors, now_s - config.window_s)
            lines = _within(source.lines, now_s - config.window_s)
            if source.storm_s is not None:
                over = errors < max(config.storm_lines, config.storm_factor * source.norm) / 2
                if over and lines < max(config.same_lines, config.same_factor * source.busiest) / 2:
                    source.storm_s = None
                continue
            if errors >= config.storm_lines and errors > config.storm_factor * source.norm:
                source.storm_s = source.errors[0][0]
                continue
            old_enough = now_s - source.first_s > config.settle_s
            if old_enough and lines >= config.same_lines and lines > config.same_factor * source.busiest:
                bursting.append(source)
                continue
            source.norm += 0.02 * (errors - source.norm)  # a minute or so of half-second windows
            source.norm = max(source.norm, float(errors) if not old_enough else 0.0)
            source.busiest = max(source.busiest, lines)
        talking = sum(source.rank is not None for source in self._sources.values())
        for source in bursting:
            alike = _most_common(source)
            # When everybody talks, that is the program's way; one that talks alone is the storm.
            if alike[0] >= 0.5 * config.same_lines and (talking < 2 or len(bursting) <= max(1, talking // 2)):
                source.storm_s, source.sample = source.lines[0][0], alike[1]

    def storming(self) -> list[Source]:
        """Sources that storm now."""
        return [source for source in self._sources.values() if source.storm_s is not None]

    def vote(self, storms: list[Source]) -> Vote:
        """The vote that tells of `storms`."""
        storms = sorted(storms, key=lambda source: source.storm_s or 0.0)
        suspects = tuple(
            Suspect(score=1.0, reason=f"logs far more than it normally does: {source.sample[:120]}", rank=source.rank,
                    node=source.node)
            for source in storms[:MAX_SUSPECTS]
        )  # fmt: skip
        first = storms[0]
        number = max(sum(count for _, count in first.errors), sum(count for _, count, _ in first.lines) // 10)
        excess = number / self._config.storm_lines
        who = f"rank {first.rank}" if first.rank is not None else f"a log of {first.node}"
        return Vote(
            opinion="anomalous", score=excess / (1.0 + excess), kind="log_storm", severity="sev3", suspects=suspects,
            reason=f"{who} logs far more than it normally does: {first.sample[:120]}", onset_s=first.storm_s,
        )  # fmt: skip

    def calm_score(self) -> float:
        """How near the busiest source is to a storm, below one half."""
        worst = max((sum(n for _, n in source.errors) for source in self._sources.values()), default=0)
        excess = worst / self._config.storm_lines
        return min(0.499, excess / (1.0 + excess))


def _within(entries: deque[Any], since_s: float) -> int:
    """Drop what is older than `since_s`; the number of lines that remain."""
    while entries and entries[0][0] < since_s:
        entries.popleft()
    return sum(entry[1] for entry in entries)


def _most_common(source: Source) -> tuple[int, str]:
    counts: dict[str, int] = {}
    for _, count, template in source.lines:
        counts[template] = counts.get(template, 0) + count
    template = max(counts, key=lambda one: counts[one])
    return counts[template], template
