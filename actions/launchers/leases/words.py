"""What launchers and the lease service tell each other."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

DURATION_S: Final = 6.0
"""Default of a lease service: a lost leader is followed after so long, and a lost node is to cost under 20 s in all."""

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
Epoch = Annotated[int, msgspec.Meta(ge=1, le=2**53)]
"""The number of a lease among those of its job: the fencing token. Every new holder has a higher one."""
MOST_EPOCH: Final = 2**52
"""What no job reaches. Who carries a higher one is not believed, else its successors could not be told of any more."""
SeenEpoch = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Duration = Annotated[float, msgspec.Meta(gt=0.0, le=3600.0)]


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """That `holder` leads `job` for `duration_s` seconds, and is reached at `address` meanwhile.

    `holder` is one process: another of the same node has another name.
    """

    job: Name
    holder: Name
    address: Annotated[str, msgspec.Meta(max_length=256)]
    epoch: Epoch
    duration_s: Duration


class Ask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `holder` asks of the lease service.

    Attributes
    ----------
    want : str
        ``lead``: to be given the lease, or, where `holds`, to keep it. ``release``: to hold it no longer. ``look``:
        only who has it.
    carried : Lease, optional
        The newest lease that the asker has heard of, whoever's: a service that was restarted learns from it.
    holds : bool
        `carried` is the asker's own, and by its clock it still stands.
    seen_epoch : int
        The highest epoch that the asker has heard of, from whomever.
    """

    job: Name
    holder: Name
    address: Annotated[str, msgspec.Meta(max_length=256)] = ""
    want: Literal["lead", "release", "look"] = "lead"
    carried: Lease | None = None
    holds: bool = False
    seen_epoch: SeenEpoch = 0


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What the lease service says.

    Attributes
    ----------
    granted : bool
        `lease` is the asker's, for its duration from when it sent the question.
    lease : Lease, optional
        The newest one of the job that the service has heard of; without `granted` it may be over.
    wait_s : float
        Before so long nothing can have changed but by a release.
    """

    granted: bool
    lease: Lease | None = None
    wait_s: Annotated[float, msgspec.Meta(ge=0.0, le=3600.0)] = 0.0
