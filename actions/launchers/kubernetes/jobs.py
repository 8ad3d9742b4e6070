"""What Kubernetes says of JobSets and PyTorchJobs, and how one of each is found and suspended."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from trainwarden.actions.launchers.kubernetes.objects import Condition, Meta, Pod

NOTE: Final = "trainwarden/operations"
QUEUE: Final = "kueue.x-k8s.io/queue-name"
KindName = Literal["JobSet", "PyTorchJob"]


class Group(msgspec.Struct, frozen=True):
    """Pods of one name in a job: the place of the first, how many parts there are, and the pods of each."""

    first: int
    parts: int
    each: int


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A JobSet or a PyTorchJob.

    `gang` says that all of its pods must start anew when one does. `ended` is how it ended, empty while it has not.
    """

    metadata: Meta
    kind: KindName
    suspended: bool
    gang: bool
    restarts: int
    ended: str
    groups: dict[str, Group]

    @property
    def pods(self) -> int:
        """How many pods it has when it runs."""
        return sum(group.parts * group.each for group in self.groups.values())

    @property
    def called(self) -> str:
        """What people call it."""
        return f"{self.kind} {self.metadata.namespace}/{self.metadata.name}"

    def place(self, pod: Pod) -> int | None:
        """The pod's place among all; None if its labels do not say."""
        label = pod.metadata.label
        names = _LABELS[self.kind]
        group = self.groups.get(label(names[0]).lower())
        part, within = label(names[1]), label(names[2]) if names[2] else "0"
        if group is None or not (part.isascii() and part.isdigit() and within.isascii() and within.isdigit()):
            return None
        return group.first + int(part) * group.each + int(within)


_LABELS: Final = {
    "JobSet": (
        "jobset.sigs.k8s.io/replicatedjob-name", "jobset.sigs.k8s.io/job-index",
        "batch.kubernetes.io/job-completion-index",
    ),
    "PyTorchJob": ("training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index", ""),
}  # fmt: skip


class Kind(msgspec.Struct, frozen=True):
    """Where objects of a kind are kept, how their pods are found, and how one is suspended."""

    group: str
    version: str
    resource: str
    pods_by: str
    suspend: tuple[str, ...]

    def path(self, namespace: str, name: str) -> str:
        """Where the object is."""
        return f"/apis/{self.group}/{self.version}/namespaces/{namespace}/{self.resource}/{name}"

    def suspension(self, wanted: bool) -> dict[str, Any]:
        """What a patch says of it."""
        said: Any = wanted
        for word in reversed(self.suspend):
            said = {word: said}
        return {"spec": said}


KINDS: Final[dict[KindName, Kind]] = {
    "JobSet": Kind("jobset.x-k8s.io", "v1alpha2", "jobsets", "jobset.sigs.k8s.io/jobset-name", ("suspend",)),
    "PyTorchJob": Kind("kubeflow.org", "v1", "pytorchjobs", "training.kubeflow.org/job-name", ("runPolicy", "suspend")),
}


class _Parallel(msgspec.Struct, frozen=True):
    parallelism: int | None = None


class _Template(msgspec.Struct, frozen=True):
    spec: _Parallel = _Parallel()


class _ReplicatedJob(msgspec.Struct, frozen=True):
    name: str
    replicas: int = 1
    template: _Template = _Template()


class _JobSetSpec(msgspec.Struct, frozen=True, rename="camel"):
    suspend: bool | None = None
    replicated_jobs: list[_ReplicatedJob] | None = None


class _JobStatus(msgspec.Struct, frozen=True):
    restarts: int = 0
    conditions: list[Condition] | None = None

    @property
    def ended(self) -> str:
        ends = ("Completed", "Succeeded", "Failed")
        return next((one.type for one in self.conditions or () if one.type in ends and one.status == "True"), "")


class JobSet(msgspec.Struct, frozen=True):
    """As the API server tells it."""

    metadata: Meta
    spec: _JobSetSpec = _JobSetSpec()
    status: _JobStatus = _JobStatus()

    def job(self) -> Job:
        """The same, as a job."""
        groups, first = {}, 0
        for one in self.spec.replicated_jobs or ():
            each = 1 if one.template.spec.parallelism is None else one.template.spec.parallelism
            groups[one.name.lower()] = Group(first, one.replicas, each)
            first += one.replicas * each
        return Job(
            metadata=self.metadata, kind="JobSet", suspended=bool(self.spec.suspend), gang=True,
            restarts=self.status.restarts, ended=self.status.ended, groups=groups,
        )  # fmt: skip


class _Replicas(msgspec.Struct, frozen=True):
    replicas: int | None = None


class _RunPolicy(msgspec.Struct, frozen=True):
    suspend: bool | None = None


class _PyTorchJobSpec(msgspec.Struct, frozen=True, rename={
    "run_policy": "runPolicy", "elastic_policy": "elasticPolicy", "replica_specs": "pytorchReplicaSpecs"}):  # fmt: skip
    run_policy: _RunPolicy | None = None
    elastic_policy: dict[str, Any] | None = None
    replica_specs: dict[str, _Replicas] | None = None


class PyTorchJob(msgspec.Struct, frozen=True):
    """As the API server tells it."""

    metadata: Meta
    spec: _PyTorchJobSpec = _PyTorchJobSpec()
    status: _JobStatus = _JobStatus()

    def job(self) -> Job:
        """The same, as a job; the master has the first place. An elastic one takes in a pod that comes anew."""
        groups, first = {}, 0
        for name, one in sorted((self.spec.replica_specs or {}).items()):
            count = 1 if one.replicas is None else one.replicas
            groups[name.lower()] = Group(first, count, 1)
            first += count
        suspend = self.spec.run_policy.suspend if self.spec.run_policy else None
        return Job(
            metadata=self.metadata, kind="PyTorchJob", suspended=bool(suspend), gang=self.spec.elastic_policy is None,
            restarts=0, ended=self.status.ended, groups=groups,
        )  # fmt: skip


OBJECTS: Final[dict[KindName, type[JobSet] | type[PyTorchJob]]] = {"JobSet": JobSet, "PyTorchJob": PyTorchJob}
