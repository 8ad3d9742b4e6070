"""Counters of our own work, for Prometheus. Made per service, never on import."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Metric
from prometheus_client.registry import Collector

from trainwarden import __version__

HEARTBEAT: Final = "trainwarden_heartbeat_timestamp_seconds"
UP: Final = "trainwarden_up"
LAG: Final = "trainwarden_bus_lag_records"


class SelfMetrics:
    """The registry of one service process.

    Parameters
    ----------
    service : str
        ``agent``, ``detector``, ``engine``, ...; every metric is named ``trainwarden_<service>_<name>``.

    Examples
    --------
    >>> metrics = SelfMetrics("agent")
    >>> metrics.count("records_total", "Records published.", 3, topic="trainwarden.logs")
    >>> metrics.registry.get_sample_value("trainwarden_agent_records_total", {"topic": "trainwarden.logs"})
    3.0
    """

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry()
        self._service = service
        self._lock = threading.Lock()
        self._families: dict[str, Counter | Gauge] = {}
        self._children: dict[tuple[object, ...], Counter | Gauge] = {}
        self.gauge("build_info", "Version of this service.", 1.0, version=__version__)

    def count(self, name: str, help_text: str, amount: float = 1.0, **labels: str) -> None:
        """Add `amount` (>= 0) to a counter; 0 lets it be born, so that its first count is seen as one."""
        child = self._child(Counter, self._named(name), help_text, labels)
        assert isinstance(child, Counter)
        child.inc(amount)

    def gauge(self, name: str, help_text: str, value: float, **labels: str) -> None:
        """Set a gauge to `value`."""
        self._set(self._named(name), help_text, value, labels)

    def round_ended(self, now_s: float, *, bus_answers: bool) -> None:
        """A round of work has ended, be it that the bus was away; not one that failed."""
        self._set(HEARTBEAT, "End of the newest round of work, Unix time.", now_s, {"service": self._service})
        answers = "1 while the bus answers the service, 0 while it is away."
        self._set(UP, answers, float(bus_answers), {"service": self._service})

    def lag(self, records: int | None) -> None:
        """So many records on the bus are not handled yet; None while the service has no partition to know it of."""
        help_text = "Records on the bus that the service has not handled yet."
        if records is not None:
            self._set(LAG, help_text, records, {"service": self._service})
            return
        with self._lock:
            if self._children.pop((LAG, ("service", self._service)), None) is not None:
                self._families[LAG].remove(self._service)

    def register_families(self, families: Callable[[], Iterable[Metric]]) -> None:
        """Tell at each scrape what `families` gives then, under its own names."""
        self.registry.register(_Asked(families))

    def _named(self, name: str) -> str:
        return f"trainwarden_{self._service}_{name}"

    def _set(self, full: str, help_text: str, value: float, labels: Mapping[str, str]) -> None:
        child = self._child(Gauge, full, help_text, labels)
        assert isinstance(child, Gauge)
        child.set(value)

    def _child(
        self, kind: type[Counter] | type[Gauge], full: str, help_text: str, labels: Mapping[str, str]
    ) -> Counter | Gauge:
        key = (full, *labels.items())  # in the caller's order: two of them are two ways to one child
        child = self._children.get(key)
        if child is not None:
            return child
        with self._lock:  # a family can be registered once only, whichever thread comes first
            family = self._families.get(full)
            if family is None:
                family = kind(full, help_text, sorted(labels), registry=self.registry)
                self._families[full] = family
            child = self._children[key] = family.labels(**labels) if labels else family
        return child


class _Asked(Collector):
    """Families that are made when somebody asks."""

    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def describe(self) -> Iterable[Metric]:
        """Nothing: what there is shows in time."""
        return ()

    def collect(self) -> Iterable[Metric]:
        return self._families()


class _FieldFormatter(logging.Formatter):
    """``time level logger message key=value ...``: a constant message plus fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = record.__dict__.get("fields") or {}
        text = f"{self.formatTime(record)} {record.levelname.lower()} {record.name} {record.getMessage()}"
        for key, value in fields.items():
            text += f" {key}={value!r}" if isinstance(value, str) and " " in value else f" {key}={value}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


def log_to_stderr() -> None:
    """Send this process's log to standard error, one line per change of state.

    Call sites write ``log.info("collector failed", extra={"fields": {"collector": name}})``.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_FieldFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
