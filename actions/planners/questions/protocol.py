"""What a planner is on the command line: a typed question, a typed answer, an example and one line for people."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Protocol, TypeVar

import msgspec

from trainwarden.errors import ConfigError

Question = TypeVar("Question", bound=msgspec.Struct)
Asked_contra = TypeVar("Asked_contra", bound=msgspec.Struct, contravariant=True)
Answer = TypeVar("Answer", bound=msgspec.Struct)

# Up to a century, so that sums and products of what is asked stay finite.
Seconds = Annotated[float, msgspec.Meta(ge=0.0, le=3.2e9)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class Planner(Protocol[Asked_contra, Answer]):
    """A pure function from a question to an answer.

    Attributes
    ----------
    question : type
        A frozen Struct that forbids unknown keys, with bounds in its annotations.
    example : str
        A question as JSON, which ``trainwarden plan NAME --example`` prints.
    """

    question: ClassVar[type[Any]]
    example: ClassVar[str]

    def answer(self, question: Asked_contra) -> Answer:
        """The answer; the same for the same question.

        Raises
        ------
        DataError
            If there is none; one sentence says why.
        """
        ...

    def line(self, answer: Answer) -> str:
        """`answer` for people, in a few words a line."""
        ...


def read(planner: str, kind: type[Question], raw: bytes) -> Question:
    """The question that `raw` asks of `planner`.

    Raises
    ------
    ConfigError
        If it is none; one sentence names the key.

    Examples
    --------
    >>> class Total(msgspec.Struct, forbid_unknown_fields=True):
    ...     total: int
    >>> read("microbatches", Total, b'{"total": 12}')
    Total(total=12)
    >>> read("microbatches", Total, b'{"total": 12, "totl": 3}')
    Traceback (most recent call last):
    trainwarden.errors.ConfigError: plan microbatches: Object contains unknown field `totl`
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        what, _, where = str(error).replace("`key` in ", "").partition(" - at `$")
        key = where.removesuffix("`").removeprefix(".")
        place = f"{key}: " if key else ""
        raise ConfigError(f"plan {planner}: {place}{' '.join(what.split())}") from error
