"""What one job comes to for whoever asks now: running or ended, and which of the three answers."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Iterator
from itertools import pairwise
from typing import Final

import msgspec

from trainwarden.cli.shared.answers import HEALTHY, INCIDENT, NOT_JUDGED, Answer, Blind
from trainwarden.cli.shared.follow import JobView
from trainwarden.cli.shared.formatting import counted
from trainwarden.cli.shared.kept_runs import KeptRun, killed_jobs
from trainwarden.records import EventRecord, IncidentRecord

GONE_S: Final = 5.0  # all ranks have ended for so long: a launcher that starts them again does so sooner
# A live detector gives a verdict a second, or as seldom as it is set to; Kafka shares its jobs out anew within seconds.
UNJUDGED_S: Final = 20.0
MISSED: Final = 3.0  # verdicts in a row
NO_STEP: Final = "torch must train in the job's own Python, or the script marks its steps (docs/training_loops.md)"
UNSEEN_END: Final = Blind("the command that watched it was killed, so how it ended is not known", "run it again")
_COLUMNS: Final = ("job", "state", "answer", "ranks", "step", "s/iteration", "incidents")


class JobState(msgspec.Struct, frozen=True):
    """One job now.

    `incidents` are those that are open, or were until the job's end.
    """

    ended: bool
    words: str
    answer: Answer
    incidents: list[IncidentRecord]
    blind: Blind | None = None


def state_of(view: JobView, now_s: float, *, killed: bool = False, left: Blind | None = None) -> JobState:
    """The state of the job of `view`.

    Parameters
    ----------
    killed : bool
        The command that watched it is gone without a word.
    left : Blind, optional
        Why the command that watched it has not judged it to its end, as its kept run says.
    """
    gone = all_ranks_gone(view, now_s)
    ended = view.ended or killed or gone
    begun_s = max((one.time_s for one in view.events if one.kind == "process_start"), default=0.0)
    stand = (one for one in view.incidents.values() if "closed" in one.evidence and (one.closed_at_s or 0.0) >= begun_s)
    stood = {one.id for one in stand}
    incidents = [one for one in view.incidents.values() if one.state != "closed" or one.id in stood]
    failed = bool(view.exit_code) and not view.interrupted
    words = "running" if view.ranks() else "no ranks yet"  # services may wait for their job
    if view.ended:
        words = (
            "interrupted" if view.interrupted else "ended" if view.exit_code is None else f"ended ({view.exit_code})"
        )
    elif ended:
        words = "ended (ranks gone)" if gone else "ended (killed)"
    if incidents or failed:
        return JobState(ended, words, INCIDENT, incidents)
    unseen = UNSEEN_END if killed and not view.ended and not gone else left
    blind = unseen or _blind(view, now_s, ended=ended)
    return JobState(ended, words, HEALTHY if blind is None else NOT_JUDGED, incidents, blind)


def all_ranks_gone(view: JobView, now_s: float) -> bool:
    """Whether every rank that was seen has ended, and none has come since."""
    newest: dict[int, EventRecord] = {}
    for event in view.events:
        if event.rank is not None and event.kind in {"process_start", "process_exit"}:
            newest[event.rank] = event
    ranks = view.ranks()
    over = ranks and all(rank in newest and newest[rank].kind == "process_exit" for rank in ranks)
    return bool(over) and now_s - max(one.time_s for one in newest.values()) >= GONE_S


def watched(view: JobView) -> str:
    """What the detectors have had of the job of `view`, for how long, and who they are."""
    votes = {name for one in view.verdicts for name, vote in one.votes.items() if vote.opinion != "abstain"}
    seconds = view.verdicts[-1].time_s - view.verdicts[0].time_s if view.verdicts else 0.0
    parts = (
        f"{counted(view.steps_done(), 'step')} of {counted(len(view.ranks()), 'rank')}",
        counted(len(view.metric_names), "metric"),
    )
    return f"{', '.join(parts)} judged for {seconds:,.0f} s by {', '.join(sorted(votes))}"


def unjudged(views: Iterable[JobView], now_s: float, runs: Collection[KeptRun] = ()) -> dict[str, Blind]:
    """The jobs about which the silence of the detectors means nothing, and why; `runs` are those kept here."""
    killed, left = killed_jobs(runs), left_unjudged(runs)
    states = {
        view.job: state_of(view, now_s, killed=view.job in killed, left=left.get(view.job)) for view in views
    }  # fmt: skip
    return {job: state.blind for job, state in states.items() if state.blind is not None}


def left_unjudged(runs: Iterable[KeptRun]) -> dict[str, Blind]:
    """Why `runs`, the newest first, were not judged, by job, as they have written down themselves."""
    found: dict[str, Blind] = {}
    seen: set[str] = set()
    for run in runs:
        reasons = (run.about.result or {}).get("not_judged") or ()
        if reasons and run.about.job not in seen:
            found[run.about.job] = msgspec.convert(reasons[0], Blind)
        seen.add(run.about.job)
    return found


def table(jobs: Iterable[tuple[JobView, JobState]]) -> Iterator[str]:
    """One line a job, in columns."""
    rows = [_COLUMNS, *(_row(view, state) for view, state in jobs)]
    if len(rows) == 1:
        return
    widths = [max(len(row[place]) for row in rows) for place in range(len(_COLUMNS))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


def _row(view: JobView, state: JobState) -> tuple[str, ...]:
    step, median = view.last_step(), view.iteration_s()
    return (
        view.job, state.words, state.answer, str(len(view.ranks())), "-" if step is None else str(step),
        "-" if median is None else f"{median:.3f}", str(len(state.incidents)),
    )  # fmt: skip


def _blind(view: JobView, now_s: float, *, ended: bool) -> Blind | None:
    """Why the detectors' silence means nothing; None if it means that all is well."""
    if not any(vote.opinion != "abstain" for one in view.verdicts for vote in one.votes.values()):
        return Blind("no detector has judged this job", "start one: trainwarden up, or trainwarden detector")
    newest_s = view.verdicts[-1].time_s
    times_s = [one.time_s for one in list(view.verdicts)[-10:]]
    usual_s = statistics.median(b - a for a, b in pairwise(times_s)) if len(times_s) > 1 else 0.0
    if not ended and now_s - newest_s > max(UNJUDGED_S, MISSED * usual_s):
        return Blind(f"the detector has not judged it for {now_s - newest_s:,.0f} s", "see trainwarden doctor")
    if not view.steps_done():
        if untrained := view.untrained():
            return Blind("; ".join(("no training step was seen", *untrained)), NO_STEP)
        if not view.ranks() and not ended:
            return Blind(
                "no rank was seen", "start the job: trainwarden up says how one joins (docs/training_loops.md)"
            )
        return Blind("no training step was seen", NO_STEP)
    return None
