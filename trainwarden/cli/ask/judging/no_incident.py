"""What it means that no incident is known: that all is well, or that nobody could have found one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from trainwarden.cli.ask.judging.job_state import left_unjudged, unjudged, watched
from trainwarden.cli.shared.answers import EXIT_CODES, HEALTHY, NOT_JUDGED, Answer, Blind
from trainwarden.cli.shared.follow import JobView
from trainwarden.cli.shared.formatting import counted
from trainwarden.cli.shared.kept_runs import kept
from trainwarden.cli.shared.output import Voice

UNJUDGED: Final = Blind(
    "no detector has judged any job here", "start one: trainwarden up, or trainwarden watch -- COMMAND"
)
SHOWN: Final = 3


def say_none(views: Sequence[JobView], now_s: float, voice: Voice, *, alone: bool, **more: Any) -> int:
    """Say which of the two it is about the jobs of `views`, with `more` in JSON; the exit code.

    `alone`: they are of the runs kept here.
    """
    runs = kept() if alone else []
    blind = unjudged(views, now_s, runs)
    if not views:  # what ended at once has left no record but its own
        blind |= left_unjudged(runs[:SHOWN])
    judged = [view for view in views if view.job not in blind]
    for job, why in list(blind.items())[:SHOWN]:
        voice.say(f"NOT JUDGED: {job}: {why}")
    if len(blind) > SHOWN:
        voice.say(f"NOT JUDGED: {counted(len(blind) - SHOWN, 'more job')}; trainwarden runs")
    for view in judged[-SHOWN:]:
        voice.say(f"healthy, no incident: {view.job}: {watched(view)}")
    if len(judged) > SHOWN:
        voice.say(f"healthy, no incident: {counted(len(judged) - SHOWN, 'more job')}")
    if not judged and not blind:
        voice.say(f"NOT JUDGED: {UNJUDGED}")
    answer: Answer = HEALTHY if judged and not blind else NOT_JUDGED
    reasons = list(dict.fromkeys(blind.values())) or ([] if judged else [UNJUDGED])
    voice.answer({"answer": answer, **more, "not_judged": msgspec.to_builtins(reasons)})
    return EXIT_CODES[answer]
