"""`trainwarden annotate suggest`, `confirm`, `refuse`: changes of level found for a person to say what they were."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from trainwarden.cli.learn.each_job import each_job
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError

if TYPE_CHECKING:
    from trainer_offline.data.annotation_rows import Annotation
    from trainer_offline.data.prepare import Source
    from trainer_offline.suggest.suggestions import Suggestion

MOST: Final = 20  # of a job: who has more to confirm than that looks at something else first


def suggest(data: Path, job: str | None, write: bool, voice: Voice) -> None:
    """Say where levels changed, and with `write` keep it as annotations that count for nothing until confirmed.

    Raises
    ------
    ConfigError
        If what it needs is not installed.
    DataError
        If there is no such job, or none can be read.
    """
    each_job("suggest", data, job, lambda source: _of_job(data, source, write, voice), voice)


def _of_job(data: Path, source: Source, write: bool, voice: Voice) -> dict[str, object]:
    from trainer_offline.suggest.recording import levels_of
    from trainer_offline.suggest.series import series_of
    from trainer_offline.suggest.suggestions import suggestions

    with levels_of(source) as job:
        found = suggestions(source.called, series_of(job))
        share = 1.0 if job.metrics is None else job.metrics.share
    if share < 1.0:
        voice.say(f"{source.called}: {share:.2%} of its metrics were read, in evenly spread stretches")
    new, known = _untold(found, _said(data, source))
    shown = sorted(sorted(new, key=lambda one: -len(one.shifts))[:MOST], key=lambda one: one.from_s)
    numbers = _kept(data, source, shown) if write else {}
    for one in shown:
        number = numbers.get(one.from_s)
        voice.say(f"{'' if number is None else f'{number:>4}  '}{_line(one)}")
    left = f", {len(new) - len(shown)} more are not shown" if len(new) > len(shown) else ""
    voice.say(f"{source.called}: {len(shown)} changes to look at, {known} known{left}")
    told = [{"number": numbers.get(one.from_s), **msgspec.to_builtins(one)} for one in shown]
    return {"job": source.called, "suggestions": told, "known": known, "more": len(new) - len(shown), "share": share}


def _said(data: Path, source: Source) -> list[Annotation]:
    from trainer_offline.data import annotations

    return [one for place in dict.fromkeys((source.folder, data)) for one in annotations.read(place)]


def _untold(found: Sequence[Suggestion], said: Sequence[Annotation]) -> tuple[list[Suggestion], int]:
    new = [one for one in found if not one.is_told(said)]
    return new, len(found) - len(new)


def _kept(data: Path, source: Source, shown: Sequence[Suggestion]) -> dict[float | None, int]:
    """Numbers in `data`'s annotations by beginning; what somebody else has written meanwhile is not written again."""
    from trainer_offline.data import annotations

    kept = annotations.append(data, lambda known: [one.annotation() for one in _untold(shown, known)[0]])
    return {one.from_s: number for number, one in kept.items()}


def _line(one: Suggestion) -> str:
    from datetime import UTC, datetime

    dated = one.from_s > 1e8  # 1973: a clock, not a count from the job's beginning
    when = datetime.fromtimestamp(one.from_s, UTC).strftime("%Y-%m-%d %H:%M:%S") if dated else f"{one.from_s:.1f} s"
    return f"{one.job}  {when}  {one.note}"


def decide(root: Path, number: int | None, word: str, by: dict[str, object], voice: Voice) -> None:
    """Confirm a suggestion by a label and what else is known of it, or refuse it; it is not suggested again.

    Raises
    ------
    ConfigError
        If there is no such suggestion, or the words do not make an annotation.
    """
    from trainer_offline.data import annotations

    def decided(one: Annotation) -> Annotation:
        if one.label not in ("suggested", "refused"):
            raise ConfigError(f"annotate {word}: annotation {number} is no suggestion, it says {one.label}")
        return msgspec.structs.replace(one, **by)

    if number is None:
        raise ConfigError(f"annotate {word}: give the number that 'annotate list' shows")
    annotations.replace(root, number, decided)
    now = annotations.read(root)[number - 1]
    voice.say(f"annotation {number}: {now.label}{f' ({now.kind})' if now.kind else ''}, {now.note}")
    voice.answer({"number": number, "annotation": msgspec.to_builtins(now)})
