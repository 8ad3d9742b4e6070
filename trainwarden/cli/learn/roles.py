"""`trainwarden annotate roles`: which ranks of recorded jobs are alike, where nobody has said how they are laid out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwarden.cli.learn.each_job import each_job
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import DataError

if TYPE_CHECKING:
    from trainwarden.trainer_offline.data.prepare import Source


def propose_roles(data: Path, job: str | None, write: bool, voice: Voice) -> None:
    """Say which ranks are alike, and with `write` keep it in each job's ``job.toml``, where detection reads it.

    Raises
    ------
    ConfigError
        If what it needs is not installed.
    DataError
        If there is no such job, or none can be read or written to.
    """
    each_job("roles", data, job, lambda source: _of_job(source, write, voice), voice)


def _of_job(source: Source, write: bool, voice: Voice) -> dict[str, Any]:
    from trainwarden.detectors.job.samples import name_of
    from trainwarden.trainer_offline.suggest.entity_series import entity_series
    from trainwarden.trainer_offline.suggest.recording import levels_of
    from trainwarden.trainer_offline.suggest.roles import propose
    from trainwarden.trainer_offline.suggest.roles_file import ranks_by_role, write_roles

    with levels_of(source) as job:
        series = entity_series(job)
    if series is None:
        raise DataError("nothing is known of several ranks or devices")
    found = propose(series)
    voice.say(
        f"{source.called}: {found.count} role{'s' if found.count > 1 else ''} of {len(series.entities)}, {found.why}"
    )
    members = [series.entities[place] for place in range(len(found.labels))]
    told: list[dict[str, Any]] = []
    for role in range(found.count):
        own = [one for one, label in zip(members, found.labels.tolist(), strict=True) if label == role]
        names = [name_of(one.node, one.device, one.rank) for one in own]
        levels = series.levels(found.labels == role)
        told.append({"role": f"role{role}", "entities": names, "levels": levels})
        shown = ", ".join(f"{name} {level:.4g}" for name, level in levels.items())
        voice.say(
            f"  role{role}: {', '.join(names[:8])}{f' and {len(names) - 8} more' if len(names) > 8 else ''} ({shown})"
        )
    answer = {
        "job": source.called,
        "count": found.count,
        "silhouette": found.silhouette,
        "why": found.why,
        "roles": told,
    }
    if write and found.count > 1:
        if source.archived:
            raise DataError("an archive has no job.toml to write roles to; export the job first")
        path = write_roles(source.folder, ranks_by_role(members, found.labels))
        voice.say(f"  written to {path}")
    return answer
