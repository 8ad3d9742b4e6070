"""What people and accidents do to versions on a real MLflow server: each is one clear sentence, and serving goes on."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.servers.kafka import ServerMissing
from tests.servers.mlflow import DATABASE, MlflowServer
from trainwarden.detectors.job.samples import Entity
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.trainer_offline.data.card import DataCard
from trainwarden.trainer_offline.fit.floors import GateResult
from trainwarden.trainer_offline.registry.publish import TrainedRun, register
from trainwarden.trainer_offline.registry.registry import Registry
from trainwarden.trainer_offline.registry.serving import RegistrySource
from trainwarden.trainer_offline.registry.version import CHALLENGER, CHAMPION, Version, registered_name
from trainwarden.trainer_offline.service.train import champion_on

pytestmark = [pytest.mark.system, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]

JOBS = [f"a-rather-long-name-of-a-training-job-{one:05}" for one in range(200)]
REASONS = [f"compared with the champion without {name}, which it was trained on" for name in JOBS]


def run(seed: int) -> TrainedRun:
    """A run of one model on many jobs: more than a tag holds."""
    normal = np.random.default_rng(seed).normal(size=(300, 2))
    series = {"gpu": [(Entity("n", "GPU-0"), np.arange(300.0), normal)]}
    bundle = ModelBundle.fit(series, {"gpu": ("power", "clock")}, VoteConfig(members={"pca": 1.0}), seed)
    card = DataCard(
        hash=f"{seed}" * 64, jobs=200, rows=300, hours=1.0, train_jobs=JOBS, test_jobs=["test"], split="by job",
        train_rows=300, test_rows=300, train_digests=[f"{one:012}" for one in range(200)],
        train_until_s=dict.fromkeys(JOBS, 1_000.0 + seed),
    )  # fmt: skip
    result = GateResult(passed=True, reasons=REASONS, metrics={"recall": 1.0})
    return TrainedRun(bundle, {"pca": result, "ensemble": result}, {}, card, {"seed": seed})


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory, require_servers: Callable[[str], Any], empty_registry: Path
) -> Iterator[MlflowServer]:
    """A server with two runs of one model; and a copy of everything, for each test to begin with."""
    place = tmp_path_factory.mktemp("models")
    try:
        one = MlflowServer(place / "server", empty_registry)
    except ServerMissing as missing:
        require_servers(str(missing))
    one.start()
    try:
        for seed in (0, 1):
            register(Registry.at(one.uri), run(seed))
        (place / "copy").mkdir()
        copy_database(one.folder / DATABASE, place / "copy" / DATABASE)
        shutil.copytree(one.folder / "artifacts", place / "copy" / "artifacts")
        yield one
    finally:
        one.kill()


def copy_database(source: Path, to: Path) -> None:
    """Everything in one transaction of `to`, so that a server may look at it meanwhile."""
    with closing(sqlite3.connect(source)) as read, closing(sqlite3.connect(to, timeout=30.0)) as written:
        read.backup(written)


@pytest.fixture
def server(trained: MlflowServer) -> MlflowServer:
    copy = trained.folder.parent / "copy"
    shutil.rmtree(trained.folder / "artifacts")
    shutil.copytree(copy / "artifacts", trained.folder / "artifacts")
    copy_database(copy / DATABASE, trained.folder / DATABASE)
    return trained


@pytest.fixture
def registry(server: MlflowServer) -> Registry:
    return Registry.at(server.uri)


def lose_artifact(server: MlflowServer, registry: Registry, one: Version) -> Path:
    """Its files go, as a person or a clean-up of the store takes them; where they are now."""
    uri = registry.client.get_model_version_download_uri(registered_name(one.detector), one.version)
    folder = server.folder / "artifacts" / uri.removeprefix("mlflow-artifacts:/")
    assert folder.is_dir(), uri
    return folder.rename(folder.with_name("lost"))


def test_a_challenger_that_was_deleted_in_the_pages_is_gone_and_the_champion_serves(
    registry: Registry, server: MlflowServer, tmp_path: Path
) -> None:
    source = RegistrySource(registry, tmp_path / "kept", shadow=CHALLENGER)
    found = source.poll()
    assert found is not None
    assert found.challenger is not None
    for detector in ("pca", "ensemble"):
        server.ask("model-versions/delete", {"name": registered_name(detector), "version": "2"}, "DELETE")
    later = source.poll()
    assert later is not None
    assert later.challenger is None
    assert later.champion.versions == found.champion.versions


def test_a_challenger_whose_artifact_is_gone_is_told_in_one_word(
    registry: Registry, server: MlflowServer, tmp_path: Path
) -> None:
    lose_artifact(server, registry, registry.version("pca", "2"))
    found = RegistrySource(registry, tmp_path / "kept", shadow=CHALLENGER).poll()
    assert found is not None
    assert found.champion.versions["pca"] == "1"
    assert found.challenger is None
    assert found.why == "version 2 of pca is refused: its artifact is gone or cannot be fetched"


def test_a_challenger_that_can_be_had_again_is_asked_for_again(
    registry: Registry, server: MlflowServer, tmp_path: Path
) -> None:
    lost = lose_artifact(server, registry, registry.version("pca", "2"))
    source = RegistrySource(registry, tmp_path / "kept", shadow=CHALLENGER)
    assert source.poll() is not None
    assert source.poll() is None, "asked again, in vain, and nothing is new"
    lost.rename(lost.with_name("artifacts"))
    assert source.poll() is None, "not at every poll"
    found = source.poll()
    assert found is not None
    assert found.challenger is not None
    assert (found.challenger.versions["pca"], found.why) == ("2", "")
    assert source.poll() is None


def test_a_champion_whose_artifact_is_gone_serves_on_and_holds_up_no_training(
    registry: Registry, server: MlflowServer, tmp_path: Path
) -> None:
    source = RegistrySource(registry, tmp_path / "kept")
    assert source.poll() is not None
    lose_artifact(server, registry, registry.version("pca", "1"))
    kept = RegistrySource(registry, tmp_path / "kept").poll()
    assert kept is not None, "what was fetched before needs no store"
    said: list[str] = []
    assert champion_on(registry, lambda text, done=0, of=0: said.append(text)) is None
    assert said == [
        "no comparison with the champion: version 1 of pca is refused: its artifact is gone or cannot be fetched"
    ]


def test_a_champion_that_a_person_moved_serves_and_can_be_rolled_back(registry: Registry, tmp_path: Path) -> None:
    source = RegistrySource(registry, tmp_path / "kept")
    assert source.poll() is not None
    registry.client.set_registered_model_alias(registered_name("pca"), CHAMPION, "2")
    found = source.poll()
    assert found is not None
    assert found.champion.versions["pca"] == "2"
    registry.note_champion(registry.version("pca", "1"))
    assert registry.rollback("pca").version == "1"


def test_a_champion_that_was_deleted_in_the_pages_leaves_the_last_good_set_in_service(
    registry: Registry, server: MlflowServer, tmp_path: Path
) -> None:
    source = RegistrySource(registry, tmp_path / "kept")
    good = source.poll()
    assert good is not None
    server.ask("model-versions/delete", {"name": registered_name("ensemble"), "version": "1"}, "DELETE")
    with pytest.raises(Exception, match="alias champion needs a version of the ensemble"):
        source.poll()
    kept = source.last_good()
    assert kept is not None
    assert kept.champion.versions == good.champion.versions


def test_tags_that_do_not_hold_everything_say_so_and_the_card_is_asked(
    registry: Registry, server: MlflowServer
) -> None:
    one = registry.version("pca", "1")
    kept = one.tags["data_train_jobs"].split(", ")
    assert 100 < len(kept) < 200
    assert kept == [*JOBS[: len(kept) - 1], "..."]
    said: list[str] = []
    champion = champion_on(registry, lambda text, done=0, of=0: said.append(text))
    assert champion is not None, said
    assert champion.jobs == set(JOBS)
    assert champion.until_s == dict.fromkeys(JOBS, 1_000.0)
    (card,) = server.folder.glob(f"artifacts/**/{one.run_id}/**/data-card.json")
    card.unlink()
    assert registry.card(one) is None
    assert champion_on(registry, lambda text, done=0, of=0: said.append(text)) is None
    assert "has a list of training jobs that is cut short, and its run's data card is gone" in said[-1]
    reasons = one.answer()["gate"]["reasons"]
    assert reasons == [*REASONS[: len(reasons) - 1], "..."], "what was cut can be read all the same"
    assert len(reasons) > 40
