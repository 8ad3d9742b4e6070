"""Format: `kubectl get pods` as a table, and `kubectl get pods`, `nodes` or `events` with ``-o json``.

A table is read where every pod runs, has ended well or was killed for its memory; others ask for events and logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from trainwarden.errors import DataError
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import time_s_of
from trainwarden.recorded.job import LogTable

_HEADER: Final = re.compile(r"(?:NAMESPACE\s{1,200})?NAME\s{1,200}READY\s{1,20}STATUS\s{1,40}RESTARTS\s")
_ROW: Final = re.compile(
    r"(?:\S{1,253}\s{1,200})?(\S{1,253})\s{1,200}([0-9]{1,3})/([0-9]{1,3})\s{1,20}([A-Za-z][A-Za-z:/0-9]{0,40})\s{1,40}"
    r"[0-9]{1,6}(?: \([^)\n]{1,20}\))?\s{1,40}[0-9][0-9a-z]{0,20}(?:\s{1,40}(\S{1,60})\s{1,200}(\S{1,253}))?"
)
_ENDED: Final = ("Completed", "Succeeded")
_OOM: Final = "OOMKilled"
_JSON: Final = re.compile(r'"kind"\s{0,4}:\s{0,4}"(?:List|Pod|PodList|Node|NodeList|Event|EventList)"')
_KEYS: Final = ('"containerStatuses"', '"conditions"', '"involvedObject"', '"regarding"')
_OLD_S: Final = 86_400.0  # an end this long before the newest time of the answer is history


class _Said(NamedTuple):
    time_s: float
    node: str | None
    line: str


class Pods:
    """One answer; a table carries no times, so that it counts from the file's last change."""

    name = "kubernetes objects"

    def sniff(self, name: str, head: str) -> float:
        """By the header of the table with rows that can be judged; by the kind and status of objects."""
        del name
        if head.lstrip()[:1] == "{":
            own = '"apiVersion"' in head and any(key in head for key in _KEYS)
            return SURE if own and _JSON.search(head) is not None else NEVER
        lines = [line for line in head.split("\n")[:-1] if line.strip()]
        if not lines or _HEADER.match(lines[0]) is None:
            return NEVER
        rows = [_ROW.match(line) for line in lines[1:] if _HEADER.match(line) is None]
        return SURE if rows and all(row is not None and _judged(row) for row in rows) else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        text, now_s = source.text(), source.path.stat().st_mtime
        failed = list[str]()
        said = list(_of_json(text, source.name, now_s, failed) if text.lstrip()[:1] == "{" else _of_table(text, now_s))
        if failed and not any(_OOM in one.line or " NotReady " in one.line for one in said):
            raise DataError(
                f"{source.name}: {len(failed)} pods do not run or have failed ({', '.join(failed[:5])}); "
                "give `kubectl get events`, `kubectl describe pod` or the pods' logs"
            )
        if not said:
            raise DataError(f"{source.name}: it names no pod and no node")
        said.sort(key=lambda one: one.time_s)
        times, nodes = np.array([one.time_s for one in said]), tuple(one.node for one in said)
        table = LogTable("kubernetes", times, nodes, (None,) * len(said), [one.line for one in said])
        return Found(rows=len(said), logs=[table])


def _judged(row: re.Match[str]) -> bool:
    running = row[4] == "Running" and row[2] == row[3]
    return running or row[4] in _ENDED or row[4] == _OOM


def _of_table(text: str, now_s: float) -> Iterator[_Said]:
    for line in text.split("\n"):
        row = _ROW.match(line)
        if row is not None:
            node = row[6] if row[6] not in (None, "<none>") and row[5] != "<none>" else None
            yield _Said(now_s, node, f"pod {row[1]}: {row[4]}")


def _of_json(text: str, name: str, now_s: float, failed: list[str]) -> Iterator[_Said]:
    """A line for each object; the names of pods that failed, or wait, without a reason that is known."""
    try:
        whole = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(f"{name} is not the JSON that it looks like: {error}") from error
    listed = whole.get("items", [whole]) if isinstance(whole, dict) else []
    objects = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
    newest_s = max((time_s for one in objects for time_s in _times(one.get("status"))), default=now_s)
    for one in objects:
        status, meta = _mapping(one.get("status")), _mapping(one.get("metadata"))
        word = str(meta.get("name", "?"))[:253]
        if one.get("kind") == "Node" or "nodeInfo" in status:
            yield _of_node(word, status, newest_s)
        elif one.get("kind") == "Event" or "involvedObject" in one or "regarding" in one:
            yield _of_event(one, now_s)
        elif one.get("kind", "Pod") == "Pod":
            node = _mapping(one.get("spec")).get("nodeName")
            yield from _of_pod(word, str(node) if node else None, status, newest_s, failed)


def _of_node(name: str, status: Mapping[str, Any], now_s: float) -> _Said:
    """A node as `kubectl get nodes` writes it."""
    ready = next((_mapping(one) for one in _list(status.get("conditions")) if _mapping(one).get("type") == "Ready"), {})
    if ready.get("status", "True") == "True":
        return _Said(now_s, name, f"node {name}: Ready")
    version = str(_mapping(status.get("nodeInfo")).get("kubeletVersion", "v1.")).split()[0]
    changed_s = time_s_of(str(ready.get("lastTransitionTime", "")))
    return _Said(changed_s if changed_s > 1e8 else now_s, name, f"{name}   NotReady   <none>   1d   {version}")


def _of_event(one: Mapping[str, Any], now_s: float) -> _Said:
    """An event as `kubectl get events` writes it; the node is the one it is about, or whose kubelet says it."""
    about = _mapping(one.get("involvedObject")) or _mapping(one.get("regarding"))
    source = _mapping(one.get("source")) or _mapping(one.get("deprecatedSource"))
    kind, name = str(about.get("kind", "?"))[:60], str(about.get("name", "?"))[:253]
    node = name if kind == "Node" else source.get("host")
    keys = ("lastTimestamp", "eventTime", "deprecatedLastTimestamp", "firstTimestamp")
    stamps = (time_s_of(str(one[key])) for key in keys if one.get(key))
    time_s = next((stamp for stamp in stamps if np.isfinite(stamp) and stamp > 1e8), now_s)
    message = " ".join(str(one.get("message") or one.get("note") or "").split())[:500]
    line = f"{one.get('type', 'Normal')}   {one.get('reason', '')}   {kind.lower()}/{name}   {message}"
    return _Said(time_s, str(node) if node else None, line)


def _of_pod(name: str, node: str | None, status: Mapping[str, Any], now_s: float, failed: list[str]) -> Iterator[_Said]:
    phase = str(status.get("phase", ""))
    before = len(failed)
    for container in map(_mapping, _list(status.get("containerStatuses"))):
        for key in ("state", "lastState"):
            ended = _mapping(_mapping(container.get(key)).get("terminated"))
            end_s = time_s_of(str(ended.get("finishedAt", "")))
            end_s = end_s if end_s > 1e8 else now_s
            if not ended or not ended.get("exitCode") or (key == "lastState" and end_s < now_s - _OLD_S):
                continue
            reason = str(ended.get("reason", ""))[:80]
            if reason != _OOM:
                failed.append(name)
            code = ended.get("exitCode")
            yield _Said(end_s, node, f"pod {name}: container {container.get('name')} ended: {reason}, exit code {code}")
    if phase in ("Failed", "Pending", "Unknown"):
        reason = " ".join(f"{status.get('reason', '')} {status.get('message', '')}".split())[:300]
        yield _Said(now_s, node, f"pod {name}: {phase} {reason}".rstrip())
        if len(failed) == before and phase != "Failed":
            failed.append(name)
    elif phase:
        yield _Said(now_s, node, f"pod {name}: {phase}")


def _times(one: Any) -> Iterator[float]:
    """Every time below `one` that says when something began or ended."""
    if isinstance(one, dict):
        for key, value in one.items():
            if isinstance(value, str) and key.endswith(("At", "Time")):
                time_s = time_s_of(value)
                if np.isfinite(time_s) and time_s > 1e8:
                    yield time_s
            else:
                yield from _times(value)
    elif isinstance(one, list):
        for inner in one:
            yield from _times(inner)


def _mapping(one: Any) -> Mapping[str, Any]:
    return one if isinstance(one, dict) else {}


def _list(one: Any) -> list[Any]:
    return one if isinstance(one, list) else []
