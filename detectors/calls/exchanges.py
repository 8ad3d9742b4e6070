"""All-to-alls of one step: NCCL makes them of sends and receives and tells of these, here they are one call again.

Ranks that share experts (DeepSeek-AI, 2024, DeepSeek-V3, section 3.2) send tokens to all others of their group, and to
themselves. These sends and receives are launched together, those that share a channel have its stamps together, and
nobody can end before all have come. Added up one by one they would take a multiple of their time, and taken for those
of a pipeline they would make stages of ranks that do the same work.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from trainwarden.detectors.calls.functions import RECV, SEND, code_of
from trainwarden.detectors.calls.joined import Calls

Ints = npt.NDArray[np.int64]
NEIGHBOURS: Final = 2  # whom a rank of a pipeline, or of a ring, sends to
_COLUMN_BITS, _NUMBER_BITS = 17, 28  # a communicator has 18, see `MAX_COMMS`: all fit into 63
_COLUMNS, _NUMBERS = (1 << _COLUMN_BITS) - 1, (1 << _NUMBER_BITS) - 1
_ALL_TO_ALL: Final = code_of("all_to_all")


def with_all_to_alls(calls: Calls, comms: int) -> tuple[Calls, Ints]:
    """The calls with each launch of an all-to-all as one call, and the communicators that have such.

    Parameters
    ----------
    calls : Calls
        Sends and receives are numbered by peer.
    comms : int
        How many communicators there are.

    Notes
    -----
    A launch is known by its number from the last of the step, with each peer: where some are lost, the first are.
    Sizes are those of all that a rank sends; where not all parts are equal (tokens go where they like) they are 0, as
    such calls do not compare.
    """
    paired = np.isin(calls.function, (SEND, RECV))
    if not paired.any():
        return calls, np.zeros(0, dtype=np.int64)
    found = _among_all(calls.part((calls.function == SEND) & (calls.peer >= 0)), comms)
    merged = paired & found[calls.comm]
    if not merged.any():
        return calls, np.zeros(0, dtype=np.int64)
    rest, launches = calls.part(~merged), _launches(calls.part(merged & (calls.peer >= 0)))
    both = (np.concatenate((getattr(rest, name), getattr(launches, name))) for name in Calls.__slots__)
    return Calls(*both), np.flatnonzero(found)


def _among_all(sends: Calls, comms: int) -> npt.NDArray[np.bool_]:
    """Communicators most of whose ranks send to themselves, or to more than their neighbours [comms]."""
    pair = np.unique(_seat(sends) << _COLUMN_BITS | sends.peer)
    seat, first, number = np.unique(pair >> _COLUMN_BITS, return_index=True, return_counts=True)
    if not seat.size:
        return np.zeros(comms, dtype=np.bool_)
    itself = (pair & _COLUMNS) == (pair >> _COLUMN_BITS & _COLUMNS)
    many = np.logical_or.reduceat(itself, first) | (number > NEIGHBOURS)
    comm = seat >> _COLUMN_BITS
    found: npt.NDArray[np.bool_] = 2 * np.bincount(comm, many, comms) > np.bincount(comm, minlength=comms)
    return found


def _launches(calls: Calls) -> Calls:
    """One row for each rank and launch: as long as its longest part, and with the bytes that the rank sends."""
    seat, sends = _seat(calls), calls.function == SEND
    stream = (seat << 1 | sends) << _COLUMN_BITS | calls.peer
    order = np.lexsort((calls.seq, stream))
    begins = _begins(stream[order])
    ends = np.append(begins[1:], order.size)
    number = np.empty(order.size, dtype=np.int64)  # from the last
    number[order] = np.repeat(ends, ends - begins) - 1 - np.arange(order.size)
    launch = seat << _NUMBER_BITS | np.minimum(number, _NUMBERS)
    order = np.argsort(launch)
    begins = _begins(launch[order])
    comm, column, number = (lane[order][begins] for lane in (calls.comm, calls.column, number))
    size = calls.call_bytes[order]
    sent = np.add.reduceat(np.where(sends[order], size, 0), begins)
    seq = number.max(initial=0) - number
    even = _even(comm << _NUMBER_BITS | seq, np.minimum.reduceat(size, begins), np.maximum.reduceat(size, begins))
    return Calls(
        column, comm, np.full(column.size, _ALL_TO_ALL), seq, np.where(even, sent, 0),
        np.fmax.reduceat(calls.device_s[order], begins), np.full(column.size, -1),
    )  # fmt: skip


def _seat(calls: Calls) -> Ints:
    return calls.comm << _COLUMN_BITS | calls.column


def _begins(ordered: Ints) -> Ints:
    """Where other values begin."""
    return np.flatnonzero(np.append(True, np.diff(ordered) != 0))


def _even(call: Ints, low: Ints, high: Ints) -> npt.NDArray[np.bool_]:
    """Whether all parts of a call are as large, by the least and the largest of each of its rows."""
    _, place = np.unique(call, return_inverse=True)
    least, most = np.full(call.size, np.iinfo(np.int64).max), np.zeros(call.size, dtype=np.int64)
    np.minimum.at(least, place, low)
    np.maximum.at(most, place, high)
    return np.asarray((least == most)[place])
