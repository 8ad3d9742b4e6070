"""`trainwarden annotate`: what people say that a stretch of an archived or recorded job was."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from trainwarden.cli.learn import suggest as suggestions
from trainwarden.cli.learn.roles import propose_roles
from trainwarden.cli.shared.options import ArchiveFolder, ConfigFile, JobName, Json
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError
from trainwarden.settings import load

if TYPE_CHECKING:
    from trainwarden.trainer_offline.data.annotation_rows import Annotation


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """The words of a new annotation, as they were given."""

    job: str | None
    label: str | None
    from_time: str
    to_time: str
    kind: str | None
    suspects: str
    note: str


def annotate(
    word: Annotated[Literal["add", "list", "remove", "suggest", "confirm", "refuse", "roles"], typer.Argument()],
    number: Annotated[int | None, typer.Argument(metavar="[NUMBER]", help="For remove, confirm, refuse.")] = None,
    *,
    job: JobName = None,
    from_time: Annotated[str, typer.Option("--from", help="Unix seconds or ISO 8601; empty: beginning.")] = "",
    to_time: Annotated[str, typer.Option("--to", help="As --from; empty: end.")] = "",
    label: Annotated[str | None, typer.Option(help="normal, fault, initialisation or ignore.")] = None,
    kind: Annotated[str | None, typer.Option(help="Incident kind of a fault.")] = None,
    suspects: Annotated[str, typer.Option(help="'node=n17 device=gpu0; rank=3'.")] = "",
    note: Annotated[str, typer.Option(help="In your words.")] = "",
    folder: ArchiveFolder = None,
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="In place of the archive: a recorded folder or batch.")
    ] = None,
    write: Annotated[bool, typer.Option("--write", help="For suggest and roles: keep what is found.")] = False,
    discords: Annotated[
        bool, typer.Option("--discords/--no-discords", help="For suggest: stretches unlike the rest, too.")
    ] = True,
    config: ConfigFile = None,
    json: Json = None,
) -> int:
    """Say what a stretch of a job was: add, list, remove; suggest what to say, confirm, refuse; propose roles.

    Example: trainwarden annotate add --job llama-70b --label fault --kind hang --from 100 --to 200
    """
    voice = Voice(json)
    settings = load(config)
    if folder is not None and data is not None:
        raise ConfigError("annotate: give --folder or --data, not both")
    root = data or folder or Path(settings.archive.folder)
    said = Said(job=job, label=label, from_time=from_time, to_time=to_time, kind=kind, suspects=suspects, note=note)
    match word:
        case "add":
            _add(root, said, voice)
        case "suggest":
            suggestions.suggest(root, job, write, voice, discords=discords)
        case "roles":
            propose_roles(root, job, write, voice)
        case "confirm":
            suggestions.decide(root, number, word, _confirmed(said), voice)
        case "refuse":
            suggestions.decide(root, number, word, {"label": "refused"}, voice)
        case "remove":
            _remove(root, number, voice)
        case "list":
            _list(root, job, voice)
    return 0


def _add(root: Path, said: Said, voice: Voice) -> None:
    from trainwarden.trainer_offline.archive.layout import TOPIC_FOLDERS, job_folder
    from trainwarden.trainer_offline.data import annotations

    if said.job is None or said.label is None:
        raise ConfigError("annotate add: give --job and --label")
    try:
        annotation = annotations.Annotation(
            job=said.job,
            label=said.label,  # type: ignore[arg-type]  # `add` checks it and names what is allowed
            from_s=annotations.parse_time(said.from_time),
            to_s=annotations.parse_time(said.to_time),
            kind=said.kind,
            suspects=annotations.parse_suspects(said.suspects),
            note=said.note,
        )
    except ValueError as error:
        raise ConfigError(f"annotate add: {error}") from error
    place = annotations.add(root, annotation)
    voice.say(f"annotation {place} added")
    if not any((root / topic / job_folder(said.job)).is_dir() for topic in TOPIC_FOLDERS):
        voice.say(f"the archive '{root}' holds nothing of job '{said.job}' so far")
    voice.answer({"number": place, "annotation": msgspec.to_builtins(annotation)})


def _confirmed(said: Said) -> dict[str, object]:
    """What a person says of a suggestion; the rest stays as it was suggested."""
    from trainwarden.trainer_offline.data import annotations

    if said.label in (None, "suggested", "refused"):
        raise ConfigError("annotate confirm: give --label normal, fault, initialisation or ignore")
    try:
        words = {
            "from_s": annotations.parse_time(said.from_time),
            "to_s": annotations.parse_time(said.to_time),
            "suspects": annotations.parse_suspects(said.suspects),
            "note": said.note,
        }
    except ValueError as error:
        raise ConfigError(f"annotate confirm: {error}") from error
    return {"label": said.label, "kind": said.kind} | {
        name: word for name, word in words.items() if word not in (None, (), "")
    }


def _remove(root: Path, number: int | None, voice: Voice) -> None:
    from trainwarden.trainer_offline.data import annotations

    if number is None:
        raise ConfigError("annotate remove: give the number that 'annotate list' shows")
    removed = annotations.remove(root, number)
    voice.say(f"annotation {number} removed: {_shown(removed)}")
    voice.answer({"number": number, "annotation": msgspec.to_builtins(removed)})


def _list(root: Path, job: str | None, voice: Voice) -> None:
    from trainwarden.trainer_offline.data import annotations

    found: Sequence[Annotation] = annotations.read(root)
    listed = [(number, one) for number, one in enumerate(found, 1) if job is None or one.job == job]
    for number, one in listed:
        voice.say(f"{number:>4}  {_shown(one)}")
    if not listed:
        voice.say("no annotations")
    voice.answer({"annotations": [{"number": number, **msgspec.to_builtins(one)} for number, one in listed]})


def _shown(one: Annotation) -> str:
    span = f"{'' if one.from_s is None else one.from_s}..{'' if one.to_s is None else one.to_s}"
    words = [one.job, span, one.label, one.kind or "", "; ".join(str(suspect) for suspect in one.suspects), one.note]
    return "  ".join(word for word in words if word)
