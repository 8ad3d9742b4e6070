"""Training into a registry of this machine: versions, aliases, roll-back, refusal, the last good set."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tests.training_data import SMALL
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle
from trainwarden.errors import ConfigError, DataError, DetectorError
from trainwarden.trainer_offline.fit.floors import GateConfig
from trainwarden.trainer_offline.registry.parts import ENSEMBLE
from trainwarden.trainer_offline.registry.registry import Registry
from trainwarden.trainer_offline.registry.serving import RegistrySource, assemble, local_bundle
from trainwarden.trainer_offline.registry.version import CHALLENGER, CHAMPION, PROVISIONAL, registered_name
from trainwarden.trainer_offline.service.train import train

pytestmark = [pytest.mark.system, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(300)]


ANYTHING = GateConfig(
    accuracy=0.0, precision=0.0, injected_recall=0.0, false_alarms_per_machine_day=1e6,
    alone_false_alarms_per_machine_day=1e6,
)  # fmt: skip


@pytest.fixture
def registry(trained_models, tmp_path):
    """A registry of this machine with two runs: the first is champion, the second challenger."""
    return trained_models.registry(tmp_path / "models")


def test_the_answer_has_the_shape_of_the_contract(trained_models):
    first = trained_models.first
    assert {"run_id", "registry", "data", "models", "wall_s"} <= first.keys()
    assert {"hash", "jobs", "rows", "metrics_kept", "metrics_dropped"} <= first["data"].keys()
    assert all({"name", "why"} <= one.keys() for one in first["data"]["metrics_dropped"])
    for one in first["models"]:
        assert {"detector", "version", "aliases", "gate"} <= one.keys()
        assert one["gate"].keys() == {"passed", "provisional", "reasons", "metrics"}
    assert {one["detector"] for one in first["models"]} >= {"lof", "kmeans", "pca", "dtw", "neighbor_profile", ENSEMBLE}
    assert msgspec.json.decode(msgspec.json.encode(first)) == first


def test_what_passes_first_is_champion_and_later_challenger(trained_models):
    first, second = trained_models.first, trained_models.second
    for one in first["models"]:
        assert one["aliases"] == ([CHAMPION] if one["gate"]["passed"] else [])
        assert any("injected" in reason for reason in one["gate"]["reasons"])
    assert any(one["aliases"] == [CHALLENGER] for one in second["models"])


def test_a_version_that_fails_is_rejected_and_one_that_cannot_be_told_stands_in(trained_models, tmp_path, monkeypatch):
    from mlflow import MlflowClient

    def refuse(*arguments):
        raise AssertionError("a version was seen without all its tags")

    models = msgspec.structs.replace(SMALL.models, members={"pca": 1.0})
    strict = msgspec.structs.replace(SMALL, models=models, gate=GateConfig(injected_recall=1.0, accuracy=1.0))
    registry = Registry.at(str(tmp_path / "strict"), create=True)
    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "set_model_version_tag", refuse)
        answer = train(trained_models.folder / "data", registry, strict)
    rejected = [one for one in answer["models"] if not one["gate"]["passed"]]
    assert rejected
    one = registry.version(rejected[0]["detector"], "1")
    assert one.tags["gate"] == "rejected"
    assert "below the floor" in one.tags["gate_reasons"]
    assert one.aliases == ()
    with pytest.raises(ConfigError, match="has not passed the gate"):
        registry.promote(one.detector, "1")
    registry.client.set_registered_model_alias(registered_name(one.detector), CHAMPION, "1")
    with pytest.raises(DetectorError, match="refused: it has not passed the gate"):
        registry.fetch(registry.version(one.detector, "1"))
    registry.client.delete_registered_model_alias(registered_name(one.detector), CHAMPION)
    # A seventh of a machine-day is too little for the gate as it is: provisional, until a version passes.
    train(trained_models.folder / "data", registry, msgspec.structs.replace(strict, gate=GateConfig()))
    assert registry.aliases(PROVISIONAL) == {"pca": "2", ENSEMBLE: "2"}
    assert registry.aliases(CHAMPION) == {}
    assert "too little to tell: " in registry.version("pca", "2").tags["gate_reasons"]
    assert assemble(registry)[1].provisional == {"pca", ENSEMBLE}
    with pytest.raises(ConfigError, match="there was too little to judge it by"):
        registry.promote("pca", "2")
    registry.settle(registry.version("pca", "2"), passed=False, reasons="[]")
    assert registry.aliases(PROVISIONAL) == {ENSEMBLE: "2"}
    registry.settle(registry.version(ENSEMBLE, "2"), passed=True, reasons="[]")
    assert (registry.aliases(PROVISIONAL), registry.aliases(CHAMPION)) == ({}, {ENSEMBLE: "2"})
    train(trained_models.folder / "data", registry, msgspec.structs.replace(strict, gate=ANYTHING), promote=True)
    assert registry.aliases(PROVISIONAL) == {}
    assert registry.aliases(CHAMPION) == {"pca": "3", ENSEMBLE: "3"}
    assert assemble(registry)[1].provisional == frozenset()
    train(trained_models.folder / "data", registry, msgspec.structs.replace(strict, gate=GateConfig()))
    assert registry.version("pca", "4").provisional
    assert registry.aliases(PROVISIONAL) == {}, "it does not replace a champion"


def test_tags_carry_the_data_card_and_the_run_has_plots_and_example(trained_models, registry):
    one = registry.version("lof", "1")
    assert one.tags["data_hash"] == trained_models.first["data"]["hash"]
    files = {item.path for item in registry.client.list_artifacts(trained_models.first["run_id"], "plots")}
    assert {"plots/lof-score-distributions.png", "plots/lof-precision-recall.png", "plots/lof-time-lines.png"} <= files


def test_mlflow_itself_loads_an_artifact_without_pickles(registry):
    import mlflow

    one = registry.version("pca", "1")
    uri = registry.client.get_model_version_download_uri(registered_name("pca"), one.version)
    mlflow.set_tracking_uri(registry.uri)
    model = mlflow.pyfunc.load_model(uri)
    assert model.metadata.signature is not None
    scores = model.predict(model.input_example)
    assert np.asarray(scores).shape == (2,)


def test_promotion_and_rollback(registry):
    before = registry.aliases(CHAMPION)["lof"]
    other = "2" if before == "1" else "1"
    if not registry.version("lof", other).passed:
        pytest.skip("the other version was rejected")
    assert CHAMPION in registry.promote("lof", other).aliases
    assert registry.rollback("lof").version == before
    with pytest.raises(ConfigError, match="has had no champion before"):
        registry.rollback("lof")
    with pytest.raises(ConfigError, match="no version 99"):
        registry.promote("lof", "99")


def test_a_detector_of_another_run_serves_beside_the_others(registry):
    challenger = registry.aliases(CHALLENGER)
    name = next(one for one in challenger if one != ENSEMBLE)
    registry.promote(name, challenger[name])
    versions, bundle = assemble(registry)
    assert versions[name] == challenger[name]
    assert bundle.versions == versions
    vote = bundle.votes[""]
    scaled = np.random.default_rng(0).normal(size=(4, len(vote.preparation.names), 60))
    assert np.isfinite(vote.score(scaled).members[name]).any()


def test_a_tampered_or_truncated_artifact_is_refused_and_the_last_good_serves(registry, tmp_path):
    good = ModelBundle.load(local_bundle(registry.uri))
    version = registry.version("kmeans", registry.aliases(CHAMPION)["kmeans"])
    uri = registry.client.get_model_version_download_uri(registered_name("kmeans"), version.version)
    assert str(tmp_path) in uri
    folder = Path(uri.removeprefix("file://"))
    for damage in (lambda content: content[: len(content) // 2], lambda content: content[:-9] + b"x" * 9):
        path = next(folder.rglob("family-0.npz"))
        kept = path.read_bytes()
        path.write_bytes(damage(kept))
        with pytest.raises(DetectorError, match=r"version \d+ of kmeans is refused: .* damaged") as told:
            registry.fetch(version)
        assert "\n" not in str(told.value)
        path.write_bytes(kept)
    path.write_bytes(b"")
    fresh = RegistrySource(registry, tmp_path / "elsewhere")
    with pytest.raises(DetectorError, match="refused"):
        fresh.poll()
    registry.promote("lof", registry.aliases(CHAMPION)["lof"])
    assert ModelBundle.load(local_bundle(registry.uri)).versions == good.versions


def test_without_the_registry_the_last_good_set_serves(registry, tmp_path):
    source = RegistrySource(registry, tmp_path / "kept", shadow=CHALLENGER)
    found = source.poll()
    assert found is not None
    assert found.challenger is not None
    assert source.poll() is None
    (tmp_path / "models" / "mlflow.db").rename(tmp_path / "away")
    later = RegistrySource(Registry.at(registry.uri), tmp_path / "kept", shadow=CHALLENGER)
    with pytest.raises(DetectorError, match="no registry"):
        later.poll()
    kept = later.last_good()
    assert kept is not None
    assert kept.champion.versions == found.champion.versions


def test_a_registry_that_is_not_there_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match="run trainwarden train"):
        Registry.at(str(tmp_path / "none")).models()
    with pytest.raises(ConfigError, match="neither a folder"):
        Registry.at("ftp://somewhere")


def test_detect_resolves_a_registry_to_a_folder_of_models(registry):
    folder = local_bundle(registry.uri)
    assert ModelBundle.load(folder).versions == registry.aliases(CHAMPION)


# -- sentences of methods 10 about versions ------------------------------------------------------------------------


def test_a_run_records_hash_metrics_and_which_metrics_were_dropped_and_why(trained_models, registry):
    answer = trained_models.first
    run = registry.client.get_run(answer["run_id"])
    assert run.data.params["data_hash"] == answer["data"]["hash"]
    for name in ("recall", "accuracy", "false_alarms_per_machine_day"):
        assert {f"{one['detector']}.{name}" for one in answer["models"]} <= run.data.metrics.keys(), name
    with tempfile.TemporaryDirectory() as to:
        kept = registry.client.download_artifacts(run.info.run_id, "data-card.json", to)
        card = msgspec.json.decode(Path(kept).read_bytes())
    assert {one["name"]: one["why"] for one in card["metrics_dropped"]}["seven"] == "constant"
    for one in registry.versions():
        assert "power_twice" in one.tags["data_metrics_dropped"].split(", ")
        assert one.tags["data_train_jobs"]
        assert not {*one.tags["data_train_jobs"].split(", ")} & {*one.tags["data_test_jobs"].split(", ")}


def test_an_artifact_holds_nothing_that_runs_and_loads_without_pickle(registry, monkeypatch):
    import pickle

    def refuse(*arguments, **named):
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, refuse)
    for name, version in registry.aliases(CHAMPION).items():
        assert registry.fetch(registry.version(name, version)).versions
        uri = registry.client.get_model_version_download_uri(registered_name(name), version)
        files = [path for path in Path(uri.removeprefix("file://")).rglob("*") if path.is_file()]
        assert {path.suffix for path in files} <= {".npz", ".json", ".yaml", ".txt", ""}
        assert [path.name for path in files if not path.suffix] == ["MLmodel"]
        for path in (path for path in files if path.suffix == ".npz"):
            with np.load(path, allow_pickle=False) as arrays:
                assert all(arrays[key].dtype != object for key in arrays.files)


def test_a_rejected_version_is_never_served_even_if_somebody_sets_its_alias(registry, tmp_path):
    source = RegistrySource(registry, tmp_path / "kept", shadow=CHALLENGER)
    good = source.poll()
    assert good is not None
    name = registered_name("lof")
    serving = registry.aliases(CHAMPION)["lof"]
    other = "2" if serving == "1" else "1"
    registry.client.set_model_version_tag(name, other, "gate", "rejected")
    registry.client.set_registered_model_alias(name, CHAMPION, other)
    for _ in range(2):  # not worn down by asking again
        with pytest.raises(DetectorError, match="has not passed the gate"):
            source.poll()
    kept = source.last_good()
    assert kept is not None
    assert kept.champion.versions == good.champion.versions
    registry.client.delete_model_version_tag(name, other, "gate")
    with pytest.raises(DetectorError, match="has not passed the gate"):
        source.poll()
    registry.client.set_registered_model_alias(name, CHAMPION, serving)
    registry.client.set_registered_model_alias(name, CHALLENGER, other)
    found = RegistrySource(registry, tmp_path / "fresh", shadow=CHALLENGER).poll()
    assert found is not None
    assert found.champion.versions == good.champion.versions
    assert found.challenger is None, "a rejected challenger has no shadow either"
    assert "has not passed the gate" in found.why


def test_promotion_and_roll_back_are_told_on_the_bus_whoever_moved_the_alias(registry):
    from tests.doubles import ManualClock, MemoryBus
    from trainwarden.self_metrics import SelfMetrics
    from trainwarden.settings import Settings
    from trainwarden.topics import EVENTS
    from trainwarden.trainer_offline.service.handler import TrainerHandler

    bus, clock = MemoryBus(), ManualClock(1_000_000.0)
    handler = TrainerHandler(Settings(), registry, clock, SelfMetrics("trainer"))
    before = registry.aliases(CHAMPION)["pca"]
    other = "2" if before == "1" else "1"
    registry.client.set_model_version_tag(registered_name("pca"), other, "gate", "passed")

    def told():
        clock.sleep(60.0)
        events = [record for _, record in handler.tick(clock.now_s())]
        for event in events:
            bus.publish(EVENTS, "models", event)
        return [
            (event.fields["alias"], event.fields["from"], event.fields["to"])
            for event in events
            if event.fields["detector"] == "pca" and event.fields["alias"] == CHAMPION
        ]

    assert told() == [(CHAMPION, None, before)]
    registry.promote("pca", other)
    assert told() == [(CHAMPION, before, other)]
    registry.rollback("pca")
    assert told() == [(CHAMPION, other, before)]
    assert told() == []
    registry.client.set_registered_model_alias(registered_name("pca"), CHAMPION, other)
    assert told() == [(CHAMPION, before, other)]
    assert registry.rollback("pca").version == before, "a champion made in the UI can be rolled back as well"
    assert told() == [(CHAMPION, other, before)]
    bus.flush()
    ids = [message.record.id for message in bus.read(EVENTS)]
    assert len(set(ids)) == len(ids) >= 5


def test_an_unknown_detector_is_told_from_an_unknown_version(registry):
    for ask in (lambda: registry.versions("loff"), lambda: registry.promote("loff", "1")):
        with pytest.raises(ConfigError, match=r"there is no detector 'loff' in registry .*; it has dtw, ensemble"):
            ask()


MAKES = """
import resource, sys
from trainwarden.trainer_offline.registry.registry import Registry
if sys.argv[2:]:
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)  # a disk that is full
print(Registry.at(sys.argv[1], create=True).aliases("champion"))
"""


def makes(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", MAKES, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )


def test_a_registry_is_made_whole_by_two_processes_at_once(tmp_path: Path) -> None:
    both = [makes(str(tmp_path / "models")) for _ in range(2)]
    answers = [one.communicate(timeout=200) for one in both]
    assert [(one.returncode, said) for one, (said, _) in zip(both, answers, strict=True)] == [(0, b"{}\n")] * 2, answers


def test_a_registry_that_a_full_disk_broke_off_is_made_at_the_next_try(tmp_path: Path) -> None:
    full = makes(str(tmp_path / "models"), "60000")
    assert full.communicate(timeout=200)[1]
    assert full.returncode == 1
    again = makes(str(tmp_path / "models"))
    assert again.communicate(timeout=200)[0] == b"{}\n"
