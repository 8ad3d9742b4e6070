"""What the detection service asks of a detector, and how a detector's state is kept.

A detector is built as ``Class(config)``. Once for every window the service calls `update`, which
advances the detector's memory, and then `score`, which has no side effects. Detectors that learn
offline (the model-based ones) add ``fit``; nothing here depends on it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from detectors.window import Window
from trainwarden.errors import DetectorError
from trainwarden.records import Vote

MAX_STATE_BYTES = 1 << 30  # 16,384 ranks need about 200 MB; anything above is no state of ours


class Detector(Protocol):
    """One opinion about a job."""

    @property
    def more(self) -> bool:
        """True if another finding waits behind the one that `score` shows; the service then goes round again."""
        ...

    def update(self, window: Window) -> None:
        """Advance by one window; what was seen in an earlier window is not seen twice.

        Raises
        ------
        DetectorError
            If this window cannot be taken in.
        """
        ...

    def score(self, window: Window) -> Vote:
        """The opinion now. Never changes the detector; abstains with a reason where it cannot know."""
        ...

    def state(self) -> bytes:
        """Everything that `restore` needs to go on as if nothing had happened. Data only, nothing executable."""
        ...

    def restore(self, state: bytes) -> None:
        """Go on from `state`.

        Raises
        ------
        DetectorError
            If `state` is not one of this detector's.
        """
        ...


def abstain(reason: str) -> Vote:
    """A vote that is neither yes nor no.

    Examples
    --------
    >>> abstain("warm-up").opinion
    'abstain'
    """
    return Vote(opinion="abstain", reason=reason)


def pack(kind: str, plain: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]] | None = None) -> bytes:
    """One detector's state: `plain` as MessagePack, `arrays` as npz, marked with the detector's `kind`."""
    file = io.BytesIO()
    if arrays:
        np.savez(file, allow_pickle=False, **dict(arrays))
    return msgspec.msgpack.encode({"kind": kind, "plain": plain, "arrays": file.getvalue()}, enc_hook=list)


def unpack(kind: str, state: bytes) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """What `pack` was given.

    Raises
    ------
    DetectorError
        If `state` is damaged, too large or another detector's.

    Examples
    --------
    >>> plain, arrays = unpack("k", pack("k", {"n": 3}, {"x": np.arange(2)}))
    >>> plain["n"], arrays["x"].tolist()
    (3, [0, 1])
    """
    if len(state) > MAX_STATE_BYTES:
        raise DetectorError(f"state of {len(state)} bytes is larger than {MAX_STATE_BYTES}")
    try:
        raw = msgspec.msgpack.decode(state)
        if not isinstance(raw, dict) or raw.get("kind") != kind:
            raise DetectorError(f"this is not the state of a {kind} detector")
        arrays: dict[str, npt.NDArray[Any]] = {}
        if raw["arrays"]:
            with np.load(io.BytesIO(raw["arrays"]), allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
        return dict(raw["plain"]), arrays
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, OSError, EOFError) as error:
        raise DetectorError(f"state of {kind} is damaged: {error}") from error
