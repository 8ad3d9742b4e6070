"""Another version is promoted while a demo's ranks train: every window is judged once, and the fault is found."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.training_data import MODELS
from trainwarden.cli.run.demo_job import Demo
from trainwarden.cli.run.demo_live import LiveView
from trainwarden.cli.run.demo_plan import DemoPlan
from trainwarden.cli.run.job_here import JobHere
from trainwarden.cli.run.job_run import JobRun
from trainwarden.cli.shared.output import Voice
from trainwarden.detectors.metrics.bundle.members import VoteConfig
from trainwarden.records import VerdictRecord
from trainwarden.settings import Settings, parse
from trainwarden.topics import VERDICTS
from trainwarden.trainer_offline.data.grids import PrepareConfig
from trainwarden.trainer_offline.data.prepare import prepare
from trainwarden.trainer_offline.fit.fit import fit
from trainwarden.trainer_offline.fit.floors import GateConfig
from trainwarden.trainer_offline.fit.gate import gate
from trainwarden.trainer_offline.registry.publish import TrainedRun, register
from trainwarden.trainer_offline.registry.registry import Registry

# MLflow and what it stands on warn of their own making.
pytestmark = [pytest.mark.system, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

SWAPPED = "pca"
SWAP_S = 30.0
BEFORE = 4  # verdicts by the old models, at least, before the promotion
RANK = 2
# A minute of a demo is no test of quality: here only who serves matters.
ANY = GateConfig(
    accuracy=0.0, precision=0.0, recall=0.0, injected_recall=0.0,
    false_alarms_per_machine_day=1e6, alone_false_alarms_per_machine_day=1e6,
)  # fmt: skip


@pytest.fixture(scope="module")
def registry(quiet_demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """Two versions of every detector, learnt once from a captured demo; the first serves."""
    models = parse(VoteConfig, {"members": {"pca": 1.0, "kmeans": 1.0}, **_small()}, "trainer.models")
    found = Registry.at(str(tmp_path_factory.mktemp("swap") / "models"), create=True)
    ready = prepare(quiet_demo / "data", PrepareConfig(least_samples=10))  # the demo lasts as long as it takes
    bundle = fit(ready, models, 0)
    results, tallies = gate(bundle, None, ready.test, ANY, seed=0)
    for _ in range(2):
        register(found, TrainedRun(bundle, results, tallies, ready.card, {}))
    assert {one.version for one in found.versions() if one.passed} == {"1", "2"}, results
    return found


def _small() -> dict[str, Any]:
    return {name: value for name, value in MODELS.items() if name != "members"}


class SwappingDemo(Demo):
    """A demo whose fault comes only after another version has been promoted and serves."""

    promoted_at_s: float | None = None
    swapped_at_s: float | None = None
    registry: Registry

    def _maybe_inject(self) -> None:
        verdicts = self.run.follower.view.verdicts
        served = [one for one in verdicts if SWAPPED in one.model_versions]
        if self.promoted_at_s is None:
            if len(served) >= BEFORE:
                self.promoted_at_s = time.time()
                self.registry.promote(SWAPPED, "2")
        elif self.swapped_at_s is None:
            if served[-1].model_versions[SWAPPED] == "2":
                self.swapped_at_s = time.time()
        else:
            super()._maybe_inject()


@pytest.fixture(scope="module")
def swapped(registry: Registry, tmp_path_factory: pytest.TempPathFactory) -> tuple[SwappingDemo, list[VerdictRecord]]:
    """The demo after its end, and every verdict that is on the bus."""
    plan = DemoPlan.checked(
        fault="slow-rank", rank=RANK, slowdown=2.5, at_step=45, ranks=3, seed=0, steps=110, mode="observe"
    )
    folder = tmp_path_factory.mktemp("run")
    settings = Settings(job="swap", run_dir=str(folder))
    overrides = {
        "TRAINWARDEN_ENGINE_MODE": "observe",
        "TRAINWARDEN_DETECTION_MODELS": registry.uri,
        "TRAINWARDEN_DETECTION_MODELS_EVERY_S": "1.0",
    }
    voice = Voice()
    services = ("agent", "detector", "engine")
    with (
        closing(JobHere(settings, plan.ranks, plan.mode)) as job,
        JobRun(settings, own_services=services, overrides=overrides, prepare=job.serve) as run,
    ):
        one = SwappingDemo(plan, run, job, voice, LiveView(plan.ranks, voice))
        one.registry = registry
        code = one.carry_out()
        assert code == 0, _tail(folder)
        found = [one.record for one in run.bus.read(VERDICTS)]
    for incident in one.run.follower.view.incidents.values():
        print(incident.kind, incident.suspects, incident.opened_at_s, incident.reason, incident.opened_step)
    print(one.promoted_at_s, one.swapped_at_s, one.fault.injected_at_s)
    log = _tail(folder)
    assert one.promoted_at_s is not None, f"no verdict by models\n{log}"
    assert one.swapped_at_s is not None, f"no swap before the job's end\n{log}"
    return one, [record for record in found if isinstance(record, VerdictRecord)]


def _tail(folder: Path) -> str:
    return (folder / "services" / "detector.log").read_text(errors="replace")[-3000:]


def test_the_swap_comes_within_30_s_and_versions_change_once(
    swapped: tuple[SwappingDemo, list[VerdictRecord]],
) -> None:
    one, verdicts = swapped
    assert one.promoted_at_s is not None
    assert one.swapped_at_s is not None
    assert one.swapped_at_s - one.promoted_at_s < SWAP_S
    versions = [verdict.model_versions[SWAPPED] for verdict in verdicts if SWAPPED in verdict.model_versions]
    assert versions == sorted(versions)
    assert {*versions} == {"1", "2"}
    others = {verdict.model_versions["kmeans"] for verdict in verdicts if "kmeans" in verdict.model_versions}
    assert others == {"1"}, "who was not promoted serves on"


def test_no_verdict_is_lost_or_told_twice(swapped: tuple[SwappingDemo, list[VerdictRecord]]) -> None:
    verdicts = swapped[1]
    assert len({verdict.id for verdict in verdicts}) == len(verdicts)
    times = np.array([verdict.time_s for verdict in verdicts])
    gaps = np.diff(times)
    assert np.all(gaps > 0.0), "each window once, in its order"
    served = [SWAPPED in verdict.model_versions for verdict in verdicts]
    versions = [verdict.model_versions.get(SWAPPED) for verdict in verdicts]
    first, swap = served.index(True), versions.index("2")
    # A window not judged would show as a gap where models were changed, beside what this machine's load makes anyway.
    elsewhere = np.delete(gaps[first:], swap - 1 - first)
    assert gaps[swap - 1] <= 2.0 * elsewhere.max(), f"gap at the swap among {np.round(gaps[first:], 2).tolist()}"
    # Memories are carried over: who had an opinion before the swap has one after it, and nobody has failed.
    before, after = verdicts[swap - 1].votes[SWAPPED], verdicts[swap].votes[SWAPPED]
    assert before.opinion == "abstain" or after.opinion != "abstain", after.reason
    assert not [vote for verdict in verdicts for vote in verdict.votes.values() if "failed" in (vote.reason or "")]


def test_the_fault_after_the_swap_is_found(swapped: tuple[SwappingDemo, list[VerdictRecord]]) -> None:
    one, verdicts = swapped
    since_s = one.fault.injected_at_s
    assert since_s is not None
    opened = [
        (incident.kind, incident.suspects[0].rank if incident.suspects else None, incident.opened_at_s - since_s)
        for incident in one.run.follower.view.incidents.values()
    ]
    # Beside a registry's work on two cores a rank may have been slow before; the fault is told all the same.
    told = [
        verdict
        for verdict in verdicts
        if verdict.kind == "slow_compute" and verdict.time_s > since_s and verdict.suspects[0].rank == RANK
    ]
    assert told, opened
    # A verdict names the versions of those models alone that have an opinion in its window.
    assert {verdict.model_versions.get(SWAPPED, "2") for verdict in told} == {"2"}
