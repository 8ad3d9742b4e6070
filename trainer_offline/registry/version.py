"""One version of a detector's models as the registry describes it, and the words that it is described with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

PREFIX: Final = "trainwarden-"
CHAMPION: Final = "champion"
CHALLENGER: Final = "challenger"
PROVISIONAL: Final = "provisional"  # alias, and what the tag `gate` says
SINCE: Final = "champion_since_s"
ROLLED_BACK: Final = "rolled_back_s"
RETRAIN: Final = "retrain"
RUNNING: Final = "running"
CARD: Final = "data-card.json"
CUT: Final = "..."  # stands at the end of a tag that would not hold everything
MAX_TAG: Final = 4_900  # MLflow keeps tags of up to 5,000 characters


def registered_name(detector: str) -> str:
    """What a detector's models are called in MLflow.

    Examples
    --------
    >>> registered_name("neighbor_profile")
    'trainwarden-neighbor-profile'
    """
    return PREFIX + detector.replace("_", "-")


def detector_of(registered: str) -> str:
    """The detector whose models are called `registered`.

    Examples
    --------
    >>> detector_of("trainwarden-neighbor-profile")
    'neighbor_profile'
    """
    return registered.removeprefix(PREFIX).replace("-", "_")


@dataclass(frozen=True, slots=True)
class Version:
    """One version of one detector's models as the registry describes it."""

    detector: str
    version: str
    tags: Mapping[str, str]
    aliases: tuple[str, ...]
    run_id: str
    created_s: float

    @property
    def passed(self) -> bool:
        return self.tags.get("gate") == "passed"

    @property
    def provisional(self) -> bool:
        """Whether there was too little to judge it by: it may serve with a smaller weight, but not as champion."""
        return self.tags.get("gate") == PROVISIONAL

    def answer(self) -> dict[str, Any]:
        """As the command line shows it."""
        gate = {"passed": self.passed, "provisional": self.provisional,
                "reasons": _json(self.tags.get("gate_reasons"), []),
                "metrics": _json(self.tags.get("gate_metrics"), {})}  # fmt: skip
        return {
            "detector": self.detector, "version": self.version, "aliases": list(self.aliases), "gate": gate,
            "run_id": self.run_id, "created_at_s": self.created_s, "data_hash": self.tags.get("data_hash"),
            "weights": _json(self.tags.get("weights"), {}),
        }  # fmt: skip


def version_of(detector: str, model: Any, one: Any) -> Version:
    """MLflow's `one` of its registered `model`."""
    number = str(one.version)
    aliases = tuple(sorted(alias for alias, at in model.aliases.items() if str(at) == number))
    created_s = float(one.creation_timestamp) / 1000.0
    return Version(detector, number, dict(one.tags), aliases, str(one.run_id or ""), created_s)


def listed(tags: Mapping[str, str], name: str) -> set[str] | None:
    """The words of a tag that is a list; None where some did not fit into it.

    Examples
    --------
    >>> sorted(listed({"jobs": "a, b"}, "jobs")), listed({"jobs": "a, ..."}, "jobs"), listed({}, "jobs")
    (['a', 'b'], None, set())
    """
    text = tags.get(name, "")
    words = {one for one in text.split(", ") if one}
    # Before it was marked, a tag was cut at its full length in the middle of a word.
    return None if CUT in words or len(text) >= MAX_TAG else words


def tag_of(words: Sequence[str]) -> str:
    """A tag with as many `words` as it holds, whole ones; the mark `CUT` instead of others.

    Examples
    --------
    >>> tag_of(["a", "b"]), tag_of(["a" * 4_880, "b" * 30])[-6:]
    ('a, b', 'a, ...')
    """
    text = ", ".join(words)
    if len(text) < MAX_TAG:
        return text
    kept = text[: MAX_TAG - len(CUT) - 2].rpartition(", ")[0]
    return f"{kept}, {CUT}" if kept else CUT


def _json(text: str | None, default: Any) -> Any:
    try:
        return default if text is None else msgspec.json.decode(text)
    except msgspec.DecodeError:
        return default
