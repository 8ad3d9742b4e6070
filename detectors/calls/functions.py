"""What there is to call: which functions make their ranks wait for each other, and how much each moves."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt

NAMES: Final = (
    "unknown", "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter",
    "send", "recv",
)  # fmt: skip
FUNCTIONS: Final = 16  # room for codes; more than there are names
SEND: Final = NAMES.index("send")
RECV: Final = NAMES.index("recv")
SYNCHRONISES: Final[npt.NDArray[np.bool_]] = np.isin(np.arange(FUNCTIONS), (1, 2, 3, 4))
"""By code: no rank can end before all have come. A root's calls are not so, and of unknown ones it is not known."""
_CODES: Final = {name.replace("_", ""): code for code, name in enumerate(NAMES)} | {"alltoallv": 4, "sendrecv": 0}


@lru_cache(maxsize=1024)
def code_of(name: str) -> int:
    """The code of a function as NCCL, PyTorch or a person writes it; 0 if it is none of `NAMES`.

    Examples
    --------
    >>> code_of("AllReduce"), code_of("ncclAllReduce"), code_of("all_reduce"), code_of("mystery")
    (1, 1, 1, 0)
    """
    plain = name[:64].lower().replace("_", "").replace("-", "").removeprefix("nccl")
    return _CODES.get(plain, 0)


def bus_factor(function: int, size: int) -> float:
    """What a byte of a call is on the busiest link of a ring of `size` ranks, as nccl-tests count bus bandwidth.

    Examples
    --------
    >>> bus_factor(code_of("all_reduce"), 4), bus_factor(code_of("all_gather"), 4), bus_factor(SEND, 2)
    (1.5, 0.75, 1.0)
    """
    if size < 2 or not SYNCHRONISES[function]:
        return 1.0
    return (2.0 if function == 1 else 1.0) * (size - 1) / size
