"""A range of time of a Prometheus, as `trainwarden detect --prometheus` asks for it, read and judged."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from trainwarden.cli.ask.detect_jobs import asked_detectors
from trainwarden.cli.ask.judging.detect_answer import answered
from trainwarden.cli.shared.formatting import counted, moment
from trainwarden.cli.shared.options import length_of, since_of, time_of
from trainwarden.errors import ConfigError
from trainwarden.records import IncidentRecord

DEFAULT_SINCE: Final = "30m"
TELL_EVERY_S: Final = 2.0
MAX_MATCH_CHARS: Final = 4_096


@dataclass(frozen=True, slots=True)
class Span:
    """What of a fleet is to be judged, in the command line's own words."""

    match: str = ""
    since: str | None = None
    start: str | None = None
    end: str | None = None
    step: str | None = None
    by: str | None = None

    @property
    def timed(self) -> bool:
        """Whether a range of time was named."""
        return any(word is not None for word in (self.since, self.start, self.end))

    @property
    def of_fleets(self) -> bool:
        """Whether something was said that only a Prometheus knows."""
        return bool(self.match) or self.step is not None or self.by is not None

    def between_s(self, now_s: float) -> tuple[float, float]:
        """The range of time.

        Raises
        ------
        ConfigError
            If it is none.

        Examples
        --------
        >>> Span(since="10m").between_s(10_000.0), Span(start="5000", end="1970-01-01T02:00:00").between_s(10_000.0)
        ((9400.0, 10000.0), (5000.0, 7200.0))
        """
        if self.since is not None and self.start is not None:
            raise ConfigError("--since and --from exclude each other: both say where to begin")
        end_s = time_of(self.end, "--to")
        end_s = now_s if end_s is None else end_s
        start_s = time_of(self.start, "--from")
        if start_s is None:
            start_s = since_of(self.since or DEFAULT_SINCE, end_s if self.since is None else now_s)
        if start_s is None or not 0.0 <= start_s < end_s:
            raise ConfigError("the range of time is empty: --from (or --since) must be before --to")
        return start_s, end_s

    def matchers(self) -> str:
        """The matchers without braces around them.

        Examples
        --------
        >>> Span('{cluster="a"}').matchers(), Span('cluster="a",').matchers()
        ('cluster="a"', 'cluster="a"')
        """
        text = self.match.strip()
        if text.startswith("{") and text.endswith("}"):
            text = text[1:-1].strip()
        if len(text) > MAX_MATCH_CHARS:
            raise ConfigError(f"--match: longer than {MAX_MATCH_CHARS} characters")
        return text.rstrip(",").rstrip()


@dataclass(frozen=True, slots=True)
class Door:
    """Where the Prometheus is, and what it takes to be let in."""

    url: str
    token_file: Path | None = None
    ca_file: Path | None = None
    client_cert: Path | None = None


class Fleet(NamedTuple):
    """The objects of all jobs, what could not be read of them in ``partial``, and the incidents."""

    answer: dict[str, Any]
    records: list[IncidentRecord]


def judged_fleet(door: Door, span: Span, detectors: str | None, config: Path | None) -> Fleet:
    """All jobs of the fleet, judged.

    Raises
    ------
    ConfigError
        On wrong use, or where a library is missing.
    DataError
        If the Prometheus cannot be read.
    """
    try:
        from trainwarden.prometheus.client import Access, PrometheusClient
    except ModuleNotFoundError as error:
        raise ConfigError("detect --prometheus needs httpx: pip install 'trainwarden[detect]'") from error
    from trainwarden.detectors.recorded.fleet import jobs_of, judge_fleet_job, wanted_metrics
    from trainwarden.prometheus.pieces import Ask
    from trainwarden.prometheus.reading import read_fleet

    settings, names = asked_detectors(detectors, config)
    start_s, end_s = span.between_s(time.time())
    step_s = length_of(span.step, "--step")
    ask = Ask(span.matchers(), start_s, end_s, step_s, span.by, wanted_metrics(settings, names))
    teller = _Teller()
    with PrometheusClient(Access(door.url, door.token_file, door.ca_file, door.client_cert)) as client:
        teller.say(f"reading {client.name} from {moment(start_s)} to {moment(end_s)}")
        fleet = read_fleet(client, ask, teller.read)
    teller.say(f"read {counted(fleet.samples, 'sample')}; judging")
    if span.by is not None and not any(group for one in fleet.families.values() for group in one.groups):
        fleet.note(f"no series has the label {span.by!r}: everything is one job")
    jobs = [judge_fleet_job(job, settings, names, teller.judged) for job in jobs_of(fleet)]
    objects = [job | answered(job, _judges(job, names)) for job, _ in jobs]
    return Fleet({"jobs": objects, "partial": fleet.notes}, [one for _, found in jobs for one in found])


def _judges(job: dict[str, Any], names: tuple[str, ...]) -> list[str]:
    """The detectors that had something to judge; of a fleet without a sample none had."""
    return [name for name in names if name not in job["abstained"]] if job["input"]["entities"] else []


class _Teller:
    """Says on standard error, now and then, how far it is."""

    def __init__(self) -> None:
        self._told_s = time.monotonic()

    def say(self, text: str) -> None:
        self._told_s = time.monotonic()
        sys.stderr.write(f"trainwarden: {text}\n")
        sys.stderr.flush()

    def read(self, done: int, total: int, samples: int) -> None:
        if time.monotonic() - self._told_s >= TELL_EVERY_S:
            self.say(f"... {done} of {total} answers, {samples} samples")

    def judged(self, share: float) -> None:
        if time.monotonic() - self._told_s >= TELL_EVERY_S:
            self.say(f"... {share:.0%} judged")
