"""The Kubernetes launcher's plug-in: JobSets and PyTorchJobs suspended and resumed, nodes cordoned, pods evicted.

What was accepted stands in an annotation of the job (`note`) before anything is done; nothing is kept here. Whatever is
written names the version that was read, so of two engines only one goes on, and no person's change is overwritten.

What Kubernetes lets this engine do, asked of Kubernetes itself.

Kubernetes' states in the words of launchers.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from trainwarden.actions.launchers.kubernetes.api import Api, Conflict, Missing
from trainwarden.actions.launchers.kubernetes.jobs import KINDS, NOTE, OBJECTS, QUEUE, Job, Kind, KindName
from trainwarden.actions.launchers.kubernetes.nodes import NAME, Nodes
from trainwarden.actions.launchers.kubernetes.note import MAX_WHY_CHARS, Entry, Note, Stage
from trainwarden.actions.launchers.kubernetes.objects import Pod
from trainwarden.actions.launchers.kubernetes.steps import Step, Steps
from trainwarden.errors import LauncherError, LauncherUnavailable
from trainwarden.launching import (
    NODE_VERBS,
    Capabilities,
    JobPhase,
    LauncherState,
    NodeState,
    Operation,
    Report,
    Targets,
    Verb,
    refusal,
    refused,
)
from trainwarden.protocols import Scope
from trainwarden.settings import Config, PositiveSeconds

# A job that is made anew under its name was born later, and no job gets a million operations.
GENERATIONS_OF_A_JOB: Final = 1_000_000
MOVING: Final = ("suspend", "empty", "run")
_FIRST: Final[dict[Verb, Stage]] = {
    "restart": "suspend", "evict": "cordon", "cordon": "cordon", "uncordon": "uncordon", "stop": "stop",
}  # fmt: skip


def generation(job: Job, note: Note) -> int:
    """The job's generation: of its birth, of what was done to it, of others' changes and of restarts by itself."""
    born = job.metadata.creation_timestamp
    others = max(0, job.metadata.generation - note.own) + job.restarts
    return (int(born.timestamp()) if born else 0) * GENERATIONS_OF_A_JOB + note.accepted + others


def phase(job: Job, note: Note, pods: Sequence[Pod]) -> JobPhase:
    """The job's phase."""
    stages = {entry.stage for entry in note.under_way}
    if job.ended:
        return "ended"
    if "stop" in stages:
        return "stopping"
    if stages & set(MOVING):
        return "restarting"
    if job.suspended:
        stopped = bool(note.entries) and (note.entries[-1].kind, note.entries[-1].stage) == ("stop", "done")
        return "ended" if stopped else "paused"
    running = sum(pod.runs for pod in pods)
    if running >= job.pods:
        return "running"
    return "failed" if any(pod.status.phase == "Failed" for pod in pods) else "pending"


def entry_of(operation: Operation, why: str) -> Entry:
    """What is noted of `operation` once it is accepted."""
    return Entry(
        id=operation.id, kind=operation.kind, stage=_FIRST[operation.kind], nodes=operation.targets.nodes, why=why
    )


def dry(operation: Operation, job: Job) -> str:
    """What would be done if this were no dry run."""
    nodes = ", ".join(operation.targets.nodes)
    does = {
        "restart": f"suspend and resume {job.called}",
        "stop": f"suspend {job.called}",
        "cordon": f"cordon {nodes}",
        "uncordon": f"uncordon {nodes}",
        "evict": f"cordon {nodes} and, if {job.called} has pods there, to "
        + ("suspend and resume it" if job.gang else "evict these"),
    }[operation.kind]
    return f"this is a dry run: nothing was done; else Kubernetes would be asked to {does}"


class _Reviewed(msgspec.Struct):
    allowed: bool = False


class _Review(msgspec.Struct):
    status: _Reviewed = msgspec.field(default_factory=_Reviewed)


# Each: the verb of the API, its group (None: of the job's kind) and what it is of.
# Whoever is to be told a job's state reads its nodes: one by one, or of many the list.
_JOBS = (("get", None, ""), ("patch", None, ""), ("list", "", "pods"), ("get", "", "nodes"), ("list", "", "nodes"))
_CORDON = (*_JOBS, ("patch", "", "nodes"))
_NEEDS: dict[Verb, tuple[tuple[str, str | None, str], ...]] = {
    "restart": _JOBS,
    "stop": _JOBS,
    "cordon": _CORDON,
    "uncordon": _CORDON,
    "evict": (*_CORDON, ("create", "", "pods/eviction")),
}


def no_right(api: Api, kind: Kind, namespace: str, conditions: bool) -> dict[Verb, str]:
    """The verbs that may not be done, each with one sentence why not.

    Raises
    ------
    LauncherUnavailable
        If nobody answers.
    """
    answers: dict[tuple[str, str | None, str], bool] = {}
    found: dict[Verb, str] = {}
    for verb, needs in _NEEDS.items():
        status = (("patch", "", "nodes/status"),) if conditions and verb in NODE_VERBS else ()
        for need in (*needs, *status):
            if need not in answers:
                answers[need] = _may(api, kind, namespace, need)
            if not answers[need]:
                does, _, what = need
                where = "" if what.startswith("nodes") else f" in namespace {namespace}"
                hint = ", or set node_conditions = false" if what == "nodes/status" else ""
                found[verb] = f"this engine has no right to {does} {what or kind.resource}{where}{hint}"
                break
    return found


def _may(api: Api, kind: Kind, namespace: str, need: tuple[str, str | None, str]) -> bool:
    verb, group, what = need
    resource, _, part = what.partition("/")
    asked = {
        "verb": verb,
        "group": kind.group if group is None else group,
        "resource": resource or kind.resource,
        **({"subresource": part} if part else {}),
        **({} if resource == "nodes" else {"namespace": namespace}),
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": asked},
    }
    return api.post("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review, _Review).status.allowed


CAN: Final[frozenset[Verb]] = frozenset({"restart", "stop", "cordon", "uncordon", "evict"})
CANNOT: Final[dict[Verb, str]] = {
    "rebalance": "Kubernetes has no part in how a job splits its micro-batches",
    "move": "Kubernetes' scheduler chooses the places of a job's ranks itself; a person must",
    "pause": "this launcher does not pause jobs: their silence would be taken for a hang",
    "resume": "this launcher resumes no job, as it never pauses one",
    "checkpoint": "Kubernetes cannot ask for a checkpoint; the training script writes its own",
    "replace": "an eviction lets Kubernetes choose the nodes that replace others",
}
TRIES: Final = 5  # looks in one call at a job that others change at the same time


class Place(Config, frozen=True, kw_only=True):
    """Where a job is, where that does not follow from its name."""

    namespace: str | None = None
    kind: KindName | None = None
    name: str | None = None


class KubernetesConfig(Config, frozen=True, kw_only=True):
    """Which job is which: an object of `kind` in `namespace` that bears the job's name, unless `jobs` says otherwise.

    `ranks_per_pod` says that ranks lie on pods in the order of their indices; without it nobody knows where ranks are.
    `kubeconfig` and `context` are needed outside of a cluster alone. `timeout_s` is for one request. With
    `node_conditions` a cordoned node has the condition TrainwardenFault too. With `dry_run` all is checked and nothing
    is done.
    """

    namespace: str = "default"
    kind: KindName = "JobSet"
    jobs: dict[str, Place] = msgspec.field(default_factory=dict)
    ranks_per_pod: Annotated[int, msgspec.Meta(ge=1, le=1024)] | None = None
    kubeconfig: str | None = None
    context: str | None = None
    timeout_s: PositiveSeconds = 5.0
    node_conditions: bool = True
    dry_run: bool = False


class _Seen(msgspec.Struct, frozen=True):
    """What was last told of a job. It may not go back behind that."""

    uid: str
    generation: int
    note: Note


class KubernetesLauncher:
    """Restarts, stops and evicts JobSets and PyTorchJobs; cordons nodes."""

    Config = KubernetesConfig

    def __init__(self, config: KubernetesConfig, scope: Scope) -> None:
        self._config = config
        self._api = Api(config.kubeconfig, config.context, config.timeout_s)
        self._nodes = Nodes(self._api, config.node_conditions)
        self._steps = Steps(self._api, self._nodes)
        self._seen: dict[str, _Seen] = {}
        self._lock = threading.Lock()

    @property
    def job(self) -> None:
        """Kubernetes runs many jobs."""
        return None

    def capabilities(self) -> Capabilities:
        """See `trainwarden.launching.Launcher.capabilities`. What this engine has no right to it cannot do."""
        kind = KINDS[self._config.kind]
        missing = no_right(self._api, kind, self._config.namespace, self._config.node_conditions)
        return Capabilities(can=CAN - missing.keys(), cannot={**CANNOT, **missing})

    def state(self, job: str) -> LauncherState:
        """See `trainwarden.launching.Launcher.state`."""
        with self._lock, self._api.about(job):
            found, note = self._look(job)
            pods = self._steps.pods(found)
            now = phase(found, note, pods)
            nodes = self._node_states(found, pods)
        ranks = [rank for pod in pods if pod.runs for rank in self._ranks(found, pod)]
        return LauncherState(
            job=job,
            phase=now,
            generation=generation(found, note),
            attempt=found.restarts + note.moves,
            nodes=nodes,
            ranks_running=tuple(sorted(ranks)) if now == "running" else (),
            under_way=tuple(entry.id for entry in note.under_way),
        )

    def submit(self, operation: Operation) -> Report:
        """See `trainwarden.launching.Launcher.submit`."""
        with self._lock, self._api.about(operation.job):
            for _ in range(TRIES):
                try:
                    return self._submit(operation)
                except Conflict as error:
                    last = error
            raise last

    def poll(self, job: str, operation: str) -> Report:
        """See `trainwarden.launching.Launcher.poll`. Each look takes the steps that are due."""
        with self._lock, self._api.about(job):
            for _ in range(TRIES):
                found, note = self._look(job)
                entry = note.find(operation)
                if entry is None:
                    return Report(operation=operation, state="unknown")
                try:
                    return self._go_on(job, found, note, entry)
                except Conflict as error:
                    last = error
            raise last

    # --- what is true ------------------------------------------------------------------------------------------------

    def _look(self, name: str) -> tuple[Job, Note]:
        """The job and its note. An answer from before what was seen already is none."""
        place = self._config.jobs.get(name) or Place()
        namespace, kind = place.namespace or self._config.namespace, place.kind or self._config.kind
        called = place.name or name
        if not (NAME.fullmatch(called) and NAME.fullmatch(namespace)):
            raise LauncherError(f"'{namespace[:80]}/{called[:80]}' is no name of a job in Kubernetes")
        try:
            job = self._api.get(KINDS[kind].path(namespace, called), OBJECTS[kind]).job()
        except Missing as error:
            raise LauncherError(f"Kubernetes knows no {kind} {namespace}/{called}") from error
        return job, self._noted(name, job)

    def _noted(self, name: str, job: Job) -> Note:
        meta, note, seen = job.metadata, Note.of(job.metadata.annotation(NOTE)), self._seen.get(name)
        if seen is not None and seen.uid == meta.uid:
            if meta.generation < seen.generation:
                told = f"{job.called} had generation {seen.generation} before, {meta.generation} now"
                raise LauncherUnavailable(f"Kubernetes answers with an older state: {told}")
            if note.changes < seen.note.changes:
                note = seen.note.from_the_start()  # a person took it away, or a backup knew less
        self._seen[name] = _Seen(meta.uid, meta.generation, note)
        return note

    def _node_states(self, job: Job, pods: list[Pod]) -> tuple[NodeState, ...]:
        ranks: dict[str, list[int]] = {}
        for pod in pods:
            if pod.live and pod.node and pod.metadata.deletion_timestamp is None:
                ranks.setdefault(pod.node, []).extend(self._ranks(job, pod))
        known = self._nodes.of(sorted(ranks))
        states = []
        for name in sorted(ranks):
            node = known.get(name)
            lost, cordoned = node is None or node.lost, node is not None and node.cordoned
            state = NodeState(
                node=name, state="lost" if lost else "cordoned" if cordoned else "healthy",
                ranks=tuple(sorted(ranks[name])), why="" if node is None else node.mark[:500],
            )  # fmt: skip
            states.append(state)
        return tuple(states)

    def _ranks(self, job: Job, pod: Pod) -> range:
        each, place = self._config.ranks_per_pod, job.place(pod)
        return range(0) if each is None or place is None else range(place * each, (place + 1) * each)

    # --- operations --------------------------------------------------------------------------------------------------

    def _submit(self, operation: Operation) -> Report:
        try:
            job, note = self._look(operation.job)
        except LauncherUnavailable:
            raise
        except LauncherError as error:
            return refused(operation, "unknown_job", str(error))
        if (known := note.find(operation.id)) is not None:
            return self._go_on(operation.job, job, note, known)
        if (no := refusal(operation, self.capabilities(), generation(job, note))) is not None:
            return no
        if operation.kind in NODE_VERBS:
            nodes = self._nodes.known(operation.targets.nodes)
            if isinstance(nodes, str):
                return refused(operation, "unknown_target", nodes)
            operation = msgspec.structs.replace(operation, targets=Targets(nodes=nodes))
        if (no := self._refusal(operation, job, note)) is not None:
            return no
        if self._config.dry_run:
            return refused(operation, "unsupported", dry(operation, job))
        entry = entry_of(operation, operation.why[:MAX_WHY_CHARS])
        after = note.accept(entry)
        job = self._keep(operation.job, job, after)
        return self._go_on(operation.job, job, after, entry)

    def _refusal(self, operation: Operation, job: Job, note: Note) -> Report | None:
        kind, ranks = operation.kind, operation.targets.ranks
        if ranks is not None:
            total = job.pods * (self._config.ranks_per_pod or 0)
            if total and (wrong := [rank for rank in ranks if rank >= total]):
                return refused(operation, "unknown_target", f"rank {wrong[0]} is not one of the job's {total}")
            return refused(operation, "unfit", "whole jobs are suspended and resumed, not single ranks")
        if kind == "uncordon":
            for name in operation.targets.nodes:
                node = self._nodes.get(name)
                if node.cordoned and not node.mark:
                    text = f"{name} was not cordoned by trainwarden: whoever did so runs kubectl uncordon {name}"
                    return refused(operation, "unfit", text)
        if kind in ("cordon", "uncordon"):
            return None
        if job.ended:
            return refused(operation, "over", f"{job.called} has ended as {job.ended}")
        if kind != "stop" and job.metadata.label(QUEUE):
            return refused(operation, "unfit", f"{job.called} is suspended and resumed by Kueue alone; ask Kueue")
        ours = any(entry.stage in MOVING for entry in note.under_way)
        if kind == "restart" and job.suspended and not ours:
            return refused(operation, "unfit", f"{job.called} is suspended: whoever did so resumes it")
        return None

    def _go_on(self, name: str, job: Job, note: Note, entry: Entry) -> Report:
        """Take the steps that are due, as far as they go at this look."""
        text = ""
        while not entry.ended:
            try:
                step = self._steps.next(job, entry)
            except LauncherUnavailable:
                raise
            except LauncherError as error:
                step = Step(entry.failed(str(error)))
            text = step.text or text
            if step.entry == entry and step.suspend is None:
                break
            wanted, entry = step.suspend, step.entry
            after = note.put(entry, wanted, wanted is not None and wanted != job.suspended)
            job = self._keep(name, job, after, wanted)
            if wanted is not None and job.suspended != wanted:  # unknown fields are dropped without a word
                entry = entry.failed(f"this cluster's definition of a {job.kind} knows no suspension; it is too old")
                after = note.put(entry)
                job = self._keep(name, job, after)
            note = after
        return entry.report(text)

    def _keep(self, name: str, job: Job, note: Note, suspend: bool | None = None) -> Job:
        """Write the note into the job's annotation and with it whether it is suspended; the job as it then is.

        Raises
        ------
        Conflict
            If somebody has changed the job since it was read; then nothing is written.
        """
        meta, kind = job.metadata, KINDS[job.kind]
        version = {"annotations": {NOTE: note.written()}, "resourceVersion": meta.resource_version}
        patch = {"metadata": version, **({} if suspend is None else kind.suspension(suspend))}
        after = self._api.patched(kind.path(meta.namespace, meta.name), patch, OBJECTS[job.kind]).job()
        self._seen[name] = _Seen(meta.uid, after.metadata.generation, note)
        return after
