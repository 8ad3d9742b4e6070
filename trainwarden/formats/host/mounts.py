"""File systems in the series of exporters: whose mount point it is, how full it is, and what is full from the start."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np
import pandas as pd

from trainwarden.formats.verdicts import Verdict, verdict_tables
from trainwarden.recorded.job import Floats, LogTable, MetricTable

MOUNT: Final = "mount:"  # before the mount point, as the agent's collector of the host names the device
USED: Final = "host_filesystem_used_ratio"
_FREE: Final = "host_filesystem_free_bytes"
_SIZE: Final = "host_filesystem_size_bytes"
_FULL: Final = 0.9999  # of what programs other than root may use
# Kinds and places of file systems that are full because nothing is ever written to them.
_SEALED: Final = re.compile(r"/dev/(?:loop|sr)|(?:fuse\.)?(?:squash|cvmfs|iso9660|erofs|udf|efivarfs|ramfs|rootfs)")
_SEALED_AT: Final = ("/snap/", "/var/lib/snapd/", "/cvmfs", "/media/", "/cdrom", "/sys/")


def mount_of(labels: Mapping[str, str]) -> str | None:
    """The device that labels of a file system name; None where they are of none, or it is sealed.

    Examples
    --------
    >>> mount_of({"mountpoint": "/data", "fstype": "xfs"}), mount_of({"mountpoint": "/snap/x/1", "fstype": "squashfs"})
    ('mount:/data', None)
    """
    place = labels.get("mountpoint", "")
    return f"{MOUNT}{place}" if place and not is_sealed(place, labels.get("fstype", "")) else None


def is_sealed(place: str, *kinds: str) -> bool:
    """Whether nothing is ever written to a file system of this mount point, and of this kind or source."""
    return place.startswith(_SEALED_AT) or any(_SEALED.match(kind) for kind in kinds)


def with_shares(frame: pd.DataFrame) -> pd.DataFrame:
    """`frame` with the share in use of each mount of which it holds the room left and the size."""
    if not {_FREE, _SIZE} <= set(frame.columns):
        return frame
    size = frame[_SIZE].where(frame[_SIZE] > 0.0)
    share = 1.0 - frame[_FREE] / size
    known = frame[USED] if USED in frame.columns else np.nan
    mounts = frame["device"].astype(str).str.startswith(MOUNT)
    return frame.assign(**{USED: share.where(mounts).clip(0.0, 1.0).fillna(known)})


def full_from_the_start(table: MetricTable | None) -> list[LogTable]:
    """Lines about mounts without room from the first sample to the last: no change shows them."""
    if table is None or USED not in table.names:
        return []
    column: Floats = table.values[:, table.names.index(USED)]
    mounts = [place for place, device in enumerate(table.devices) if (device or "").startswith(MOUNT)]
    verdicts = list[Verdict]()
    for entity, rows in table.rows_of(np.array(mounts, np.int64)):
        known = rows[np.isfinite(column[rows])]
        if known.size and (column[known] >= _FULL).all():
            place = (table.devices[entity] or "").removeprefix(MOUNT)
            words = f"no room is left in any of {known.size} samples"
            verdicts.append(Verdict(place, "storage", words, table.nodes[entity], float(table.times_s[known[0]])))
    return verdict_tables("mounts", verdicts, np.nan)
