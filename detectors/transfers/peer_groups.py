"""Which ranks do the same work, and for how much of a step their pipeline has work for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.calls.counts import Counts
from trainwarden.detectors.calls.joined import JoinedStep
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.peers.roles import Codes

Ints = npt.NDArray[np.int64]
COMPARED: Final = 2  # ranks of a stage without whom there is nobody to compare one with


@dataclass(frozen=True, slots=True)
class PeerGroups:
    """What ranks have in common.

    Attributes
    ----------
    codes : int [ranks]
        Ranks of equal numbers do the same work.
    filled : float [ranks]
        Share of a step's turns in which the rank's stage has a micro-batch: m of m + p - 1 turns, with m micro-batches
        and p stages (Narayanan et al., Megatron-LM, 2021, section 2.2.1); 1 without a pipeline.
    """

    codes: Codes
    filled: npt.NDArray[np.float64]


def likes(step: JoinedStep, window: Window) -> PeerGroups:
    """Who makes the same kinds of calls, has said the same role, and is in the same stage of its pipeline.

    Stages need not have the same number of layers. Where a stage is one rank alone, it is compared with other stages,
    but for the first and the last.
    """
    ranks = len(window.ranks)
    stage, stages, ends = _stages(window.counts, ranks, step.among_all)
    _, role = np.unique(np.array(window.roles, dtype=np.str_), return_inverse=True)
    kind = _numbered(step.kinds)
    wide = _numbered(np.stack((kind, role.reshape(-1), ends), axis=1))
    own = _numbered(np.stack((wide, stage), axis=1))
    alone = np.bincount(own, minlength=1)[own] < COMPARED
    codes = _numbered(np.stack((wide, np.where(alone, -1, stage)), axis=1))
    turns = np.maximum(step.turns, 1)
    known = (stages > 0) & (step.turns > 0)
    filled = np.where(known, turns / (turns + np.maximum(stages, 1) - 1), 1.0)
    return PeerGroups(codes.astype(np.intp), filled)


def _stages(counts: Counts | None, ranks: int, among_all: Ints) -> tuple[Ints, Ints, Ints]:
    """Of each rank: its place in a group that sends and receives, the group's size, and whether any come before, after.

    Groups that exchange `among_all` have no stages. Pairs that have a communicator each tell the last alone.
    """
    stage, stages, ends = (np.zeros(ranks, dtype=np.int64) for _ in range(3))
    if counts is not None and counts.comm.size:
        staged = counts.paired & ~np.isin(np.arange(counts.paired.size), among_all)
        rows = np.flatnonzero(staged[counts.comm] & (counts.column < ranks))
        column, place, size = counts.column[rows], counts.place[rows], counts.sizes[counts.comm[rows]]
        np.bitwise_or.at(ends, column, (place > 0) * 1 + (place < size - 1) * 2)
        whole = size > 2
        np.maximum.at(stages, column[whole], size[whole])
        widest = whole & (size == stages[column])
        stage[column[widest]] = place[widest]
    return stage, stages, ends


def _numbered(table: npt.NDArray[np.bool_] | Ints) -> Ints:
    """Equal rows have equal numbers."""
    if not table.shape[1]:
        return np.zeros(table.shape[0], dtype=np.int64)
    packed = np.ascontiguousarray(np.packbits(table, axis=1) if table.dtype == np.bool_ else table)
    rows = packed.view([("", packed.dtype)] * packed.shape[1])
    return np.asarray(np.unique(rows, return_inverse=True)[1].reshape(-1), dtype=np.int64)
