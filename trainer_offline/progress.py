"""Progress of a training run: stages in a fixed order, each counted."""

from __future__ import annotations

from typing import Final, Literal, Protocol

Stage = Literal["reading", "preparing", "fitting", "judging", "registering"]
STAGES: Final[tuple[Stage, ...]] = ("reading", "preparing", "fitting", "judging", "registering")


class Tell(Protocol):
    """Called with what has happened or begun; ``of`` = 0 where it is a remark that counts nothing."""

    def __call__(self, text: str, done: int = 0, of: int = 0, /) -> None: ...


class TellStage(Protocol):
    """The same for a whole run: with the stage that it is in."""

    def __call__(self, stage: Stage, text: str, done: int = 0, of: int = 0, /) -> None: ...


def silent(text: str, done: int = 0, of: int = 0, /) -> None:
    """Nobody listens."""


def silent_stage(stage: Stage, text: str, done: int = 0, of: int = 0, /) -> None:
    """Nobody listens."""
