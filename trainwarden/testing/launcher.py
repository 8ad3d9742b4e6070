"""The contract of launchers, as far as it can be asked of any: `check_launcher` asks everything, `CHECKS` one by one.

A third party's test is three lines::

    from trainwarden.testing.launcher import check_launcher

    def test_contract(tmp_path: Path) -> None:
        check_launcher(MyLauncher, {"folder": str(tmp_path)}, job="job")

What an operation does to real ranks is for the launcher's own tests to show.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args

import msgspec

from trainwarden import plugins
from trainwarden.errors import LauncherError
from trainwarden.launching import NODE_VERBS, Capabilities, Launcher, LauncherState, Operation, Plan, Targets, Verb
from trainwarden.protocols import Scope
from trainwarden.testing.plugin import check_page, check_plugin, refused

# A move is of all nodes, which what is under way may change; a paused job takes part in little.
_TURN: Final[Mapping[Verb, int]] = {"move": -1, "pause": 1, "resume": 2, "stop": 3}
VERBS: Final[tuple[Verb, ...]] = get_args(Verb)
NO_PLAN: Final = Plan()
WELL: Final = frozenset({"accepted", "running", "done"})


@dataclass
class Case:
    """A launcher under test.

    Parameters
    ----------
    plugin : type
        Its class.
    job : str
        A job that it runs.
    settings : mapping
    plan : Plan
        One that fits the job, for ``rebalance``.
    """

    plugin: type[Any]
    job: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    plan: Plan = NO_PLAN
    run_dir: str = "."

    def made(self) -> Launcher:
        """A new one: whatever it knows of operations it knows from where they were kept."""
        config = plugins.configure(self.plugin, self.settings, "settings")
        launcher: Launcher = self.plugin(config, Scope(job=self.job, node="n0", run_dir=self.run_dir))
        return launcher

    def operation(self, number: int, kind: Verb, state: LauncherState) -> Operation:
        """One that was planned from `state`; a move turns the order of the nodes round."""
        named = tuple(node.node for node in state.nodes[:1])
        placed = sorted((node for node in state.nodes if node.ranks), key=lambda node: node.ranks, reverse=True)
        order = tuple(node.node for node in placed) if kind == "move" else ()
        plan = msgspec.structs.replace(self.plan, node_order=order)
        return Operation(
            id=f"contract/{kind}/{number}", job=self.job, kind=kind, expected_generation=state.generation,
            targets=Targets(nodes=named) if kind in NODE_VERBS else Targets(), plan=plan, why="the contract",
        )  # fmt: skip


def check_launcher(plugin: type[Any], settings: Mapping[str, Any], *, job: str, plan: Plan = NO_PLAN) -> None:
    """Ask a third party's launcher everything.

    Raises
    ------
    AssertionError
        With one sentence on what is not as it should be.
    """
    check_page(plugin)
    for check in CHECKS:
        check(Case(plugin, job, settings, plan))


def it_is_a_plugin(case: Case) -> None:
    """A checked `Config`."""
    check_plugin(case.plugin)


def it_says_what_it_can_do(case: Case) -> None:
    """Every verb is offered or refused in words, never both."""
    able = case.made().capabilities()
    assert isinstance(able, Capabilities), f"capabilities() must be a trainwarden.launching.Capabilities, not {able!r}"
    both = able.can & set(able.cannot)
    assert not both, f"it says both that it can and that it cannot {', '.join(sorted(both))}"
    assert all(able.cannot.values()), "what it cannot do is said in its own words"


def it_knows_its_jobs(case: Case) -> None:
    """The state is the job's, and another's is refused."""
    launcher = case.made()
    state = launcher.state(case.job)
    assert state.job == case.job, f"asked for {case.job}, it tells of {state.job}"
    assert launcher.job in (None, case.job), f"`job` must be None or {case.job}, not {launcher.job}"
    if launcher.job is not None:
        refused(LauncherError, lambda: launcher.state("another"))


def what_it_cannot_do_is_refused(case: Case) -> None:
    """In its own words, and nothing changes."""
    launcher = case.made()
    able, state = launcher.capabilities(), launcher.state(case.job)
    for verb in VERBS:
        if verb not in able.can:
            report = launcher.submit(case.operation(0, verb, state))
            assert report.state == "refused", f"it cannot {verb}, but it answers {report.state}"
            assert report.reason == "unsupported", f"{verb} must be refused as unsupported, not as {report.reason}"
            assert report.text == able.refusal(verb), f"{verb} must be refused in the words of its capabilities"
    after = launcher.state(case.job).generation
    assert after == state.generation, "a refusal changes nothing, but the generation has risen"


def what_is_stale_is_refused(case: Case) -> None:
    """An operation that was planned from another generation is not done."""
    launcher = case.made()
    state = launcher.state(case.job)
    for verb in sorted(launcher.capabilities().can):
        told = case.operation(1, verb, state)
        stale = Operation(
            id=told.id, job=told.job, kind=verb, expected_generation=state.generation + 1, targets=told.targets,
            plan=told.plan,
        )  # fmt: skip
        report = launcher.submit(stale)
        assert (report.state, report.reason) == ("refused", "stale"), f"a stale {verb} is answered {report}"
        assert launcher.poll(case.job, stale.id).state == "unknown", "what was refused was never accepted"


def an_operation_is_done_once_by_its_id(case: Case) -> None:
    """Asked again, also by a new one, it tells how far it is; the generation rises once."""
    said = case.made().capabilities()
    able, restarts = said.can, said.restarts_to_validate
    nodes = case.made().state(case.job).nodes
    for verb in sorted(able, key=lambda verb: (_TURN.get(verb, 0), verb)):
        launcher = case.made()
        before = launcher.state(case.job)
        if verb == "validate" and before.phase != "failed" and not (before.pausable or restarts):
            continue  # no engine asks for it: the job trains and cannot stand still
        # A job that is starting anew, as after the verb before, is on no nodes.
        operation = case.operation(2, verb, msgspec.structs.replace(before, nodes=before.nodes or nodes))
        report = launcher.submit(operation)
        assert report.operation == operation.id, f"the report must name {operation.id}, not {report.operation}"
        if verb in ("checkpoint", "validate") and (report.state, report.reason) == ("refused", "unfit"):
            assert report.text, "whether ranks can save or be measured is up to the job, but a refusal must say why not"
            continue
        assert report.state in WELL, f"{verb} that fits is answered {report}"
        for again in (launcher.submit(operation), launcher.poll(case.job, operation.id)):
            assert again.state in WELL, f"{verb} asked again is answered {again}"
        if verb != "stop":
            risen = launcher.state(case.job).generation - before.generation
            assert risen == 1, f"asked twice for one {verb}, the generation must rise once, not {risen} times"
        anew = case.made().poll(case.job, operation.id)
        assert anew.state in WELL, f"a launcher that is made anew must know of {verb}, and answers {anew}"


Check = Callable[[Case], None]
CHECKS: Final[tuple[Check, ...]] = (
    it_is_a_plugin,
    it_says_what_it_can_do,
    it_knows_its_jobs,
    what_it_cannot_do_is_refused,
    what_is_stale_is_refused,
    an_operation_is_done_once_by_its_id,
)
