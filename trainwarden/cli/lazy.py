"""A group of commands of which only the one that was called is imported."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


class Entry(NamedTuple):
    """Where a command lives, and what the list of all commands says of it."""

    place: str
    """``module:function``; the function returns the exit code."""
    line: str
    """The first line of the function's docstring: the list of commands is shown without importing any."""


class LazyGroup(TyperGroup):
    """Knows its commands by `table`; imports the file of one when it is invoked."""

    table: ClassVar[Mapping[str, Entry]]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        listed = {name: TyperCommand(name, help=entry.line) for name, entry in self.table.items()}
        self.commands.update(listed)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command itself in place of its line in the list."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed if name is None else load(name, self.table[name]), rest


def load(name: str, entry: Entry) -> Any:
    """The command of `entry`, its file imported; of the file's own ``CommandClass`` where it has one.

    Examples
    --------
    >>> load("doctor", Entry("trainwarden.cli.setup.doctor:doctor", "Is everything fine?")).name
    'doctor'
    """
    place, _, function = entry.place.partition(":")
    module = import_module(place)
    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    alone.command(name, cls=getattr(module, "CommandClass", None))(getattr(module, function))
    return get_command(alone)
