"""Vote: one rank suddenly says, again and again, what nobody said in normal time.

Templates are mined online (`trainwarden.detectors.logs.templates`); what matters is not that a line looks like an error
but that it is new, or far above its own normal rate, and comes from one source while its peers keep to their ways.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Final

import msgspec

from trainwarden.detectors.job.object_codec import WholeMemory
from trainwarden.detectors.job.window import LogLine, Window
from trainwarden.detectors.logs.line_counts import (
    BUCKETS,
    Run,
    Source,
    add_lines,
    lines_before,
    lines_newer,
    lines_within,
)
from trainwarden.detectors.logs.storms import is_frame
from trainwarden.detectors.logs.templates import OVERFLOW, LogTemplates
from trainwarden.detectors.protocol import Role, abstain
from trainwarden.records import Suspect, Vote
from trainwarden.settings import Config

MAX_SUSPECTS: Final = 16
MAX_RUNS: Final = 200_000  # sources times templates that are being counted at once
MAX_SOURCES: Final = 100_000


class TemplateBurstConfig(Config, frozen=True, kw_only=True):
    """What a burst is.

    Attributes
    ----------
    window_s : float
        Lines are counted over this time.
    burst_lines : int
        Lines of one new template from one source within the window; of a known one, twice as many.
    factor : float
        How many times its busiest normal window a known template must exceed. A source without peers must
        exceed its own busiest window, whatever it said there, as often.
    own_factor : float
        How many times its own busiest window one rank among others must exceed: a rank that logs for all may log more.
    sustain_s : float
        A burst lasts at least this long: a block of lines printed at once is none.
    warm_up_s, warm_up_lines
        No opinion before the job has been heard for so long and has said so much, unless normal lines were learnt.
    max_templates : int
        Templates kept; later ones are not judged.
    """

    window_s: Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)] = 5.0
    burst_lines: Annotated[int, msgspec.Meta(ge=2)] = 100
    factor: Annotated[float, msgspec.Meta(ge=1.0)] = 10.0
    own_factor: Annotated[float, msgspec.Meta(ge=0.0)] = 3.0
    sustain_s: Annotated[float, msgspec.Meta(ge=0.0)] = 1.5
    warm_up_s: Annotated[float, msgspec.Meta(ge=0.0)] = 15.0
    warm_up_lines: Annotated[int, msgspec.Meta(ge=0)] = 200
    max_templates: Annotated[int, msgspec.Meta(ge=16, le=1_000_000)] = 4096


class TemplateBurst(WholeMemory):
    """What the wording of a job's log lines says.

    Parameters
    ----------
    config : TemplateBurst.Config
    """

    Config = TemplateBurstConfig
    role = Role(reads="logs", opens=("any",), weight=0.0)
    HELD = (Run, Source)
    NOT_KEPT = ("_touched",)

    def __init__(self, config: TemplateBurstConfig) -> None:
        self._config = config
        self._templates = LogTemplates(config.max_templates)
        self._peaks: dict[int, int] = {}  # busiest normal window of each known template, over all sources
        self._runs: dict[str, Run] = {}
        self._sources: dict[str, Source] = {}
        self._lines = 0
        self._since_s: float | None = None
        self._now_s = 0.0
        self._fitted = False
        self._swept_s = 0.0
        self._nearest = 0  # most lines of a new template within the window
        self._touched: set[str] = set()

    @property
    def more(self) -> bool:
        """Always False: there is one kind of finding."""
        return False

    def fit(self, lines: Iterable[LogLine]) -> None:
        """Learn what normal time says, and how often at most within a window; oldest line first."""
        for line in lines:
            if line.time_s >= self._now_s + self._config.window_s:
                self._settle(judge=False)
            self._now_s = max(self._now_s, line.time_s)
            self._read(line)
            self._fitted = True
        self._settle(judge=False)
        for run in self._runs.values():
            self._learn(run)
        self._runs.clear()
        self._sources.clear()
        self._now_s, self._swept_s, self._since_s = 0.0, 0.0, None  # the job to come may have another clock

    def update(self, window: Window) -> None:
        """See `trainwarden.detectors.protocol.Detector`."""
        for line in window.logs:
            self._now_s = max(self._now_s, line.time_s)
            if not is_frame(line.line):
                self._read(line)
        self._now_s = max(self._now_s, window.end_s)
        self._settle(judge=self._warm() and not window.phase)

    def score(self, window: Window) -> Vote:
        """See `trainwarden.detectors.protocol.Detector`."""
        bursting = [run for run in self._runs.values() if run.bursting]
        if bursting:
            return self._vote(sorted(bursting, key=lambda run: (run.first_s, run.source)))
        if not self._warm():
            return abstain("still learning what the job normally logs")
        excess = self._nearest / self._config.burst_lines
        return Vote(opinion="normal", score=min(0.499, excess / (1.0 + excess)))

    # -- internals -------------------------------------------------------------------------------------------

    def _warm(self) -> bool:
        if self._fitted:
            return True
        heard_s = self._now_s - self._since_s if self._since_s is not None else 0.0
        return heard_s >= self._config.warm_up_s and self._lines >= self._config.warm_up_lines

    def _read(self, line: LogLine) -> None:
        self._lines += line.count
        self._since_s = line.time_s if self._since_s is None else self._since_s
        key = f"{line.node}/{line.source}/{line.rank}"
        source = self._sources.get(key)
        if source is None:
            if len(self._sources) >= MAX_SOURCES:
                del self._sources[next(iter(self._sources))]
            source = self._sources[key] = Source(line.node, line.rank, line.time_s, line.time_s)
        bucket = int(line.time_s * BUCKETS / self._config.window_s)
        source.last_s = max(source.last_s, line.time_s)
        add_lines(source.counts, bucket, line.count)
        number = self._templates.find(line.line)
        if number == OVERFLOW:
            return
        name = f"{number}/{key}"
        run = self._runs.get(name)
        if run is None:
            if len(self._runs) >= MAX_RUNS:
                self._learn(self._runs.pop(next(iter(self._runs))))
            run = self._runs[name] = Run(key, number, line.time_s, line.time_s, number in self._peaks)
        run.last_s = max(run.last_s, line.time_s)
        if not run.sample:
            run.sample = line.line[:160]
        add_lines(run.counts, bucket, line.count)
        self._touched.add(name)

    def _settle(self, *, judge: bool) -> None:
        """Count what was said just now, judge what is new, and now and then forget what is past."""
        config = self._config
        oldest = int(self._now_s * BUCKETS / config.window_s) - BUCKETS
        candidates = []
        self._nearest = 0
        for run in (self._runs[name] for name in sorted(self._touched) if name in self._runs):
            run.lines = lines_within(run.counts, oldest)
            run.highest = max(run.highest, run.lines)
            self._nearest = max(self._nearest, 0 if run.known else run.lines)
            if run.lines >= config.burst_lines and not run.bursting:
                candidates.append(run)
        self._touched.clear()
        if judge and candidates:
            self._judge(candidates, oldest)
        if self._now_s - self._swept_s >= config.window_s / BUCKETS:
            self._swept_s = self._now_s
            self._sweep(oldest)

    def _judge(self, candidates: list[Run], oldest: int) -> None:
        config = self._config
        talking = {source.rank for source in self._sources.values() if lines_newer(source.counts, oldest)}
        talking.discard(None)
        saying: dict[int, set[int | None]] = {}
        wanted = {run.template for run in candidates}
        for run in self._runs.values():
            if run.template in wanted and lines_newer(run.counts, oldest):
                saying.setdefault(run.template, set()).add(self._sources[run.source].rank)
        for run in candidates:
            source, peak = self._sources[run.source], self._peaks.get(run.template, 0)
            if run.last_s - run.first_s < config.sustain_s or run.known < (run.template in self._peaks):
                continue  # a block of lines, or learnt from a peer in the meantime
            if run.known and (run.lines < 2 * config.burst_lines or run.lines <= config.factor * peak):
                continue
            if source.rank is not None and len(talking) >= 3:
                # When others say it too, it is the program's way.
                alone = len(saying[run.template]) <= max(1, len(talking) // 4)
                run.bursting = alone and run.lines > config.own_factor * source.busiest
            else:
                run.bursting = run.lines > config.factor * source.busiest
            run.judged |= run.bursting

    def _sweep(self, oldest: int) -> None:
        """Learn what was normal, once it is over: a burst must not raise its own bar while it grows."""
        for name, run in list(self._runs.items()):
            run.lines = lines_within(run.counts, oldest)
            if not run.lines:
                self._learn(self._runs.pop(name))
            elif run.bursting:
                run.bursting = 2 * run.lines >= self._config.burst_lines
            elif not run.judged and self._now_s - run.first_s > 2 * self._config.window_s:
                self._learn(run)  # it has gone on for two windows without being a burst: that is how the job talks
        told = {run.source for run in self._runs.values() if run.bursting}
        for key, source in self._sources.items():
            before = lines_before(source.counts, oldest)
            if key not in told:
                first = self._now_s - source.first_s <= self._config.window_s
                source.busiest = max(source.busiest, lines_newer(source.counts, oldest) if first else before)

    def _learn(self, run: Run) -> None:
        if not run.judged:
            self._peaks[run.template] = max(run.highest, self._peaks.get(run.template, 0))

    def _vote(self, bursting: list[Run]) -> Vote:
        first = bursting[0]
        suspects = []
        for run in bursting[:MAX_SUSPECTS]:
            source = self._sources[run.source]
            often = "more often than it ever did" if run.known else "what nobody said in normal time"
            reason = f"says {often}, {run.highest} lines in {self._config.window_s:g} s: {run.sample}"
            suspects.append(Suspect(score=1.0, reason=reason, rank=source.rank, node=source.node or None))
        who = f"rank {suspects[0].rank}" if suspects[0].rank is not None else f"a log of {suspects[0].node}"
        excess = max(run.highest for run in bursting) / self._config.burst_lines
        return Vote(
            opinion="anomalous", score=max(0.5, excess / (1.0 + excess)), kind="log_storm", severity="sev3",
            suspects=tuple(suspects), reason=f"{who} {suspects[0].reason}", onset_s=first.first_s,
        )  # fmt: skip
