"""`trainwarden validate` as a child of the launcher: started, looked after, its result read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from trainwarden.actions.launchers.restart_check.messages import Outcome
from trainwarden.launching import Accused, Check, Findings, Rates
from trainwarden.torchrun.files import read_whole
from trainwarden.torchrun.validation import MOST_BYTES, ValidationChild


class JobPlace(msgspec.Struct, frozen=True, kw_only=True):
    """A job whose `ranks` all run on this machine, `node`, with the run folder `run_dir`."""

    job: str
    node: str
    ranks: int
    run_dir: Path

    @classmethod
    def nowhere(cls) -> JobPlace:
        """Of a job whose ranks are on other machines."""
        return cls(job="", node="", ranks=0, run_dir=Path(os.devnull))


class _Result(msgspec.Struct, frozen=True):
    """What is read of the object that `trainwarden validate --json` writes."""

    accused: tuple[Accused, ...]
    nodes: dict[str, tuple[int, ...]]
    judged: tuple[Check, ...] = ()
    rates: Rates = Rates()


def findings_in(path: Path) -> Findings:
    """What a validation has written to `path`.

    Raises
    ------
    OSError, msgspec.DecodeError
        If there is no whole result.
    """
    return _findings(read_whole(path, MOST_BYTES))


def _findings(result: bytes) -> Findings:
    found = msgspec.json.decode(result, type=_Result)
    return Findings(accused=found.accused, judged=found.judged, nodes=tuple(found.nodes), rates=found.rates)


class Measurement(ValidationChild):
    """A validation of the places of all ranks of `place`, which waits for `begin`; it ends with the launcher.

    Raises
    ------
    OSError
        If there is no memory or process slot for it.
    """

    def __init__(self, place: JobPlace, checks: Sequence[Check]) -> None:
        words = ("--nproc", str(place.ranks), "--checks", ",".join(checks))
        super().__init__(place.run_dir, place.node, words, os.environ)

    def outcome(self) -> Outcome:
        """What it found, once it has ended."""
        return outcome_of(self.result())


def outcome_of(result: bytes | str) -> Outcome:
    """What `ValidationChild.result` says.

    Examples
    --------
    >>> outcome_of("it said nothing").error
    'it said nothing'
    >>> outcome_of(b"{").error
    'the result of the validation cannot be understood'
    """
    if isinstance(result, str):
        return Outcome(None, result)
    try:
        return Outcome(_findings(result))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return Outcome(None, "the result of the validation cannot be understood")
