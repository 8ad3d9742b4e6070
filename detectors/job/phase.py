"""What a job is in the midst of that explains why it is slow."""

from __future__ import annotations

from detectors.job.rings import EXIT, PHASE_CODE, Ints
from detectors.job.step_assembly import StepAssembly


def phase(steps: StepAssembly, alive: Ints, finished: bool, manned: bool) -> str:
    """The phase of a job, see `detectors.job.window.Window`.

    Parameters
    ----------
    alive : int [ranks]
        Phases of the ranks that have not ended.
    finished, manned : bool
        Whether the launcher has said that it is over; whether there are ranks: without any no start can be seen.
    """
    if steps.restarting:
        return "restart"
    if finished:
        return "ended"
    if bool((alive == EXIT).any()):
        return "exit"
    if steps.quiet_left > 0 and manned:
        return "start"
    for name in ("checkpoint", "evaluation", "data"):
        if (alive == PHASE_CODE[name]).any():
            return name
    return ""
