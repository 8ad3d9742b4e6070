"""Whatever is submitted, asked, awaited and killed in whatever order: every operation happens once or not at all."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import ClassVar
from unittest.mock import patch

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.examples import examples
from tests.unit.actions.launchers.local.runner_double import RANKS, Launch
from trainwarden import rundir
from trainwarden.actions.launchers.local.microbatch_plan import PlanFile
from trainwarden.actions.launchers.local.ranks import LocalJob
from trainwarden.actions.launchers.restart_check.measuring import Outcome
from trainwarden.actions.launchers.restart_check.validating import Validating
from trainwarden.launching import Findings, Progress
from trainwarden.topics import EVENTS

NAMES = st.sampled_from(["a", "b", "c", "d", "e", "v", "w"])
KINDS: dict[str, str] = {
    "a": "restart",
    "b": "restart",
    "c": "rebalance",
    "d": "rebalance",
    "e": "restart",
    "v": "validate",
    "w": "validate",
}
SPLIT = (2,) * RANKS


class Measured:
    """A measurement that ends when the test says so."""

    made: ClassVar[list[Measured]] = []

    def __init__(self, place: LocalJob, checks: object) -> None:
        self.pid, self.ready, self.begun, self.ended, self.killed = 1, True, False, False, False
        self.made.append(self)

    def begin(self) -> None:
        self.begun = True

    def kill(self) -> None:
        self.killed = self.killed or not self.ended

    def outcome(self) -> Outcome:
        return Outcome(Findings())


class Operations(RuleBasedStateMachine):
    """The local launcher beside a plain twin that keeps a list: ids in the order in which they were accepted.

    The twin knows nothing of queues, files or processes. Of the launcher it believes only the word "accepted or
    further", and holds it to that: the generation, the effects and the final words must fit the list.
    """

    def __init__(self) -> None:
        super().__init__()
        self._run_dir = rundir.prepare(
            Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
        )  # on tmpfs: every acceptance waits for the disk
        Measured.made = []
        self._measure = patch.object(Validating.__init__, "__defaults__", (Measured,))
        self._measure.start()
        self._launch = Launch(self._run_dir)
        self._stand(0)
        self._accepted: list[str] = []
        self._ends: dict[str, Progress] = {}

    def teardown(self) -> None:
        self._measure.stop()
        shutil.rmtree(self._run_dir)

    def _stand(self, number: int) -> None:
        self._launch.runner.standing = dict.fromkeys(range(RANKS), number)

    @rule(name=NAMES, behind=st.integers(-1, 2))
    def submit(self, name: str, behind: int) -> None:
        """Planned now, or `behind` generations ago (or from a future that there is not)."""
        generation = self._launch.state().generation
        kind = KINDS[name]
        ranks = (1,) if name == "b" else None
        report = self._launch.submit(
            self._launch.operation(name, kind, ranks, SPLIT, max(0, generation - behind))  # type: ignore[arg-type]
        )
        if name in self._accepted:
            assert report.state != "refused"
        elif behind:
            assert (report.state, report.reason) == ("refused", "stale")
        elif report.reason == "unfit":
            assert kind == "validate"
            return
        else:
            assert report.state in ("accepted", "running", "done")
            self._accepted.append(name)
        self._hear(name)

    @rule(name=NAMES)
    def poll(self, name: str) -> None:
        assert (self._launch.poll(name).state == "unknown") == (name not in self._accepted)
        self._hear(name)

    @rule()
    def ranks_end(self) -> None:
        self._launch.runner.let_go()

    @rule()
    def ranks_stand_still_or_go_on(self) -> None:
        path = self._run_dir / rundir.PAUSE
        self._stand(json.loads(path.read_text())["number"] if path.exists() else 0)

    @rule()
    def what_is_measured_ends(self) -> None:
        for measured in Measured.made:
            measured.ended = measured.ended or measured.begun

    @rule()
    def time_passes(self) -> None:
        self._launch.clock.sleep(0.1)
        self._launch.coordinator.advance()

    @rule(rank=st.integers(0, RANKS - 1))
    def a_rank_fails(self, rank: int) -> None:
        self._launch.runner.fail(rank, 1)

    @rule()
    def kill(self) -> None:
        self._launch.kill()
        self._stand(0)
        for name in self._accepted:  # nothing is left open by a launcher that is gone
            assert self._launch.poll(name).ended
            self._hear(name)

    def _hear(self, name: str) -> None:
        report = self._launch.poll(name)
        if name in self._ends:
            assert report.state == self._ends[name]
        elif report.ended:
            self._ends[name] = report.state

    @invariant()
    def the_generation_counts_lives_and_operations(self) -> None:
        assert self._launch.state().generation == len(self._launch.runners) + len(self._accepted)

    @invariant()
    def each_effect_happened_once_or_never(self) -> None:
        path = self._run_dir / rundir.EVENTS
        lines = path.read_bytes().splitlines() if path.exists() else []
        told = Counter(event.id for event in map(EVENTS.decode, lines))
        assert set(told.values()) <= {1}
        restarted = {name for name in NAMES_OF["restart"] if told[f"restart/{name}/done"]}
        assert restarted == {n for n in NAMES_OF["restart"] if self._launch.poll(n).state == "done"}
        again = sum(len(runner.starts) - 1 for runner in self._launch.runners)
        assert again == len(restarted)
        split = [n for n in NAMES_OF["rebalance"] if self._launch.poll(n).state == "done"]
        assert PlanFile(self._run_dir / rundir.PLAN).number == len(split)

    @invariant()
    def nobody_is_asked_to_stand_still_for_nothing(self) -> None:
        open_ = [name for name in self._accepted if not self._launch.poll(name).ended]
        validates = bool(open_) and KINDS[open_[0]] == "validate"  # operations are done one after the other
        assert validates or not (self._run_dir / rundir.PAUSE).exists()
        assert validates or self._launch.runner.beside is None
        answered = [name for name in self._accepted if self._launch.poll(name).findings is not None]
        assert all(KINDS[name] == "validate" and self._launch.poll(name).state == "done" for name in answered)

    @invariant()
    def what_is_under_way_is_what_was_accepted_and_has_no_end(self) -> None:
        open_ = tuple(name for name in self._accepted if not self._launch.poll(name).ended)
        assert self._launch.state().under_way == open_


NAMES_OF = {kind: [name for name, its in KINDS.items() if its == kind] for kind in ("restart", "rebalance")}
TestOperations = Operations.TestCase
TestOperations.settings = settings(examples(40), stateful_step_count=30)
