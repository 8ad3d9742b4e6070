"""Whatever answers of Slurm are lost, however often the engine is killed or doubled: each operation happens once."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.actions.launchers.slurm.slurm_double import SlurmDouble
from trainwarden.actions.launchers.slurm.client import SlurmConfig, SlurmLauncher
from trainwarden.errors import LauncherUnavailable
from trainwarden.launching import Operation, Report, Targets
from trainwarden.protocols import Scope

# What becomes of a command: it is done, never heard of, or done and its answer lost.
FATES = st.lists(st.sampled_from(["done", "done", "done", "unheard", "unanswered"]), max_size=40)
# What happens between two looks: another engine looks, this one is killed, Slurm starts what waits.
EVENTS = st.lists(st.sampled_from(["look", "look", "other", "killed", "start", "redelivered"]), min_size=3, max_size=14)


class World:
    """Two engines' launchers in front of a Slurm whose commands meet the fates that were drawn."""

    def __init__(self, state: str, fates: list[str]) -> None:
        self.slurm, self._fates = SlurmDouble(state), iter(fates)
        self.launchers = [self.made(), self.made()]

    def made(self) -> SlurmLauncher:
        launcher = SlurmLauncher(SlurmConfig(), Scope(job="job", node="n0", run_dir="."))
        launcher._commands._monotonic_s = ticks().__next__  # no pause after a silence
        return launcher

    def run(self, argv: list[str], **more: object) -> subprocess.CompletedProcess[str]:
        fate = next(self._fates, "done")
        if fate == "unheard":
            raise subprocess.TimeoutExpired(argv, 5.0)
        answer = self.slurm.run(argv, **more)
        if fate == "unanswered":
            raise subprocess.TimeoutExpired(argv, 5.0)
        return answer

    def happens(self, event: str, operation: Operation) -> Report | None:
        if event == "start":
            if self.slurm.state == "PENDING" and "held" not in self.slurm.why:
                self.slurm.start()
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


def ticks() -> Iterator[float]:
    now_s = 0.0
    while True:
        now_s += 1000.0
        yield now_s


@given(
    st.sampled_from(["evict", "restart"]),
    st.sampled_from(["RUNNING", "FAILED", "PENDING"]),
    st.booleans(),
    FATES,
    EVENTS,
)
def test_an_operation_happens_once_and_leaves_no_job_held(
    kind: str, state: str, persons: bool, fates: list[str], events: list[str]
) -> None:
    world = World(state, fates)
    if persons:
        world.slurm.nodes["n1"] = ("IDLE+DRAIN", "fan of anna")
    operation = Operation(
        id="i1/x/1", job="job", kind=kind, expected_generation=7_000_000,  # type: ignore[arg-type]
        targets=Targets(nodes=("n1",)) if kind == "evict" else Targets(), why="why",
    )  # fmt: skip
    with (
        mock.patch("trainwarden.actions.launchers.slurm.commands.run_program", world.run),
        mock.patch("os.geteuid", return_value=0),
    ):
        for event in events:
            world.happens(event, operation)
        report = None
        for _ in range(50):  # more looks than there are fates
            report = world.happens("look", operation) or report
            world.happens("start", operation)
    assert world.slurm.restarts <= 1
    assert report is not None
    # Only a failed job, which takes no note, may be requeued without a trace; then nothing more is done.
    assert report.state == "done" or (state == "FAILED" and report.reason == "stale"), (report, world.slurm.said)
    assert world.slurm.restarts == 1 or state == "PENDING"
    assert world.slurm.state == "RUNNING"
    drains = [said for said in world.slurm.said if "State=DRAIN" in said]
    assert bool(drains) == (kind == "evict" and not persons)
    assert len(set(drains)) <= 2  # with the reason in full, or cut short after a kill
    if kind == "evict":
        assert "n1" not in world.slurm.on
        assert world.slurm.nodes["n1"][1].startswith("fan of anna" if persons else "trainwarden:i1/x/1")
    assert world.slurm.comment.startswith("theirs")
