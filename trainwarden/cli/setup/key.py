"""`trainwarden key`: keys by which words to the engine are signed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from trainwarden.cli.shared.options import Json
from trainwarden.cli.shared.output import Voice
from trainwarden.commands.keys import Signer, new_signer, rights_of
from trainwarden.errors import ConfigError


def key(
    word: Annotated[Literal["make", "show"], typer.Argument()],
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="For make: whose it is.")] = None,
    *,
    file: Annotated[Path, typer.Option(metavar="FILE", help="The key; keep it where nobody else reads it.")],
    may: Annotated[
        str, typer.Option(metavar="RIGHTS", help="approve, act, stop, latch, relay, with commas between.")
    ] = "approve",
    json: Json = None,
) -> int:
    """Make a key that signs words to the engine, or show the line by which the engine trusts it.

    Example: trainwarden key make ann --file ann.key --may approve,stop
    """
    voice = Voice(json)
    rights_of(may, "key: --may")
    if word == "make":
        if name is None:
            raise ConfigError("key make: whose? trainwarden key make NAME --file FILE")
        signer = new_signer(name)
        signer.write(file)
    else:
        signer = Signer.of_file(file, "key")
    line = signer.public_line(may)
    voice.say(line)
    voice.answer({"name": signer.name, "line": line})
    return 0
