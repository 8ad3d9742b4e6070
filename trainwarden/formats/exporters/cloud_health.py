"""What clouds measure of storage and machines: limits that stay reached, credits that are spent, checks that fail.

Names are those of CloudWatch (EFS, FSx, EBS, EC2), Azure Monitor and Cloud Monitoring, without blanks and signs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from trainwarden.formats.cells import NotNumber, number_of
from trainwarden.formats.exporters.exposition import found_of
from trainwarden.formats.protocol import Found
from trainwarden.formats.source import Source
from trainwarden.formats.stamps import Times
from trainwarden.formats.verdicts import Verdict, found_of_verdicts
from trainwarden.recorded.job import Floats

_SIGNS: Final = re.compile(r"[^a-z0-9]+")
_OWNER: Final = re.compile(r"(?<![a-z0-9])((?:fs|vol|i)-[0-9a-z]{3,20})(?![a-z0-9])")
LEAST_SAMPLES: Final = 2


class CloudSeries(NamedTuple):
    """One metric of one resource as a service answers it; times in any order."""

    metric: str
    owner: str
    times: Sequence[object]
    values: Sequence[object]


class _Limit(NamedTuple):
    """What of a metric is a failure of which part, and how long it must last."""

    part: str
    above: bool
    bar: float
    over_s: float
    says: str


# AWS: "Amazon CloudWatch metrics for Amazon EFS", "... for Amazon EBS", "FSx for Lustre metrics and dimensions" and
# "Status checks for Amazon EC2 instances". A checkpoint reaches a limit for minutes; what stays there holds the job up.
_REACHED: Final = _Limit("storage", True, 99.0, 600.0, "its limit has been reached all the time")
_SPENT: Final = _Limit("storage", False, 1.0, 60.0, "its credits are spent, so that it is throttled to its base rate")
_FULL: Final = _Limit("storage", True, 99.9, 60.0, "no room is left")
_CHECK: Final = _Limit("node", True, 0.5, 60.0, "the cloud's own check of it fails")
_LIMITS: Final = {
    **dict.fromkeys(
        ("percentiolimit", "throughpututilization", "networkthroughpututilization", "diskiopsutilization",
         "fileserverdiskthroughpututilization", "fileserverdiskiopsutilization", "datadiskiopsconsumedpercentage",
         "datadiskbandwidthconsumedpercentage", "osdiskiopsconsumedpercentage", "osdiskbandwidthconsumedpercentage"),
        _REACHED,
    ),
    "burstcreditbalance": _SPENT, "burstbalance": _SPENT,
    "storagecapacityutilization": _FULL, "usedbytespercent": _FULL,
    "freedatastoragecapacity": _Limit("storage", False, 1.0, 60.0, "no room is left"),
    "freestoragecapacity": _Limit("storage", False, 1.0, 60.0, "no room is left"),
    "volumestallediocheck": _Limit("storage", True, 0.5, 60.0, "its requests stand still"),
    "statuscheckfailed": _CHECK, "statuscheckfailedsystem": _CHECK, "statuscheckfailedinstance": _CHECK,
    "statuscheckfailedattachedebs": _CHECK,
    "vmavailabilitymetric": _Limit("node", False, 0.5, 60.0, "the cloud says that it is not available"),
}  # fmt: skip


def is_of_cloud(metric: str) -> bool:
    """Whether a metric is one of those that are judged here.

    Examples
    --------
    >>> is_of_cloud("PercentIOLimit"), is_of_cloud("file.googleapis.com/nfs/server/used_bytes_percent")
    (True, True)
    >>> is_of_cloud("CPUUtilization")
    False
    """
    return _limit(metric) is not None


def owner_in(text: str) -> str:
    """The file system, volume or machine of AWS that a text names; "" if none is in it.

    Examples
    --------
    >>> owner_in("fs-0a1b2c3d PercentIOLimit"), owner_in("PercentIOLimit")
    ('fs-0a1b2c3d', '')
    """
    match = _OWNER.search(text.lower())
    return match[1] if match is not None else ""


def cloud_verdicts(series: Iterable[CloudSeries]) -> Iterator[Verdict]:
    """A verdict for each series that is judged."""
    for one in series:
        limit = _limit(one.metric)
        if limit is None:
            continue
        times_s = Times(list(one.times)).values_s
        values = np.array([_number(value) for value in one.values], np.float64)
        known = np.isfinite(times_s) & np.isfinite(values)
        order = np.argsort(times_s[known], kind="stable")
        times_s, values = times_s[known][order], values[known][order]
        if times_s.size < LEAST_SAMPLES:
            continue
        owner = one.owner or ("node" if limit.part == "node" else "volume")
        node = one.owner if limit.part == "node" and one.owner else None
        since_s = _since(times_s, values, limit)
        if since_s is None:
            yield Verdict(owner, "", None, node, float(times_s[0]))
        else:
            yield Verdict(owner, limit.part, f"{limit.says} ({one.metric})", node, since_s)


def found_with(
    source: Source,
    verdicts: Sequence[Verdict],
    rows: list[tuple[float, str | None, str | None, str, float]],
    unknown: set[str],
) -> Found:
    """What an answer holds: `verdicts`, and samples of metrics of ours.

    Raises
    ------
    DataError
        If there is neither.
    """
    if not verdicts:
        return found_of(source, rows, unknown)
    found = found_of_verdicts(source, "cloud metrics", verdicts)
    if rows:
        found.metrics += found_of(source, rows, set()).metrics
    return found


def _limit(metric: str) -> _Limit | None:
    return _LIMITS.get(_SIGNS.sub("", metric.rsplit("/", 1)[-1].lower()))


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, int | float) else number_of(str(value))[0]
    except NotNumber:
        return float("nan")


def _since(times_s: Floats, values: Floats, limit: _Limit) -> float | None:
    """Where the first stretch of samples beyond the limit begins that lasts long enough."""
    beyond = values >= limit.bar if limit.above else values < limit.bar
    begun: float | None = None
    count = 0
    for time_s, is_beyond in zip(times_s.tolist(), beyond.tolist(), strict=True):
        if not is_beyond:
            begun, count = None, 0
            continue
        begun, count = time_s if begun is None else begun, count + 1
        if count >= LEAST_SAMPLES and time_s - begun >= limit.over_s:
            return begun
    return None
