"""`trainwarden annotate suggest`, `confirm`, `refuse`: what is found for a person to say what it was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from trainwarden.cli.learn.each_job import each_job
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError

if TYPE_CHECKING:
    from trainwarden.trainer_offline.data.annotation_rows import Annotation
    from trainwarden.trainer_offline.data.prepare import Source
    from trainwarden.trainer_offline.suggest.series import Series
    from trainwarden.trainer_offline.suggest.suggestions import Suggestion

MOST: Final = 20  # of a job: who has more to confirm than that looks at something else first
MOST_STRETCHES: Final = 10  # unlike the rest of a job


def suggest(data: Path, job: str | None, write: bool, voice: Voice, *, discords: bool = True) -> None:
    """Say where levels changed, and with `write` keep it as annotations that count for nothing until confirmed.

    With `discords` also which stretches are unlike all others of the recording.

    Raises
    ------
    ConfigError
        If what it needs is not installed.
    DataError
        If there is no such job, or none can be read.
    """
    if discords:
        voice.say("stretches unlike the rest are looked for: compiling that takes about 40 s of a processor")
    needed = ("trainwarden.trainer_offline.suggest.unlike",) if discords else ()
    each_job(
        "suggest", data, job, lambda source: _of_job(data, source, write, voice, discords=discords), voice,
        needed=needed,
    )  # fmt: skip


def _of_job(data: Path, source: Source, write: bool, voice: Voice, *, discords: bool) -> dict[str, object]:
    from trainwarden.trainer_offline.suggest.recording import levels_of
    from trainwarden.trainer_offline.suggest.series import series_of
    from trainwarden.trainer_offline.suggest.suggestions import suggestions

    with levels_of(source) as job:
        series = list(series_of(job))
        changes = suggestions(source.called, iter(series))
        share = 1.0 if job.metrics is None else job.metrics.share
    changes = sorted(changes, key=lambda one: -len(one.shifts))
    stretches = _unlike(source, series, changes[:MOST]) if discords else []
    if share < 1.0:
        voice.say(f"{source.called}: {share:.2%} of its metrics were read, in evenly spread stretches")
    said = _said(data, source)
    new, known = _untold([*changes, *stretches], said)
    moments = [one for one in new if one.unlike is None][:MOST]
    unlike = [one for one in new if one.unlike is not None][:MOST_STRETCHES]
    shown = sorted([*moments, *unlike], key=lambda one: one.from_s)
    numbers = _kept(data, source, shown) if write else {}
    for one in shown:
        number = numbers.get(one.from_s)
        voice.say(f"{'' if number is None else f'{number:>4}  '}{_line(one)}")
    left = f", {len(new) - len(shown)} more are not shown" if len(new) > len(shown) else ""
    also = f" and {len(unlike)} stretches unlike the rest" if discords else ""
    voice.say(f"{source.called}: {len(moments)} changes{also} to look at, {known} known{left}")
    told = [{"number": numbers.get(one.from_s), **msgspec.to_builtins(one)} for one in shown]
    return {"job": source.called, "suggestions": told, "known": known, "more": len(new) - len(shown), "share": share}


def _unlike(source: Source, series: Sequence[Series], changes: Sequence[Suggestion]) -> list[Suggestion]:
    from trainwarden.trainer_offline.suggest.unlike import unlike_suggestions

    return unlike_suggestions(source.called, series, changes)


def _said(data: Path, source: Source) -> list[Annotation]:
    from trainwarden.trainer_offline.data import annotations

    return [one for place in dict.fromkeys((source.folder, data)) for one in annotations.read(place)]


def _untold(found: Sequence[Suggestion], said: Sequence[Annotation]) -> tuple[list[Suggestion], int]:
    new = [one for one in found if not one.is_told(said)]
    return new, len(found) - len(new)


def _kept(data: Path, source: Source, shown: Sequence[Suggestion]) -> dict[float | None, int]:
    """Numbers in `data`'s annotations by beginning; what somebody else has written meanwhile is not written again."""
    from trainwarden.trainer_offline.data import annotations

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
    from trainwarden.trainer_offline.data import annotations

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
