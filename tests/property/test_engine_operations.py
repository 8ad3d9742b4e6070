"""Whatever is killed, away, slow or failing in whatever order: the engine starts nothing twice and forgets nothing."""

from __future__ import annotations

from collections import Counter
from typing import get_args

import hypothesis.strategies as st
import msgspec
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.engine_doubles import Killed, Rig
from tests.examples import examples
from tests.memory_launcher import ALONE
from trainwarden.commands.builders import NodeWord, on_node
from trainwarden.launching import NODE_VERBS, Accused, Capabilities, Findings, Verb
from trainwarden.records import IncidentKind, IncidentRecord, Suspect
from trainwarden.topics import COMMANDS, INCIDENTS

KINDS = st.sampled_from(["crash", "hang", "gpu_lost", "user_error", "slow_compute", "metric_anomaly"])
SLOW = {
    "healthy_iteration_s": 0.3, "iteration_s": 0.6, "slow_iterations": 5, "ranks": [0, 1, 2, 3],
    "compute_s": [0.3, 0.3, 0.6, 0.3], "micro_batches": [6, 6, 6, 6],
}  # fmt: skip
WELL = Findings(judged=("gemm", "links"), nodes=("n7",))
GUILTY = Findings(accused=(Accused(kind="slow_compute", text="rank 2", ranks=(2,), nodes=("n7",)),), nodes=("n7",))
SUSPECTS = (Suspect(score=1.0, reason="Xid 79", rank=2, node="n7"),)


class Engine(RuleBasedStateMachine):
    """The engine with a launcher that takes its time; one that is killed before or after its call is heard."""

    @initialize()
    def begin(self) -> None:
        # Nothing is given up here: what the engine has given up, the launcher may still do.
        patience = {"launcher_deadline_s": 86_400.0, "operation_deadline_s": dict.fromkeys(get_args(Verb), 86_400.0)}
        self.rig = Rig(actions_per_hour=1000, cool_down_s=0.0, policy=patience)
        self.rig.launcher.slow = True
        verbs: frozenset[Verb] = frozenset({"restart", "rebalance", "stop", "evict", "validate"})
        self.rig.launcher.able = Capabilities(can=verbs | ALONE)
        self.incidents: dict[str, IncidentRecord] = {}
        self.kill_next, self.words = False, 0
        self.rig.launcher.before = self._arrive

    def _arrive(self) -> None:
        # Recorded before it is asked for, always.
        told = {name for name, outcome in self.rig.story() if outcome == "started"}
        assert {action.id for action in self.rig.engine._memory.under_way.values()} <= told
        if self.kill_next:
            self.kill_next = False
            raise Killed

    def _tick(self, seconds: float) -> None:
        try:
            self.rig.tick(seconds)
        except Killed:
            self.rig.restart_engine()

    @rule(kind=KINDS)
    def something_happens(self, kind: IncidentKind) -> None:
        if len(self.incidents) >= 6:
            return
        incident = self.rig.incident(f"i{len(self.incidents)}", kind, evidence=SLOW, suspects=SUSPECTS)
        self.incidents[incident.id] = incident
        self.rig.launcher.phase = "failed" if kind in ("crash", "user_error") else "running"
        self._tell(incident)

    @precondition(lambda self: self.incidents)
    @rule(data=st.data())
    def something_is_over(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.incidents)))
        if self.incidents[name].state != "closed":
            self.incidents[name] = self.rig.closed(self.incidents[name])
            self._tell(self.incidents[name])

    def _tell(self, incident: IncidentRecord) -> None:
        self.rig.bus.publish(INCIDENTS, "job", incident)
        self.rig.bus.flush()
        self.rig.engine._memory.apply(incident)

    @rule(word=st.sampled_from(["cordon", "uncordon"]))
    def a_person_speaks_of_the_node(self, word: NodeWord) -> None:
        self.words += 1
        command = on_node(word, "n0", "job", "ann", at_s=self.rig.clock.now_s())
        self.rig.bus.publish(COMMANDS, "job", msgspec.structs.replace(command, id=f"command/{self.words}"))
        self.rig.bus.flush()
        list(self.rig.engine.handle(self.rig.consumer.poll(0.0)))

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 15.0, 130.0]))
    def tick(self, seconds: float) -> None:
        self._tick(seconds)

    @rule()
    def kill_at_the_next_call(self) -> None:
        self.kill_next = True

    @rule()
    def restart_the_engine(self) -> None:
        self.rig.restart_engine()

    @rule(away=st.booleans())
    def the_launcher_goes_or_comes(self, away: bool) -> None:
        self.rig.launcher.unreachable = away

    @precondition(lambda self: self.rig.launcher._under_way)
    @rule(error=st.sampled_from([None, None, "no room"]))
    def the_launcher_gets_on(self, error: str | None) -> None:
        self.rig.launcher.finish(next(iter(self.rig.launcher._under_way)), error)

    @rule(findings=st.sampled_from([WELL, GUILTY, Findings()]), pausable=st.booleans())
    def what_a_validation_finds_and_whether_the_loop_takes_part(self, findings: Findings, pausable: bool) -> None:
        self.rig.launcher.findings, self.rig.launcher.pausable = findings, pausable

    @invariant()
    def nobody_is_evicted_for_a_suspicion_that_no_measurement_has_confirmed(self) -> None:
        for operation in self.rig.launcher.operations:
            incident = operation.id.split("/")[0]
            if operation.kind == "evict" and self.incidents[incident].kind in ("metric_anomaly", "slow_compute"):
                answers = [a for a in self.rig.bus.actions() if a.id.startswith(f"{incident}/validate/")]
                assert any(answer.plan.get("confirmed") == ["n7"] for answer in answers)
                assert GUILTY in self.rig.launcher._found.values()

    @invariant()
    def nothing_is_started_or_carried_out_twice(self) -> None:
        story = self.rig.story()
        started = Counter(name for name, outcome in story if outcome == "started")
        assert set(started.values()) <= {1}
        accepted = Counter(operation.id for operation in self.rig.launcher.operations)
        assert set(accepted.values()) <= {1}
        assert set(accepted) <= set(started)

    @invariant()
    def what_is_recorded_is_what_was_done(self) -> None:
        ends = {name: outcome for name, outcome in self.rig.story() if outcome in ("done", "failed")}
        for name, outcome in ends.items():
            assert (outcome == "done") == (name in self.rig.launcher.done)

    @invariant()
    def one_thing_at_a_time_is_done_to_ranks(self) -> None:
        open_ = [o for o in self.rig.launcher._under_way.values() if o.kind not in NODE_VERBS]
        assert len(open_) <= 1

    @invariant()
    def of_words_on_a_node_one_at_a_time_is_carried_out(self) -> None:
        assert sum(o.kind in ("cordon", "uncordon") for o in self.rig.launcher._under_way.values()) <= 1

    def teardown(self) -> None:
        """Once the launcher answers and is done with everything, so is the engine: nothing is forgotten."""
        if not hasattr(self, "rig"):
            return
        self.kill_next, self.rig.launcher.unreachable = False, False
        for _ in range(60):
            for name in list(self.rig.launcher._under_way):
                self.rig.launcher.finish(name)
            self._tick(15.0)
        last = dict(self.rig.story())
        assert "started" not in [o for n, o in last.items() if n not in self.rig.launcher._under_way]
        # The newest word that was not refused in passing has been obeyed.
        done = [o.kind for o in self.rig.launcher.operations if o.kind in ALONE and o.id in self.rig.launcher.done]
        assert self.rig.launcher.cordoned == ({"n0"} if done[-1:] == ["cordon"] else set())


TestEngine = Engine.TestCase
TestEngine.settings = settings(examples(40), stateful_step_count=25)
