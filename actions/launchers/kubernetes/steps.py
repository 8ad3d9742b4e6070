"""What an operation does to a job, step by step: each step is due by what is true now, not by what was asked.

Pods of one gang start anew together: the job is suspended, and resumed once its pods are gone. Deleting or evicting one
of them instead counts as its failure, which may end the job for good; so an eviction is asked for as a dry run, which
tells whether disruption budgets allow it. A PyTorchJob that is elastic has single pods evicted.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import msgspec

from trainwarden.actions.launchers.kubernetes.api import Api, Conflict, Denied, Missing
from trainwarden.actions.launchers.kubernetes.jobs import KINDS, Job
from trainwarden.actions.launchers.kubernetes.nodes import Nodes
from trainwarden.actions.launchers.kubernetes.note import Entry
from trainwarden.actions.launchers.kubernetes.objects import Pod


class Step(msgspec.Struct, frozen=True):
    """What is to be written now: the operation as it then is, and whether the job is suspended; a word for people."""

    entry: Entry
    text: str = ""
    suspend: bool | None = None


class Steps:
    """Knows the next step of each operation."""

    def __init__(self, api: Api, nodes: Nodes) -> None:
        self._api, self._nodes = api, nodes

    def next(self, job: Job, entry: Entry) -> Step:
        """The step that is due; one that changes nothing waits.

        Raises
        ------
        LauncherUnavailable
            If Kubernetes is away in the midst of it, or something has changed since it was read. The next look goes on.
        LauncherError
            If it refuses.
        """
        match entry.stage:
            case "cordon":
                return self._cordon(entry)
            case "uncordon":
                for node in entry.nodes:
                    self._nodes.uncordon(node, entry.id)
                return Step(entry.done())
            case "evict":
                return self._evict(job, entry)
            case "suspend" | "empty" | "run" if job.ended:
                gone = f"{job.called} has ended as {job.ended}"
                # The nodes are out all the same, and there is nothing left to take off them.
                return Step(entry.done(gone) if entry.kind == "evict" else entry.failed(gone))
            case "suspend":
                return Step(entry.at("empty"), suspend=True)
            case "empty":
                return self._empty(job, entry)
            case "run":
                return self._run(job, entry)
        return self._stop(job, entry)

    def pods(self, job: Job) -> list[Pod]:
        """The job's pods, those that have ended included."""
        path = f"/api/v1/namespaces/{job.metadata.namespace}/pods"
        return self._api.list(path, Pod, labelSelector=f"{KINDS[job.kind].pods_by}={job.metadata.name}")

    def _cordon(self, entry: Entry) -> Step:
        left = [said for node in entry.nodes if (said := self._nodes.cordon(node, entry.id, entry.why))]
        if entry.kind == "cordon":
            return Step(entry.done("; ".join(left)))
        return Step(entry.at("evict"), "; ".join(left))

    def _evict(self, job: Job, entry: Entry) -> Step:
        """Ask the pods off the nodes; a job that has none there is left alone."""
        there = [] if job.ended else [pod for pod in self.pods(job) if pod.node in entry.nodes and pod.live]
        if not there:
            return Step(entry.done())
        for pod in there:
            if pod.metadata.deletion_timestamp is None and (no := self._ask_off(pod, only_ask=job.gang)):
                return Step(entry, f"pod {pod.metadata.name} may not be disrupted now ({no})")
        return Step(entry.at("suspend" if job.gang else "run"))

    def _ask_off(self, pod: Pod, only_ask: bool) -> str:
        """Why a pod may not be evicted now; it and no other of its name, as a successor bears another UID."""
        meta = pod.metadata
        options: dict[str, Any] = {"preconditions": {"uid": meta.uid}, **({"dryRun": ["All"]} if only_ask else {})}
        eviction = {
            "apiVersion": "policy/v1", "kind": "Eviction", "deleteOptions": options,
            "metadata": {"name": meta.name, "namespace": meta.namespace},
        }  # fmt: skip
        path = f"/api/v1/namespaces/{meta.namespace}/pods/{quote(meta.name)}/eviction"
        try:
            self._api.ask("POST", path, eviction)
        except Denied as error:
            return str(error)
        except (Missing, Conflict):
            pass  # it has gone by itself
        return ""

    def _empty(self, job: Job, entry: Entry) -> Step:
        """Let the job go on once its pods have gone; those that die on a lost node would never."""
        if not job.suspended:
            return Step(entry.at("run"))  # somebody was quicker
        if left := self._left(job):
            return Step(entry, f"{job.called} is suspended; {len(left)} of its pods have not ended ({left[0]})")
        return Step(entry.at("run"), suspend=False)

    def _run(self, job: Job, entry: Entry) -> Step:
        if job.suspended:
            return Step(entry, f"{job.called} is suspended, not by this operation")
        running = [pod for pod in self.pods(job) if pod.runs]
        if len(running) < job.pods:
            return Step(entry, f"{len(running)} of {job.pods} pods of {job.called} run")
        if still := {pod.node for pod in running} & set(entry.nodes):
            return Step(entry.failed(f"{job.called} runs on {', '.join(sorted(still))} again"))
        return Step(entry.done())

    def _stop(self, job: Job, entry: Entry) -> Step:
        if not job.ended and not job.suspended:
            return Step(entry, suspend=True)
        left = [] if job.ended else self._left(job)
        return Step(entry, f"{len(left)} pods of {job.called} have not ended") if left else Step(entry.done())

    def _left(self, job: Job) -> list[str]:
        """Pods that may still have processes, those being deleted on lost nodes not counted."""
        live = [pod for pod in self.pods(job) if pod.live]
        dying = sorted({pod.node for pod in live if pod.metadata.deletion_timestamp is not None and pod.node})
        known = self._nodes.of(dying)
        lost = {name for name in dying if name not in known or known[name].lost}
        return [
            pod.metadata.name
            for pod in live
            if pod.metadata.deletion_timestamp is None or (pod.node and pod.node not in lost)
        ]
