"""A detector's state is all that it remembers, and takes back only what is its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest

from trainwarden.detectors.job.object_codec import ObjectCodec, WholeMemory
from trainwarden.errors import DetectorError
from trainwarden.settings import Config


class Limits(Config, frozen=True, kw_only=True):
    least: float = 1.0


class Who(NamedTuple):
    node: str
    rank: int | None


@dataclass(slots=True)
class Family:
    size: int
    values: Any = field(init=False)

    def __post_init__(self) -> None:
        self.values = np.zeros((0, self.size))


class Counter(WholeMemory):
    HELD = (Family, Who)
    NOT_KEPT = ("_found",)

    def __init__(self, config: Limits) -> None:
        self._config = config
        self._found = 0
        self.lines = np.zeros((3, 0))
        self.families: dict[str, Family] = {}
        self.who: list[Who] = []

    def _restored(self) -> None:
        self._found = len(self.who)


def full() -> Counter:
    counter = Counter(Limits())
    counter.lines = np.arange(6.0).reshape(3, 2)
    counter.families["gpu"] = Family(2)
    counter.families["gpu"].values = np.array([[1.0, np.nan]])
    counter.who = [Who("n", None)]
    return counter


def test_all_but_settings_and_what_follows_is_kept() -> None:
    again = Counter(Limits(least=2.0))
    again.restore(full().state())
    assert (again._config.least, again._found, again.who) == (2.0, 1, [Who("n", None)])
    assert again.lines.tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]
    assert repr(again.families["gpu"]) == repr(full().families["gpu"])
    assert again.state() == full().state()


@pytest.mark.parametrize("lines", [np.zeros((2, 2)), np.zeros(3), np.zeros((3, 2), dtype=np.int64), 7])
def test_an_array_of_another_shape_or_kind_is_refused(lines: Any) -> None:
    counter = full()
    counter.lines = lines
    with pytest.raises(DetectorError, match="lines has another type or shape"):
        Counter(Limits()).restore(counter.state())


def test_what_another_version_has_kept_is_refused() -> None:
    older = full()
    del older.who
    with pytest.raises(DetectorError, match="Counter has other attributes now"):
        Counter(Limits()).restore(older.state())
    kept = ObjectCodec(*Counter.HELD).dump(full())
    kept["families"] = ["dict", [("gpu", ["kind", "Family", {"size": 2}])]]
    with pytest.raises(DetectorError, match="Family has other fields now"):
        ObjectCodec(*Counter.HELD).load(Counter(Limits()), kept)


def test_only_named_classes_are_made() -> None:
    kept = ObjectCodec(*Counter.HELD).dump(full())
    with pytest.raises(DetectorError, match="damaged"):
        ObjectCodec(Who).load(Counter(Limits()), kept)
