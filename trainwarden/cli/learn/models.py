"""`trainwarden models`: which versions there are, who serves, and who served before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from trainwarden.cli.learn.table import table_of_versions
from trainwarden.cli.shared.extras import need
from trainwarden.cli.shared.options import Json, Registry
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError

if TYPE_CHECKING:
    from trainwarden.trainer_offline.registry.registry import Registry as Versions
    from trainwarden.trainer_offline.registry.version import Version

Word = Literal["list", "promote", "rollback"]


def models(
    word: Annotated[Word, typer.Argument()] = "list",
    detector: Annotated[str | None, typer.Argument(metavar="[DETECTOR]", help="For list, one detector only.")] = None,
    version: Annotated[str | None, typer.Argument(metavar="[VERSION]", help="For promote.")] = None,
    *,
    registry: Registry = None,
    json: Json = None,
) -> int:
    """List versions of models; make one champion; go back to the champion before.

    Example: trainwarden models promote lof 3
    """
    voice = Voice(json)
    need("mlflow", "models")
    from trainwarden.trainer_offline.registry.registry import Registry as Versions

    place = Versions.at(registry)
    answers = [one.answer() for one in _asked_for(place, word, detector, version)]
    voice.answer({"registry": place.uri, "models": answers})
    table_of_versions(voice, answers)
    return 0


def _asked_for(place: Versions, word: Word, detector: str | None, version: str | None) -> list[Version]:
    """The versions that were listed, or the one that serves now.

    Raises
    ------
    ConfigError
        On wrong use: no such version, one that was rejected, no champion before.
    DataError
        If the registry cannot be reached.
    """
    if word == "list":
        if version is not None:
            raise ConfigError("models list takes at most a DETECTOR")
        return place.versions(detector)
    if detector is None:
        raise ConfigError(f"models {word} needs a DETECTOR" + (" and a VERSION" if word == "promote" else ""))
    if word == "promote":
        if version is None:
            raise ConfigError("models promote needs a DETECTOR and a VERSION")
        return [place.promote(detector, version)]
    if version is not None:
        raise ConfigError("models rollback takes a DETECTOR alone: it goes back to the champion before")
    return [place.rollback(detector)]
