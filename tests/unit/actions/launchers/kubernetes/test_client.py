"""The Kubernetes launcher against a Kubernetes in memory: steps, persons' words, rights, dry runs, odd answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.doubles import ManualClock
from tests.unit.actions.launchers.kubernetes.kube_double import KubeDouble
from trainwarden.actions.launchers.kubernetes.client import KubernetesConfig, KubernetesLauncher, Place
from trainwarden.actions.launchers.kubernetes.note import MAX_ENTRIES, Entry, Note
from trainwarden.errors import ConfigError, LauncherError, LauncherUnavailable
from trainwarden.launching import NODE_VERBS, Operation, Report, Targets, Verb
from trainwarden.protocols import Scope

SUSPEND, RESUME = 'job {"suspend": true}', 'job {"suspend": false}'
CORDON, UNCORDON = 'n1 {"unschedulable": true}', 'n1 {"unschedulable": false}'


class Desk:
    """A launcher, its Kubernetes, and the clock that its pauses go by."""

    def __init__(self, kube: KubeDouble) -> None:
        self.kube, self.clock = kube, ManualClock(1000.0)
        self.instead: tuple[int, bytes] | LauncherUnavailable | None = None
        self.asked = 0
        self.launcher = self.made()

    def made(self, **settings: Any) -> KubernetesLauncher:
        settings = {"kind": self.kube.kind, "ranks_per_pod": 2, **settings}
        pytest.importorskip("kubernetes", reason="pip install 'trainwarden[kubernetes]'")
        launcher = KubernetesLauncher(KubernetesConfig(**settings), Scope(job="job", node="n0", run_dir="."))
        launcher._api._exchange = self.exchange  # type: ignore[method-assign]
        launcher._api._monotonic_s = self.clock.monotonic_s
        launcher._nodes._now_s = self.clock.now_s
        return launcher

    def exchange(self, method: str, path: str, body: object, media: str) -> tuple[int, bytes]:
        self.asked += 1
        if isinstance(self.instead, LauncherUnavailable):
            raise self.instead
        return self.instead or self.kube.exchange(method, path, body, media)

    def operation(self, kind: Verb = "evict", name: str = "op", node: str = "n1") -> Operation:
        targets = Targets(nodes=(node,)) if kind in NODE_VERBS else Targets()
        generation = self.launcher.state("job").generation
        return Operation(id=name, job="job", kind=kind, expected_generation=generation, targets=targets, why="why")

    def submit(self, kind: Verb = "evict", name: str = "op", node: str = "n1") -> Report:
        return self.launcher.submit(self.operation(kind, name, node))

    def poll(self, name: str = "op") -> Report:
        return self.launcher.poll("job", name)

    def to_the_end(self, name: str = "op") -> Report:
        for _ in range(10):
            self.kube.play()
            if (report := self.poll(name)).ended:
                return report
        raise AssertionError(report)


@pytest.fixture(params=["JobSet", "PyTorchJob"])
def any_desk(request: pytest.FixtureRequest) -> Desk:
    return Desk(KubeDouble(request.param))


@pytest.fixture
def desk() -> Desk:
    return Desk(KubeDouble())


def test_the_state_of_a_job(any_desk: Desk) -> None:
    state = any_desk.launcher.state("job")
    assert (state.phase, state.ranks_running, state.attempt) == ("running", (0, 1, 2, 3), 0)
    assert [(node.node, node.ranks) for node in state.nodes] == [("n1", (0, 1)), ("n2", (2, 3))]


def test_an_eviction_step_by_step(desk: Desk) -> None:
    report = desk.submit()
    assert report.text.startswith("JobSet default/job is suspended; 2 of its pods have not ended (job-0-")
    assert desk.launcher.state("job").phase == "restarting"
    desk.kube.play()
    assert desk.poll().text == "0 of 2 pods of JobSet default/job run"
    desk.kube.play()
    assert desk.poll() == Report(operation="op", state="done")
    assert desk.kube.said == [CORDON, "condition n1 True", SUSPEND, RESUME]
    assert desk.kube.on == ["n2", "n3"]
    assert desk.made().poll("job", "op").state == "done"
    assert desk.kube.job is not None
    assert desk.kube.job["metadata"]["annotations"]["theirs"] == "kept"
    assert desk.kube.nodes["n1"]["metadata"]["annotations"] == {"trainwarden/cordoned": "op why"}


def test_an_elastic_job_has_the_pod_evicted_and_goes_on() -> None:
    desk = Desk(KubeDouble("PyTorchJob", elastic=True))
    [pod] = [name for name, one in desk.kube.pods.items() if one["spec"]["nodeName"] == "n1"]
    assert desk.submit().text == "1 of 2 pods of PyTorchJob default/job run"
    assert desk.to_the_end().state == "done"
    assert desk.kube.said == [CORDON, "condition n1 True", f"evict {pod}"]
    assert desk.kube.on == ["n2", "n3"]


def test_a_restart_suspends_and_resumes_once(any_desk: Desk) -> None:
    before = any_desk.launcher.state("job")
    operation = any_desk.operation("restart")
    assert [any_desk.launcher.submit(operation).state for _ in range(3)] == ["running"] * 3
    assert any_desk.launcher.state("job").generation == before.generation + 1
    assert any_desk.to_the_end().state == "done"
    assert any_desk.launcher.submit(operation).state == "done"
    assert len(any_desk.kube.said) == 2
    after = any_desk.launcher.state("job")
    assert (after.attempt, after.generation, after.phase) == (1, before.generation + 1, "running")


def test_a_stop_suspends_and_a_person_may_resume(any_desk: Desk) -> None:
    assert any_desk.submit("stop").state == "running"
    assert any_desk.launcher.state("job").phase == "stopping"
    assert any_desk.to_the_end().state == "done"
    assert any_desk.launcher.state("job").phase == "ended"
    any_desk.kube.suspend(False)
    any_desk.kube.play()
    assert any_desk.launcher.state("job").phase == "running"


def test_a_restart_under_way_serves_another_and_a_stop_ends_both(desk: Desk) -> None:
    desk.submit("restart", "first")
    desk.submit("restart", "second")
    assert [desk.to_the_end(name).state for name in ("second", "first")] == ["done", "done"]
    assert desk.kube.said == [SUSPEND, RESUME]
    desk.submit("restart", "third")
    desk.submit("stop", "last")
    assert desk.poll("third").text == "the job was stopped by last"
    assert desk.to_the_end("last").state == "done"
    assert desk.kube.suspended


@pytest.mark.parametrize("mark", ["", "i9/evict/1 an older one"])
def test_a_node_that_is_cordoned_already_is_left_as_it_is(desk: Desk, mark: str) -> None:
    desk.kube.nodes["n1"]["spec"]["unschedulable"] = True
    if mark:
        desk.kube.nodes["n1"]["metadata"]["annotations"] = {"trainwarden/cordoned": mark}
    desk.submit()
    assert desk.to_the_end().state == "done"
    assert desk.kube.said == [SUSPEND, RESUME]
    assert desk.kube.nodes["n1"]["metadata"].get("annotations", {}).get("trainwarden/cordoned", "") == mark
    report = desk.submit("cordon", "other")
    assert (report.state, report.text) == (
        "done", f"n1 was cordoned already ({mark or 'not by trainwarden'}) and is left as it is",
    )  # fmt: skip


def test_one_node_alone_is_cordoned_and_uncordoned(desk: Desk) -> None:
    assert desk.submit("cordon", "on").state == "done"
    assert desk.submit("cordon", "again").text == "n1 was cordoned already (on why) and is left as it is"
    assert desk.launcher.state("job").nodes[0].state == "cordoned"
    assert desk.submit("uncordon", "off").state == "done"
    assert desk.submit("uncordon", "off again").state == "done"
    assert desk.kube.said == [CORDON, "condition n1 True", UNCORDON, "condition n1 False"]
    assert desk.launcher.state("job").phase == "running"
    desk.kube.nodes["n1"]["spec"]["unschedulable"] = True
    report = desk.submit("uncordon", "theirs")
    assert (report.state, report.reason) == ("refused", "unfit")
    assert report.text == "n1 was not cordoned by trainwarden: whoever did so runs kubectl uncordon n1"


def test_a_node_that_a_person_has_put_back_loses_our_mark_alone(desk: Desk) -> None:
    desk.submit("cordon", "on")
    desk.kube.nodes["n1"]["spec"]["unschedulable"] = False
    assert desk.poll("on").state == "done"
    assert not desk.kube.nodes["n1"]["spec"]["unschedulable"]
    desk.submit("uncordon", "off")
    assert desk.kube.nodes["n1"]["metadata"]["annotations"] == {}
    assert desk.kube.said == [CORDON, "condition n1 True", "condition n1 False"]


def test_a_node_that_the_job_is_not_on_is_cordoned_and_the_job_left_alone(desk: Desk) -> None:
    assert desk.submit(node="n3").state == "done"
    assert desk.kube.said == ['n3 {"unschedulable": true}', "condition n3 True"]


def test_a_disruption_budget_is_obeyed(any_desk: Desk) -> None:
    any_desk.kube.budget = "Cannot evict pod as it would violate the pod's disruption budget."
    assert "Cannot evict pod as it would violate" in any_desk.submit().text
    any_desk.kube.play()
    assert not any_desk.poll().ended
    assert any_desk.kube.said == [CORDON, "condition n1 True"]
    assert any_desk.launcher.state("job").phase == "running"
    any_desk.kube.budget = ""
    any_desk.poll()
    assert any_desk.to_the_end().state == "done"


def test_pods_that_die_on_a_lost_node_are_not_waited_for(desk: Desk) -> None:
    desk.kube.nodes["n1"]["status"]["conditions"][0]["status"] = "Unknown"
    assert desk.launcher.state("job").nodes[0].state == "lost"
    desk.submit()
    assert desk.to_the_end().state == "done"
    assert desk.kube.on == ["n2", "n3"]
    assert len(desk.kube.pods) == 3


def test_who_resumes_or_suspends_the_job_meanwhile_is_obeyed(desk: Desk) -> None:
    desk.submit("restart")
    desk.kube.suspend(False)
    desk.kube.play()
    assert desk.poll().state == "done"
    assert desk.kube.said == [SUSPEND]
    desk.submit("restart", "second")
    desk.kube.play()
    desk.poll("second")
    desk.kube.suspend(True)
    desk.kube.play()
    assert desk.poll("second").text == "JobSet default/job is suspended, not by this operation"
    assert desk.kube.suspended


@pytest.mark.parametrize(("kind", "reason"), [("restart", "unfit"), ("evict", None), ("stop", None)])
def test_a_job_that_a_person_has_suspended_is_not_resumed(desk: Desk, kind: Verb, reason: str | None) -> None:
    desk.kube.suspend(True)
    desk.kube.play()
    assert desk.launcher.state("job").phase == "paused"
    report = desk.submit(kind)
    assert (report.reason, report.state) == (reason, "refused" if reason else "done")
    assert desk.kube.suspended


def test_a_job_of_kueue_is_left_to_kueue(desk: Desk) -> None:
    assert desk.kube.job is not None
    desk.kube.job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "research"}
    for kind in ("restart", "evict"):
        report = desk.submit(kind, kind)
        assert report.text == "JobSet default/job is suspended and resumed by Kueue alone; ask Kueue"
    assert desk.kube.said == []


@pytest.mark.parametrize("how", ["Completed", "Succeeded", "Failed"])
def test_what_is_over_is_over(any_desk: Desk, how: str) -> None:
    kube = any_desk.kube
    operation = any_desk.operation("restart", "early")
    any_desk.launcher.submit(operation)
    assert kube.job is not None
    kube.job["status"]["conditions"] = [{"type": how, "status": "True"}]
    assert any_desk.launcher.state("job").phase == "ended"
    assert any_desk.poll("early").text == f"{kube.kind} default/job has ended as {how}"
    assert any_desk.submit("restart").reason == "over"
    assert any_desk.submit("cordon", "node").state == "done"


def test_another_persons_change_makes_a_plan_stale(desk: Desk) -> None:
    operation = desk.operation("restart")
    assert desk.kube.job is not None
    desk.kube.job["metadata"]["generation"] += 1
    assert desk.launcher.submit(operation).reason == "stale"
    operation = desk.operation("restart")
    desk.kube.job["status"]["restarts"] = 1
    assert desk.launcher.submit(operation).reason == "stale"


def test_a_change_in_the_same_moment_is_looked_at_again(desk: Desk) -> None:
    real, left = desk.kube.exchange, [3]

    def meanwhile(method: str, path: str, body: Any, media: str) -> tuple[int, bytes]:
        if method == "PATCH" and left[0]:
            left[0] -= 1
            desk.kube.touch(desk.kube.job if path == desk.kube.path else desk.kube.nodes["n1"])  # type: ignore[arg-type]
        return real(method, path, body, media)

    desk.kube.exchange = meanwhile  # type: ignore[method-assign]
    assert desk.submit().state == "running"
    assert desk.to_the_end().state == "done"
    assert desk.kube.said == [CORDON, "condition n1 True", SUSPEND, RESUME]
    left[0] = 99
    with pytest.raises(LauncherUnavailable, match="the object has been modified"):
        desk.submit("restart", "other")


def test_an_older_state_is_no_answer_and_a_note_that_was_taken_away_comes_back(desk: Desk) -> None:
    desk.submit()
    desk.to_the_end()
    assert desk.kube.job is not None
    desk.kube.job["metadata"]["generation"] -= 1
    with pytest.raises(LauncherUnavailable, match="an older state: JobSet default/job had generation 3 before, 2 now"):
        desk.launcher.state("job")
    desk.kube.job["metadata"]["generation"] += 1
    desk.kube.job["metadata"]["annotations"] = {}
    assert desk.poll().state == "done"
    assert desk.submit("cordon", "other", "n4").state == "done"
    assert '"op"' in desk.kube.job["metadata"]["annotations"]["trainwarden/operations"]


def test_a_job_made_anew_under_its_name_has_none_of_the_old_ones_operations(desk: Desk) -> None:
    operation = desk.operation("restart")
    desk.kube.job = KubeDouble().job
    assert desk.kube.job is not None
    desk.kube.job["metadata"] |= {"uid": "another", "creationTimestamp": "2026-01-01T00:00:01Z"}
    assert desk.launcher.submit(operation).reason == "stale"
    assert desk.poll().state == "unknown"


def test_many_nodes_are_read_from_the_list_and_no_others(desk: Desk) -> None:
    desk.kube.nodes |= {f"m{number}": {"metadata": {"name": f"m{number}"}, "spec": {}} for number in range(40)}
    names = [f"m{number}" for number in range(39)]
    found = desk.launcher._nodes.of([*names, "gone"])
    assert sorted(found) == sorted(names)
    assert all(node.metadata.name == name for name, node in found.items())
    assert desk.asked == 22  # pages of two


@pytest.mark.parametrize(
    ("right", "verbs"),
    [
        ("patch jobsets", {"restart", "stop", "evict", "cordon", "uncordon"}),
        ("get nodes", {"restart", "stop", "evict", "cordon", "uncordon"}),
        ("list nodes", {"restart", "stop", "evict", "cordon", "uncordon"}),
        ("patch nodes", {"evict", "cordon", "uncordon"}),
        ("patch nodes/status", {"evict", "cordon", "uncordon"}),
        ("create pods/eviction", {"evict"}),
    ],
)
def test_what_the_engine_has_no_right_to_it_says_that_it_cannot_do(desk: Desk, right: str, verbs: set[Verb]) -> None:
    desk.kube.denied.add(right)
    able = desk.launcher.capabilities()
    missing = {verb for verb in ("restart", "stop", "evict", "cordon", "uncordon") if verb not in able.can}
    assert missing == verbs
    assert all(f"this engine has no right to {right}" in (able.refusal(verb) or "") for verb in verbs)
    report = desk.submit("evict")
    assert (report.reason, report.text) == ("unsupported", able.refusal("evict"))
    if right == "patch nodes/status":
        assert "evict" in desk.made(node_conditions=False).capabilities().can


def test_a_dry_run_says_what_would_be_done_and_does_nothing(any_desk: Desk) -> None:
    dry = any_desk.made(dry_run=True)
    report = dry.submit(any_desk.operation())
    called = f"{any_desk.kube.kind} default/job"
    assert (report.state, report.reason) == ("refused", "unsupported")
    assert report.text == (
        "this is a dry run: nothing was done; else Kubernetes would be asked to cordon n1 and, if "
        f"{called} has pods there, to suspend and resume it"
    )
    for kind in ("restart", "stop", "cordon", "uncordon"):
        assert "nothing was done" in dry.submit(any_desk.operation(kind)).text
    assert any_desk.kube.said == []


def test_what_kubernetes_refuses_ends_the_operation_with_its_words(desk: Desk) -> None:
    operation = desk.operation("restart")
    desk.kube.refusing = 'jobsets "job" is forbidden: a webhook denied the request'
    with pytest.raises(LauncherError, match=r"Kubernetes says: jobsets .* a webhook denied the request"):
        desk.launcher.submit(operation)


def test_a_definition_without_suspension_is_said_to_be_too_old(any_desk: Desk) -> None:
    any_desk.kube.drops = True
    before = any_desk.launcher.state("job").generation
    report = any_desk.submit("restart")
    assert (report.state, "knows no suspension; it is too old" in report.text) == ("failed", True)
    assert any_desk.launcher.state("job").generation == before + 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, b'{"message": "Unauthorized"}'), "Kubernetes says: Unauthorized"),
        ((429, b"slow down"), "Kubernetes says: 429 to GET"),
        ((410, b'{"message": "The provided continue parameter is too old"}'), "continue parameter is too old"),
        ((500, b"{}"), "Kubernetes says: 500 to GET"),
        ((500, b'{"x": ' + b"[" * 100_000), "Kubernetes says: 500 to GET"),
        ((302, b""), "Kubernetes says: 302 to GET"),
        ((103, b"{}"), "Kubernetes says: 103 to GET"),
        ((200, b"[]"), "cannot be read"),
        ((200, b"[" * 100_000), "cannot be read"),
        ((200, b'{"metadata": {"name": "job", "generation": "x"}}'), "cannot be read"),
    ],
)
def test_whatever_is_no_answer_says_nothing_of_the_operation(desk: Desk, answer: tuple[int, bytes], said: str) -> None:
    operation = desk.operation()
    desk.instead = answer
    for question in (lambda: desk.launcher.submit(operation), desk.poll, lambda: desk.launcher.state("job")):
        with pytest.raises(LauncherUnavailable, match=said):
            question()


def test_one_that_was_silent_is_left_alone_for_as_long(desk: Desk) -> None:
    desk.instead = LauncherUnavailable("Kubernetes did not answer within 5 s")
    for _ in range(10):
        with pytest.raises(LauncherUnavailable, match="did not answer within 5 s"):
            desk.launcher.state("job")
    assert desk.asked == 1
    desk.clock.sleep(5.0)
    desk.instead = None
    assert desk.launcher.state("job").phase == "running"


@pytest.mark.parametrize("job", ["", "Job", "../nodes/n1", "job?watch=1", "a/b", "x" * 300])
def test_what_is_no_name_of_a_job_asks_nothing(desk: Desk, job: str) -> None:
    with pytest.raises(LauncherError, match="is no name of a job in Kubernetes"):
        desk.launcher.state(job)
    assert desk.asked == 0
    with pytest.raises(LauncherError, match="Kubernetes knows no JobSet default/another"):
        desk.launcher.state("another")


def test_jobs_may_be_named_otherwise_and_hosts_have_domains(desk: Desk) -> None:
    named = desk.made(jobs={"llama": Place(name="job")})
    assert named.state("llama").phase == "running"
    assert desk.submit(node="n3.cluster.example").state == "done"
    assert desk.submit(name="other", node="n9.cluster.example").text == "Kubernetes knows no node n9.cluster.example"


def test_the_note_forgets_the_oldest_that_have_ended() -> None:
    note = Note().accept(Entry(id="under way", kind="restart", stage="run"))
    for number in range(100):
        note = note.accept(Entry(id=f"op/{number}", kind="restart", stage="suspend"))
        note = note.put(Entry(id=f"op/{number}", kind="restart", stage="suspend").done("x" * 999))
    assert (len(note.entries), note.accepted) == (MAX_ENTRIES, 101)
    assert (note.entries[0].id, note.entries[-1].id) == ("under way", "op/99")
    assert Note.of(note.written()) == note
    assert msgspec.json.decode(note.written())["accepted"] == 101


def test_without_the_client_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "kubernetes", None)
    with pytest.raises(ConfigError, match=r"needs pip install 'trainwarden\[kubernetes\]'"):
        KubernetesLauncher(KubernetesConfig(), Scope(job="job", node="n0", run_dir="."))
