"""dcgm-exporter and node_exporter scraped in place of agents: a cluster is watched where only these run."""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec

from trainwarden.catalogue import ALIASES, CATALOGUE
from trainwarden.clock import Clock
from trainwarden.collectors.prometheus.changes import Changes, Seen
from trainwarden.collectors.prometheus.exposition import samples_of
from trainwarden.errors import CollectorError
from trainwarden.prometheus.exporters import (
    REASON_BITS,
    REASONS,
    Who,
    factor,
    is_blank,
    is_percent,
    model_of,
    spellings,
    who,
)  # fmt: skip
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import MetricsRecord, Record
from trainwarden.settings import Config

log = logging.getLogger("trainwarden.agent")

MAX_BYTES: Final = 16 * 1024 * 1024  # of one exporter's text
AT_ONCE: Final = 64
_HEADERS: Final = {"User-Agent": "trainwarden", "Accept": "text/plain;version=0.0.4"}
_NAME_OF_NODE: Final = "node_uname_info"

Url = Annotated[str, msgspec.Meta(pattern=r"^https?://[^\s/]+")]
Rows = dict[Who, dict[str, float]]
Models = dict[Who, str]


class PrometheusCollector:
    """Exporters of any number of nodes; the node of a record is the exporter's host, not the agent's.

    Parameters
    ----------
    config : PrometheusCollector.Config
    scope : Scope
    clock : Clock
    """

    class Config(Config, frozen=True, kw_only=True):
        """`endpoints` are addresses like ``http://gpu-7:9400/metrics``; all of them together get `timeout_s` a turn."""

        interval_s: Annotated[float, msgspec.Meta(ge=1.0, le=60.0)] = 15.0
        endpoints: tuple[Url, ...] = ()
        timeout_s: Annotated[float, msgspec.Meta(gt=0.0, le=60.0)] = 1.5

    def __init__(self, config: Config, scope: Scope, clock: Clock) -> None:
        del clock
        self._config = config
        self._scope = scope
        self._names = {**spellings(), _NAME_OF_NODE: ""}
        self._changes = Changes(scope.job, config.interval_s)
        self._percent: set[tuple[str, str]] = set()  # endpoints and fields that give percents under a ratio's name
        self._away: set[str] = set()
        self._failed: set[str] = set()  # asked last, for what hangs holds a place until all time is over

    @property
    def interval_s(self) -> float:
        return self._config.interval_s

    def supported(self) -> str | None:
        if not self._config.endpoints:
            return "no exporter is named (agent.collectors.prometheus.endpoints)"
        if importlib.util.find_spec("httpx") is None:
            return "scraping exporters needs httpx: pip install 'trainwarden[detect]'"
        return None

    def collect(self, now_s: float) -> Iterable[Record]:
        texts = asyncio.run(self._scraped())
        self._tell_who_is_away(texts)
        if not texts:
            raise CollectorError(f"none of the {len(self._config.endpoints)} exporters answered")
        for endpoint, text in texts.items():
            rows, models = self._rows(endpoint, text)
            yield from self._changes.observe(rows, now_s)
            yield from self._records(rows, models, now_s)
        self._changes.forget(now_s)

    def wake_fds(self) -> Sequence[int]:
        return ()

    def position(self) -> JsonObject:
        return {"known": msgspec.to_builtins(self._changes.known), "percent": sorted(map(list, self._percent))}

    def restore(self, position: JsonObject) -> None:
        self._changes.known = msgspec.convert(position.get("known", {}), dict[str, dict[str, Seen]])
        self._percent = {(str(endpoint), str(field)) for endpoint, field in position.get("percent", [])}

    def close(self) -> None:
        """There is nothing to let go of: connections live for one turn."""

    # -- internals -------------------------------------------------------------------------------------------

    async def _scraped(self) -> dict[str, str]:
        """What every exporter said that answered in time."""
        import httpx  # only where exporters are scraped

        gate = asyncio.Semaphore(AT_ONCE)
        found: dict[str, str] = {}

        async def scrape(client: httpx.AsyncClient, endpoint: str) -> None:
            async with gate:
                self._failed.add(endpoint)
                async with client.stream("GET", endpoint) as response:
                    if response.status_code != 200:
                        return
                    body = bytearray()
                    async for part in response.aiter_bytes():
                        body += part
                        if len(body) > MAX_BYTES:
                            return
                    found[endpoint] = body.decode("utf-8", "replace")
                self._failed.discard(endpoint)

        async with httpx.AsyncClient(timeout=self._config.timeout_s, headers=_HEADERS) as client:
            order = sorted(self._config.endpoints, key=self._failed.__contains__)
            tasks = [asyncio.create_task(scrape(client, endpoint)) for endpoint in order]
            _, late = await asyncio.wait(tasks, timeout=self._config.timeout_s)
            for task in late:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for outcome in outcomes:
            expected = (httpx.HTTPError, httpx.InvalidURL, asyncio.CancelledError)
            if isinstance(outcome, BaseException) and not isinstance(outcome, expected):
                raise outcome
        return found

    def _tell_who_is_away(self, texts: dict[str, Any]) -> None:
        """One line for each exporter that no longer answers or does so again."""
        away = set(self._config.endpoints) - texts.keys()
        for endpoint in sorted(away - self._away):
            log.warning("exporter does not answer", extra={"fields": {"exporter": urlsplit(endpoint).netloc}})
        for endpoint in sorted(self._away - away):
            log.info("exporter answers again", extra={"fields": {"exporter": urlsplit(endpoint).netloc}})
        self._away = away

    def _rows(self, endpoint: str, text: str) -> tuple[Rows, Models]:
        """Values by device and catalogue name, in our units; and what kind of device it is."""
        host = urlsplit(endpoint).hostname or ""
        samples = list(samples_of(text, self._names))
        nodes = [labels.get("nodename", "") for name, labels, _ in samples if name == _NAME_OF_NODE]
        named = {host: nodes[0]} if nodes and nodes[0] else {}
        self._percent |= {
            (endpoint, name) for name, _, value in samples if is_percent(name, value) and not is_blank(value)
        }
        rows: Rows = {}
        models: Models = {}
        for name, labels, value in samples:
            if name == _NAME_OF_NODE or is_blank(value):
                continue
            metric = CATALOGUE[ALIASES[name]]
            one = who({**labels, "instance": labels.get("instance", host)}, metric.per, named)
            if one is not None:
                scale = 0.01 if (endpoint, name) in self._percent else factor(name)
                rows.setdefault(one, {})[metric.name] = value * scale
                models[one] = models.get(one) or model_of(labels)
        for values in rows.values():
            if REASONS in values and values[REASONS] >= 0.0:
                mask = int(values[REASONS])
                values.update({name: float(bool(mask & bits)) for name, bits in REASON_BITS.items()})
        return rows, models

    def _records(self, rows: Rows, models: Models, now_s: float) -> Iterator[MetricsRecord]:
        """One record for each node and kind of device."""
        groups: dict[tuple[str, str], list[Who]] = {}
        for one, values in rows.items():
            per = CATALOGUE[next(iter(values))].per
            groups.setdefault((one.node, per), []).append(one)
        for (node, _), members in groups.items():
            names = tuple(dict.fromkeys(name for one in members for name in rows[one]))
            columns = tuple(tuple(_finite(rows[one].get(name)) for one in members) for name in names)
            yield MetricsRecord(
                job=self._scope.job, node=node, time_s=now_s, names=names, values=columns,
                devices=tuple(one.device for one in members), models=tuple(models[one] for one in members),
            )  # fmt: skip


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
