"""A range of a fleet's exporters read from a Prometheus: metric by metric, four at once, in answers of bounded size.

What the server cannot give at once is asked for in halves; what it cannot give at all is missing and said.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Final

from trainwarden.catalogue import ALIASES, CATALOGUE
from trainwarden.errors import ConfigError, DataError
from trainwarden.prometheus.client import PrometheusClient, Refused, Series, TooMuch, TooSlow
from trainwarden.prometheus.exporters import one_name_each, spellings, without_port
from trainwarden.prometheus.fleet import FamilyGrid, FamilyRange
from trainwarden.prometheus.lanes import interval_of
from trainwarden.prometheus.pieces import LEAST_STEP_S, Ask, Part, Piece, fetched

AT_ONCE: Final = 4  # Prometheus answers 20 questions at once; others ask, too
SAMPLES_AT_ONCE: Final = 300_000
MAX_CELLS: Final = 150_000_000  # of one family: 600 MB
MAX_NOTES: Final = 20
LOOKBACK_S: Final = 60.0  # before each piece, at least: what counters were
FAMILIES: Final = ("gpu", "nic", "host")

Progress = Callable[[int, int, int], None]
"""Called with answers so far, answers in all, samples so far."""


@dataclass(slots=True)
class Fleet:
    """What was read, by family, and in `notes` what of it is missing."""

    families: dict[str, FamilyRange] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    samples: int = 0

    def note(self, text: str) -> None:
        """Remember what is missing, once, and not without end."""
        if text not in self.notes and len(self.notes) < MAX_NOTES:
            self.notes.append(text)


def read_fleet(client: PrometheusClient, ask: Ask, progress: Progress = lambda done, total, samples: None) -> Fleet:
    """Read the exporters' metrics of a range of time.

    Raises
    ------
    ConfigError
        If it is more than fits into memory at this step.
    DataError
        If the Prometheus cannot be read, or has nothing of these exporters.
    """
    fleet = Fleet()
    known = spellings(ask.wanted)
    there = client.names(_any_of(ask), ask.start_s, ask.end_s)
    aliases = sorted(name for name in set(there) if name in known)
    if not aliases:
        where = f" for {{{ask.match}}}" if ask.match else ""
        raise DataError(f"the Prometheus at {client.name} has no metric of dcgm-exporter or node_exporter{where} then")
    nodes = _nodes(client, ask, fleet) if "node_uname_info" in there else {}
    by_family = {per: [one for one in aliases if CATALOGUE[ALIASES[one]].per == per] for per in FAMILIES}
    grids: dict[str, FamilyGrid] = {}
    rest: list[Piece] = []
    for per, names in by_family.items():
        try:
            rest += _begin(client, ask, (fleet, grids), per, (names, nodes)) if names else []
        except Refused:
            raise
        except DataError as error:
            fleet.note(f"{names[0]}: {error}")
            if isinstance(error, TooSlow):
                break
    _read_all(client, ask, (fleet, grids), rest, progress)
    for per, grid in grids.items():
        if grid.refused:
            fleet.note(f"more than {grid.size} devices of kind {per}: the rest is left out")
        if grid.size:
            fleet.families[per] = grid.finished()
    _name_alike(fleet)
    if not fleet.families:
        why = fleet.notes[0] if fleet.notes else "no sample in that time"
        raise DataError(f"nothing of the exporters' metrics could be read from {client.name}: {why}")
    return fleet


def _name_alike(fleet: Fleet) -> None:
    """Exporters that call one host by its short and its full name are made to agree."""
    short = one_name_each({who.node for one in fleet.families.values() for who in one.rows})
    for per, family in fleet.families.items():
        rows = tuple(who._replace(node=short.get(who.node, who.node)) for who in family.rows)
        fleet.families[per] = replace(family, rows=rows)


def _any_of(ask: Ask) -> str:
    names = "DCGM_FI_.+|DCGM_EXP_.+|node_infiniband_.+|node_network_.+|node_uname_info"
    if ask.wanted is None:
        names = "DCGM_FI_.+|DCGM_EXP_.+|node_.+"
    return f'{{__name__=~"{names}"{"," if ask.match else ""}{ask.match}}}'


def _nodes(client: PrometheusClient, ask: Ask, fleet: Fleet) -> dict[str, str]:
    """Names of hosts by ``instance`` without port, from node_exporter; empty where they cannot be had."""
    try:
        found = client.labels(ask.selector("node_uname_info"), ask.start_s, ask.end_s)
    except Refused:
        raise
    except DataError as error:
        fleet.note(f"names of nodes: {error}")
        return {}
    named = ((without_port(one.get("instance", "")), one.get("nodename", "")) for one in found)
    return {instance: name for instance, name in named if instance and name}


# -- pieces ----------------------------------------------------------------------------------------------------


def _begin(
    client: PrometheusClient,
    ask: Ask,
    laid: tuple[Fleet, dict[str, FamilyGrid]],
    per: str,
    known: tuple[list[str], dict[str, str]],
) -> list[Piece]:
    """Lay a family's commonest metric, which tells how often and how many samples come; the pieces of the others."""
    (fleet, grids), (names, nodes) = laid, (_commonest_first(client, ask, known[0]), known[1])
    total, lane_count = _counted(client, ask, names[0])
    pieces = max(1, math.ceil(total / SAMPLES_AT_ONCE))
    length_s = max((ask.end_s - ask.start_s) / pieces, 2 * LEAST_STEP_S)
    guess_s = (ask.end_s - ask.start_s) * lane_count / total if total else LEAST_STEP_S
    first = Piece(names[0], max(ask.start_s, ask.end_s - length_s), ask.end_s, max(LOOKBACK_S, 2.5 * guess_s))
    part = fetched(client, ask, first)
    interval_s = interval_of(part.lanes) or guess_s
    step_s = ask.step_s or max(LEAST_STEP_S, interval_s)
    columns = max(1, math.ceil((ask.end_s - ask.start_s) / step_s))
    grids[per] = FamilyGrid(per, ask.end_s - columns * step_s, step_s, columns, interval_s, nodes, ask.by)
    rows = len({grids[per].key(lane) for lane in part.lanes} - {None}) or lane_count
    if rows * len(names) * columns > MAX_CELLS:
        raise ConfigError(
            f"{rows} devices, {len(names)} metrics and {columns} steps of {step_s:g} s are more than fits: "
            "ask for a shorter time, a larger --step, or fewer devices by --match"
        )
    fleet.samples += grids[per].lay(names[0], part.lanes)
    for warning in part.warnings:
        fleet.note(f"{names[0]}: {warning}")
    lookback_s = max(LOOKBACK_S, 2.5 * interval_s)
    todo = []
    for name in names:
        end_s = first.start_s if name == names[0] else ask.end_s
        while end_s > ask.start_s:
            start_s = max(ask.start_s, end_s - length_s)
            todo.append(Piece(name, start_s, end_s, lookback_s))
            end_s = start_s
    return todo


def _commonest_first(client: PrometheusClient, ask: Ask, names: list[str]) -> list[str]:
    """`names`, that of most series first: where exporters of two generations are mixed, any other stands for few."""
    selector = f'{{__name__=~"{"|".join(names)}"{"," if ask.match else ""}{ask.match}}}'
    try:
        found = client.query(f"count by (__name__) ({selector})", ask.end_s).data.result
    except Refused:
        raise
    except DataError:
        return names
    counts = {one.metric.get("__name__"): _number(one) for one in found}
    return sorted(names, key=lambda name: -counts.get(name, 0))


def _counted(client: PrometheusClient, ask: Ask, alias: str) -> tuple[int, int]:
    """Samples and series of one metric in the whole range, about."""
    inner = f"count_over_time({ask.selector(alias)}[{max(1, round(ask.end_s - ask.start_s))}s])"
    numbers = []
    for outer in ("sum", "count"):
        try:
            found = client.query(f"{outer}({inner})", ask.end_s).data.result
        except TooMuch:
            return 0, 0  # then it is asked for in halves
        numbers.append(_number(found[0]) if found else 0)
    return numbers[0], numbers[1]


def _number(count: Series) -> int:
    """A count that was asked for; 0 if it is none."""
    try:
        return int(float(count.value[1])) if count.value is not None else 0
    except (ValueError, OverflowError):
        return 0


def _read_all(
    client: PrometheusClient,
    ask: Ask,
    laid: tuple[Fleet, dict[str, FamilyGrid]],
    pieces: list[Piece],
    progress: Progress,
) -> None:
    """Lay every piece as it comes; what cannot be had becomes a note."""
    fleet, grids = laid
    waiting, left = list(reversed(pieces)), len(pieces)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running: dict[Future[Part], Piece] = {}
        while waiting or running:
            while waiting and len(running) < AT_ONCE:
                piece = waiting.pop()
                running[pool.submit(fetched, client, ask, piece)] = piece
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                piece, left = running.pop(future), left - 1
                try:
                    part = future.result()
                except DataError as error:
                    fleet.note(f"{piece.alias}: {error}")
                    if isinstance(error, Refused | TooSlow):
                        waiting.clear()
                    continue
                for warning in part.warnings:
                    fleet.note(f"{piece.alias}: {warning}")
                fleet.samples += grids[CATALOGUE[ALIASES[piece.alias]].per].lay(piece.alias, part.lanes)
            progress(len(pieces) - left, len(pieces), fleet.samples)
