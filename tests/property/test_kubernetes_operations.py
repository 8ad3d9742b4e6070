"""Whatever answers of Kubernetes are lost, however often engines are killed or doubled: each operation happens once."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.actions.launchers.kubernetes.kube_double import KubeDouble
from trainwarden.actions.launchers.kubernetes.client import KubernetesConfig, KubernetesLauncher
from trainwarden.errors import LauncherUnavailable
from trainwarden.launching import Operation, Report, Targets
from trainwarden.protocols import Scope

pytest.importorskip("kubernetes", reason="pip install 'trainwarden[kubernetes]'")

# What becomes of a request: it is done, never heard of, or done and its answer lost.
FATES = st.lists(st.sampled_from(["done", "done", "done", "done", "unheard", "unanswered"]), max_size=40)
# Before which change another engine brings everything to its end.
OVERTAKEN = st.integers(0, 6)
# What happens between two looks: another engine looks, this one is killed, controllers and kubelets do what is theirs.
EVENTS = st.lists(st.sampled_from(["look", "look", "other", "killed", "play", "redelivered"]), min_size=3, max_size=14)


class World:
    """Two engines' launchers in front of a Kubernetes whose requests meet the fates that were drawn."""

    def __init__(self, kube: KubeDouble, fates: list[str], overtaken: int = 0, by: Operation | None = None) -> None:
        self.kube, self._fates, self._now_s = kube, iter(fates), 0.0
        self._overtaken, self._by = overtaken, by
        self.launchers = [self.made(), self.made()]

    def made(self) -> KubernetesLauncher:
        config = KubernetesConfig(kind=self.kube.kind)  # type: ignore[arg-type]
        launcher = KubernetesLauncher(config, Scope(job="job", node="n0", run_dir="."))
        launcher._api._exchange = self.exchange  # type: ignore[method-assign]
        launcher._api._monotonic_s = self._tick  # no pause after a silence
        return launcher

    def _tick(self) -> float:
        self._now_s += 1000.0
        return self._now_s

    def exchange(self, method: str, path: str, body: Any, media: str) -> tuple[int, bytes]:
        fate = next(self._fates, "done")
        if fate == "unheard":
            raise LauncherUnavailable("silence")
        self._overtaken -= method == "PATCH"
        if method == "PATCH" and self._overtaken == 0 and self._by is not None:
            self._overtake(self._by)
        answer = self.kube.exchange(method, path, body, media)
        if fate == "unanswered":
            raise LauncherUnavailable("silence")
        return answer

    def _overtake(self, operation: Operation) -> None:
        """Another engine brings it to its end between what this one has read and what it writes."""
        third = self.made()
        third._api._exchange = self.kube.exchange  # type: ignore[method-assign]
        while not third.submit(operation).ended:
            self.kube.play()

    def happens(self, event: str, operation: Operation) -> Report | None:
        if event == "play":
            self.kube.play()
            return None
        if event == "killed":
            self.launchers[0] = self.made()
        launcher = self.launchers[event == "other"]
        try:
            known = launcher.poll("job", operation.id)
            again = known.state == "unknown" or event == "redelivered"
            return launcher.submit(operation) if again else known
        except LauncherUnavailable:
            return None


@given(
    st.sampled_from(["evict", "restart", "cordon"]),
    st.sampled_from([("JobSet", False), ("PyTorchJob", False), ("PyTorchJob", True)]),
    st.booleans(),
    FATES,
    EVENTS,
    OVERTAKEN,
)
def test_an_operation_happens_once_and_leaves_no_job_suspended(
    kind: str, of: tuple[str, bool], persons: bool, fates: list[str], events: list[str], overtaken: int
) -> None:
    kube = KubeDouble(*of)
    if persons:
        kube.nodes["n1"]["spec"]["unschedulable"] = True
    generation = KubernetesLauncher.state(World(kube, []).launchers[0], "job").generation
    operation = Operation(
        id="i1/x/1", job="job", kind=kind, expected_generation=generation,  # type: ignore[arg-type]
        targets=Targets() if kind == "restart" else Targets(nodes=("n1",)), why="why",
    )  # fmt: skip
    world = World(kube, fates, overtaken, operation)
    for event in events:
        world.happens(event, operation)
    report = None
    for _ in range(60):  # more looks than there are fates
        report = world.happens("look", operation) or report
        world.happens("play", operation)
    assert report is not None
    assert report.state == "done", (report, kube.said)
    toggles = [said for said in kube.said if said.startswith("job ")]
    moved = kind == "restart" or (kind == "evict" and not of[1])
    assert len(toggles) == (2 if moved else 0)
    assert not kube.suspended
    assert len(kube.on) == 2
    cordons = [said for said in kube.said if "unschedulable" in said]
    assert len(cordons) == (kind != "restart" and not persons)
    mark = kube.nodes["n1"]["metadata"].get("annotations", {}).get("trainwarden/cordoned")
    assert mark == ("i1/x/1 why" if cordons else None)
    if kind == "evict":
        assert "n1" not in kube.on
