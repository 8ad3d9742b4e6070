"""What the reports of its nodes say of an attempt that runs, and the attempt that comes after one."""

from __future__ import annotations

from collections.abc import Sequence

from actions.launchers.cluster.words import Attempt, Over, Report
from trainwarden.checkpoints.newest import Checkpoint

LOST_JOB_CODE = 1


def following(before: Attempt | None, epoch: int, roster: Sequence[Report], checkpoint: Checkpoint | None) -> Attempt:
    """The attempt after `before` on the nodes of `roster`, in their order, on from `checkpoint`."""
    failures = 0 if before is None else before.failures
    return Attempt(
        epoch=epoch,
        number=1 if before is None else before.number + 1,
        roster=tuple(one.life for one in roster),
        master=roster[0].host,
        port=roster[0].port,
        failures=failures,
        outlived=failures if before is None or _is_further(before, checkpoint) else before.outlived,
        checkpoint=None if checkpoint is None else checkpoint.path.name,
        step=None if checkpoint is None else checkpoint.step,
    )


def _is_further(before: Attempt, checkpoint: Checkpoint | None) -> bool:
    """Whether the job has got further with `before`; where the folder did not answer later on, nothing says so."""
    if checkpoint is None:
        return False
    return before.number == 1 if before.step is None else checkpoint.step > before.step


def found(attempt: Attempt, reports: Sequence[Report]) -> Report | Over | str | None:
    """What has become of `attempt` by the `reports` of those of its nodes that run it; None: it goes on.

    Returns
    -------
    Report
        A rank on its node has failed.
    Over
        The job is over.
    str
        Why all have to stop, although no rank has failed.
    """
    for one in reports:
        if one.state == "failed":
            return one
        if one.state == "stopped":
            return f"{one.node} has stopped its ranks"
        if attempt.step is not None and one.first_step is not None and one.first_step < attempt.step:
            why = f"{one.node} started over at step {one.first_step} although {attempt.checkpoint} is whole"
            return Over(LOST_JOB_CODE, f"{why}; the script must go on from it (docs/checkpoints.md)")
    if len(reports) == len(attempt.roster) and all(one.state == "done" for one in reports):
        return Over(0)
    return None


def given_up(attempt: Attempt, report: Report) -> Over:
    """The end of a job whose rank on the node of `report` has failed once more than it may."""
    code, newest = report.code or LOST_JOB_CODE, attempt.checkpoint
    further = "" if newest is None else f" without a newer checkpoint than {newest}"
    return Over(code, f"a rank on {report.node} ended with code {code}, after {attempt.in_vain} restarts{further}")
