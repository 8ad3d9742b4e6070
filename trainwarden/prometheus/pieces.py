"""One metric in one stretch of time as it is asked for: in halves where the server cannot give it at once.

Samples are asked for as they were taken (range selectors): `query_range` repeats a series for five minutes after its
end.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from trainwarden.errors import DataError
from trainwarden.prometheus.client import PrometheusClient, Refused, TooMuch, TooSlow
from trainwarden.prometheus.lanes import Lane, lanes_of

LEAST_STEP_S: Final = 15.0
MAX_HALVINGS: Final = 6
MAX_WAITS: Final = 2  # a server that has not answered in time is asked for less so often, and then for nothing more


@dataclass(frozen=True, slots=True)
class Ask:
    """What is wanted.

    Attributes
    ----------
    match : str
        Matchers of a selector, e.g. ``cluster="a"``.
    start_s, end_s : float
    step_s : float, optional
        Width of a column; default the exporters' own interval, 15 s at least.
    by : str, optional
        Label that parts the fleet into jobs.
    wanted : collection of str, optional
        Names of the catalogue; default all.
    """

    match: str
    start_s: float
    end_s: float
    step_s: float | None = None
    by: str | None = None
    wanted: Collection[str] | None = None

    def selector(self, name: str) -> str:
        """The series of one metric."""
        return f"{name}{{{self.match}}}" if self.match else name


@dataclass(frozen=True, slots=True)
class Piece:
    """One metric in one stretch of time."""

    alias: str
    start_s: float
    end_s: float
    lookback_s: float


@dataclass(slots=True)
class Part:
    """What came of one piece."""

    lanes: list[Lane]
    warnings: list[str]


def fetched(client: PrometheusClient, ask: Ask, piece: Piece, halvings: int = 0) -> Part:
    """One piece, in halves where the server cannot give it at once."""
    span_s = piece.end_s - piece.start_s
    try:
        window = f"{ask.selector(piece.alias)}[{math.ceil(span_s + piece.lookback_s)}s]"
        found = client.query(window, piece.end_s)
        if found.data.result_type != "matrix":
            raise DataError("the server gives no samples for a range selector")
        notes = [f"the answer is partial ({word[:200]})" for word in found.warnings]
        return Part(lanes_of(found.data.result, piece.start_s, piece.end_s), notes)
    except (Refused, TooMuch) as error:
        most = MAX_WAITS if isinstance(error, TooSlow) else MAX_HALVINGS
        if isinstance(error, Refused) or halvings >= most or span_s <= 2 * LEAST_STEP_S:
            raise
    except DataError as error:
        return _evenly(client, ask, piece, error)
    middle_s = piece.start_s + span_s / 2
    halves = [
        fetched(client, ask, Piece(piece.alias, start_s, end_s, piece.lookback_s), halvings + 1)
        for start_s, end_s in ((piece.start_s, middle_s), (middle_s, piece.end_s))
    ]
    return Part([one for half in halves for one in half.lanes], [one for half in halves for one in half.warnings])


def _evenly(client: PrometheusClient, ask: Ask, piece: Piece, why: DataError) -> Part:
    """The piece by `query_range`, for servers that know no range selector."""
    step_s = max(ask.step_s or LEAST_STEP_S, (piece.end_s - piece.start_s) / 10_000)
    try:
        found = client.query_range(ask.selector(piece.alias), piece.start_s, piece.end_s, step_s)
    except DataError as error:
        raise why from error
    notes = [f"the answer is partial ({word[:200]})" for word in found.warnings]
    notes.append("read by query_range, which repeats a series for up to five minutes after its end")
    return Part(lanes_of(found.data.result, piece.start_s, piece.end_s), notes)
