"""Versions that had too little to be judged by: where they stand in, what they weigh, and what puts them out."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from trainwarden.detectors.job.samples import Entity
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.errors import DetectorError
from trainwarden.trainer_offline.fit.floors import GateResult
from trainwarden.trainer_offline.registry import publish
from trainwarden.trainer_offline.registry.parts import ENSEMBLE, join, parts_of
from trainwarden.trainer_offline.registry.registry import Registry
from trainwarden.trainer_offline.registry.serving import RegistrySource, Wanted, assemble
from trainwarden.trainer_offline.registry.version import CHALLENGER, CHAMPION, PROVISIONAL, Version

MEMBERS = VoteConfig(members={"kmeans": 1.0, "pca": 2.0})


@pytest.fixture(scope="module")
def bundle() -> ModelBundle:
    values = np.random.default_rng(0).normal(size=(400, 2))
    series = {"": [(Entity("n"), np.arange(400.0), values)]}
    return ModelBundle.fit(series, {"": ("power", "clock")}, MEMBERS, 0)


class Places:
    """A registry of versions 1 of everything, with what `gate` says of each and the aliases as set."""

    uri = "memory"

    def __init__(self, bundle: ModelBundle, gates: dict[str, str], **aliases: dict[str, str]) -> None:
        self.parts = parts_of(bundle)
        self.gates = gates
        self.by: dict[str, dict[str, str]] = {name: {} for name in self.parts}
        for alias, places in aliases.items():
            for name, number in places.items():
                self.by[name][alias] = number

    def models(self) -> dict[str, Any]:
        return {name: SimpleNamespace(aliases=dict(found)) for name, found in self.by.items()}

    def version(self, name: str, number: str) -> Version:
        return Version(name, number, {"gate": self.gates.get(name, "passed")}, (), "", 0.0)

    def fetch(self, one: Version) -> ModelBundle:
        return self.parts[one.detector]


def asked(places: Places) -> Registry:
    return cast("Registry", places)


ALL = {"kmeans": "1", "pca": "1", ENSEMBLE: "1"}


@pytest.mark.parametrize(("alias", "aliases", "versions"), [
    (CHAMPION, {}, {}),
    (CHAMPION, {PROVISIONAL: ALL}, ALL),
    (CHAMPION, {PROVISIONAL: ALL, CHAMPION: {"pca": "2"}}, ALL | {"pca": "2"}),
    (CHAMPION, {CHALLENGER: ALL}, {}),
    (CHALLENGER, {PROVISIONAL: ALL}, {}),
    (CHALLENGER, {PROVISIONAL: ALL, CHALLENGER: {"pca": "3"}}, ALL | {"pca": "3"}),
    (CHALLENGER, {CHAMPION: ALL, PROVISIONAL: {"pca": "2"}, CHALLENGER: {"kmeans": "3"}}, ALL | {"kmeans": "3"}),
])  # fmt: skip
def test_a_provisional_version_stands_in_where_there_is_no_champion(
    bundle: ModelBundle, alias: str, aliases: dict[str, dict[str, str]], versions: dict[str, str]
) -> None:
    assert Wanted.under(asked(Places(bundle, {}, **aliases)), alias).versions == versions


def test_it_serves_with_less_weight_beside_those_that_have_passed(bundle: ModelBundle) -> None:
    places = Places(bundle, {"pca": PROVISIONAL}, champion={"kmeans": "1", ENSEMBLE: "1"}, provisional={"pca": "1"})
    versions, found = assemble(asked(places))
    assert versions == ALL
    assert found.provisional == {"pca"}
    assert found.votes[""].config.members == pytest.approx({"kmeans": 1.0, "pca": 0.3})


def test_where_all_are_provisional_the_mean_stays_what_it_was(bundle: ModelBundle) -> None:
    parts = parts_of(bundle)
    members = {name: part for name, part in parts.items() if name != ENSEMBLE}
    some, every = (join(parts[ENSEMBLE], members, ALL, who) for who in ((), tuple(ALL)))
    scaled = np.random.default_rng(1).normal(size=(3, 2, 40))
    np.testing.assert_allclose(every.votes[""].score(scaled).ensemble, some.votes[""].score(scaled).ensemble)


def test_a_provisional_version_that_somebody_made_champion_is_refused(bundle: ModelBundle) -> None:
    places = Places(bundle, {"pca": PROVISIONAL}, champion=ALL)
    with pytest.raises(DetectorError, match="version 1 of pca is refused: it is provisional, which is no champion"):
        assemble(asked(places))


def test_what_is_kept_on_disk_says_who_is_provisional(bundle: ModelBundle, tmp_path: Any) -> None:
    replace(bundle, provisional=frozenset({"pca"})).save(tmp_path / "some")
    bundle.save(tmp_path / "none")
    assert ModelBundle.load(tmp_path / "some").provisional == {"pca"}
    assert ModelBundle.load(tmp_path / "none").provisional == frozenset()
    assert "provisional" not in (tmp_path / "none" / "bundle.json").read_text(), "older services read it too"


def test_the_same_version_is_served_anew_once_it_is_champion(bundle: ModelBundle, tmp_path: Any) -> None:
    places = Places(bundle, dict.fromkeys(ALL, PROVISIONAL), provisional=ALL)
    source = RegistrySource(asked(places), tmp_path)
    first = source.poll()
    assert first is not None
    assert first.champion.provisional == {*ALL}
    assert source.poll() is None
    places.gates["pca"], places.by["pca"] = "passed", {CHAMPION: "1"}
    second = source.poll()
    assert second is not None
    assert second.champion.provisional == {"kmeans", ENSEMBLE}
    kept = RegistrySource(asked(places), tmp_path).last_good()
    assert kept is not None
    assert kept.champion.provisional == {"kmeans", ENSEMBLE}, "and after a restart without the registry"


class Told:
    """A registry that remembers what it is told of version 1, which serves, and version 2, which is new."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def version(self, name: str, number: str) -> Version:
        return Version(name, number, {"gate": PROVISIONAL}, (), "", 0.0)

    def settle(self, one: Version, passed: bool, reasons: str) -> None:
        del reasons
        self.said.append(f"{one.version} {'champion' if passed else 'rejected'}")

    def serve_provisionally(self, one: Version) -> None:
        self.said.append(f"{one.version} serves")


YES, UNSURE, NO = (
    GateResult(passed=passed, provisional=provisional, reasons=["r"], metrics={})
    for passed, provisional in ((True, False), (False, True), (False, False))
)


@pytest.mark.parametrize(("new", "beats", "serving", "again", "said"), [
    (UNSURE, None, None, None, ["2 serves"]),
    (NO, None, None, None, []),
    (UNSURE, True, "1", UNSURE, ["2 serves"]),
    (UNSURE, False, "1", UNSURE, []),
    (NO, False, "1", UNSURE, []),
    (UNSURE, True, "1", YES, ["1 champion"]),
    (NO, False, "1", YES, ["1 champion"]),
    (UNSURE, True, "1", NO, ["1 rejected", "2 serves"]),
    (UNSURE, False, "1", NO, ["1 rejected", "2 serves"]),
    (NO, False, "1", NO, ["1 rejected"]),
    (UNSURE, None, "1", None, ["2 serves"]),
])  # fmt: skip
def test_what_serves_provisionally_is_settled_once_there_is_enough(
    new: GateResult, beats: bool | None, serving: str | None, again: GateResult | None, said: list[str]
) -> None:
    told = Told()
    result = msgspec.structs.replace(new, beats=beats, stand_in=again)
    publish._stand_in(cast("Registry", told), result, told.version("pca", "2"), serving)
    assert told.said == said
