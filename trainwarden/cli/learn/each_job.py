"""What `annotate suggest` and `annotate roles` share: one job after the other, and one that cannot be read is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Final

from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError, DataError

if TYPE_CHECKING:
    from trainwarden.trainer_offline.data.prepare import Source

NEEDED: Final = {
    "suggest": "trainwarden.trainer_offline.suggest.suggestions",
    "roles": "trainwarden.trainer_offline.suggest.roles",
}


def each_job(
    word: str,
    data: Path,
    job: str | None,
    of_job: Callable[[Source], Mapping[str, object]],
    voice: Voice,
    *,
    needed: Sequence[str] = (),
) -> None:
    """Answer `of_job` of each job of `data`, or of the one called `job`, and why others were left out.

    `needed` are modules that it needs besides those of `word`.

    Raises
    ------
    ConfigError
        If what `annotate` `word` needs is not installed.
    DataError
        If there is no such job, or none can be read.
    """
    try:
        from trainwarden.trainer_offline.suggest.recording import jobs_of

        for name in (NEEDED[word], *needed):
            import_module(name)
    except ModuleNotFoundError as error:
        missing = f"annotate {word}: {error.name} is not installed"
        raise ConfigError(f"{missing}; pip install 'trainwarden[train]'") from error

    answers, failed = list[Mapping[str, object]](), list[dict[str, str]]()
    jobs = jobs_of(data, job)
    for source in jobs:
        try:
            answers.append(of_job(source))
        except DataError as error:
            failed.append({"job": source.called, "why": str(error)})
            voice.say(f"{source.called} is left out: {error}")
    if len(failed) == len(jobs):
        raise DataError(f"'{data}': no job could be read")
    voice.answer({"jobs": answers, "failed": failed})
