"""A cluster on a real API server: its nodes are objects alone.

What controllers, the scheduler and kubelets would do to JobSets and PyTorchJobs is played here, by the same requests.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import ssl
import threading
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from tests.servers.kafka import ServerMissing
from tests.servers.kubernetes import Kubernetes, job_crds
from tests.servers.missing import refuse

NODES: Final = ("n1", "n2", "n3", "n4")
PERIOD_S: Final = 0.05
Object = dict[str, Any]
KINDS: Final = {
    "JobSet": ("/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets", "jobset.sigs.k8s.io/jobset-name"),
    "PyTorchJob": ("/apis/kubeflow.org/v1/namespaces/default/pytorchjobs", "training.kubeflow.org/job-name"),
}
TEMPLATE: Final = {"spec": {"containers": [{"name": "pytorch", "image": "example"}]}}
# What an engine asks for (actions/launchers/kubernetes); the chart gives more.
RIGHTS: Final = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: engine}
rules:
- {apiGroups: [""], resources: [nodes], verbs: [get, list, patch]}
- {apiGroups: [""], resources: [nodes/status], verbs: [patch]}
- {apiGroups: [""], resources: [pods], verbs: [list]}
- {apiGroups: [""], resources: [pods/eviction], verbs: [create]}
- {apiGroups: [jobset.x-k8s.io], resources: [jobsets], verbs: [get, patch]}
- {apiGroups: [kubeflow.org], resources: [pytorchjobs], verbs: [get, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: engine}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: engine}
subjects: [{kind: User, name: engine, apiGroup: rbac.authorization.k8s.io}]
"""


class KubeCluster:
    """Four nodes, and whoever plays the controllers; started pods are told by `starts`."""

    def __init__(self, folder: Path) -> None:
        self.server = Kubernetes(folder)
        self._crds = job_crds()
        self._context = ssl._create_unverified_context()
        self._over, self._round = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._play, daemon=True)
        self.started: list[tuple[str, str, int, str]] = []  # kind, job, place, node
        self.errors: list[str] = []
        self.idle = False

    def start(self) -> None:
        self.server.start()
        self.server.apply(self._crds)
        self.grant()
        for name in NODES:
            self.ask("POST", "/api/v1/nodes", {"metadata": {"name": name}})
            self.ready(name, "True")
        self._thread.start()

    def grant(self) -> None:
        """Give the engine its rights."""
        words = ("apply", "--server-side", "--force-conflicts", "--filename", "-")
        done = self.server.kubectl(*words, stdin=RIGHTS)
        assert done.returncode == 0, done.stderr

    def stop(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(10.0)
        self.server.stop()

    # --- what tests ask and do ---------------------------------------------------------------------------------------

    def ask(self, method: str, path: str, body: Object | None = None, media: str = "application/json") -> Any:
        """What the API server answers to an administrator; None if there is no such object."""
        headers = {"Authorization": f"Bearer {self.server.token}", "Content-Type": media}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=10.0, context=self._context) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            if error.code in (404, 409):
                return None
            raise AssertionError(f"{method} {path}: {error.read()[:500]!r}") from error

    def merge(self, path: str, body: Object) -> Any:
        return self.ask("PATCH", path, body, "application/merge-patch+json")

    def ready(self, node: str, status: str) -> None:
        """What a node's kubelet says of it, or what is said of one that is silent."""
        body = {"status": {"conditions": [{"type": "Ready", "status": status}]}}
        self.ask("PATCH", f"/api/v1/nodes/{node}/status", body, "application/strategic-merge-patch+json")

    def node(self, name: str) -> Object:
        return self.ask("GET", f"/api/v1/nodes/{name}")

    def job(self, kind: str, name: str) -> Object:
        return self.ask("GET", f"{KINDS[kind][0]}/{name}")

    def submit(self, kind: str, name: str, elastic: bool = False) -> None:
        """A job of two pods."""
        spec: Object = {
            "replicatedJobs": [
                {
                    "name": "workers",
                    "replicas": 1,
                    "template": {
                        "spec": {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": TEMPLATE}
                    },
                }
            ]
        }
        if kind == "PyTorchJob":
            replica = {"replicas": 1, "template": TEMPLATE}
            spec = {"pytorchReplicaSpecs": {"Master": replica, "Worker": replica}}
            spec |= {"elasticPolicy": {"minReplicas": 1}} if elastic else {}
        versions = {"JobSet": "jobset.x-k8s.io/v1alpha2", "PyTorchJob": "kubeflow.org/v1"}
        body = {"apiVersion": versions[kind], "kind": kind, "metadata": {"name": name}, "spec": spec}
        assert self.ask("POST", KINDS[kind][0], body) is not None

    def pods(self, kind: str, name: str) -> list[Object]:
        label = quote(f"{KINDS[kind][1]}={name}")
        return list(self.ask("GET", f"/api/v1/namespaces/default/pods?labelSelector={label}")["items"])

    def clean(self) -> None:
        """No jobs, pods or budgets; nodes as at first. Who plays would meanwhile make pods of a job that is gone."""
        with self._round:
            for path, _ in KINDS.values():
                for job in self.ask("GET", path)["items"]:
                    self.ask("DELETE", f"{path}/{job['metadata']['name']}")
            for pod in self.ask("GET", "/api/v1/namespaces/default/pods")["items"]:
                self._delete(pod)
            self.ask("DELETE", "/apis/policy/v1/namespaces/default/poddisruptionbudgets")
            for name in NODES:
                annotations = dict.fromkeys(self.node(name)["metadata"].get("annotations", {}))
                body = {"metadata": {"annotations": annotations}, "spec": {"unschedulable": None}}
                self.merge(f"/api/v1/nodes/{name}", body)
                self.merge(f"/api/v1/nodes/{name}/status", {"status": {"conditions": None}})
                self.ready(name, "True")
            self.started.clear()
        assert not self.errors, self.errors

    # --- what others do ----------------------------------------------------------------------------------------------

    def _play(self) -> None:
        while not self._over.wait(PERIOD_S):
            if self.idle:
                continue
            try:
                with self._round:
                    for kind, (path, _) in KINDS.items():
                        for job in self.ask("GET", path)["items"]:
                            self._look_after(kind, job)
            except (OSError, AssertionError) as error:
                self.errors.append(repr(error))

    def _look_after(self, kind: str, job: Object) -> None:
        name, spec = job["metadata"]["name"], job["spec"]
        suspended = spec.get("suspend") if kind == "JobSet" else (spec.get("runPolicy") or {}).get("suspend")
        nodes = {node["metadata"]["name"]: node for node in self.ask("GET", "/api/v1/nodes")["items"]}
        taken, used = set(), set()
        for pod in self.pods(kind, name):
            meta, node = pod["metadata"], pod["spec"]["nodeName"]
            if suspended or "deletionTimestamp" in meta:
                if _is_ready(nodes[node]):
                    self._delete(pod)
                elif "deletionTimestamp" not in meta:
                    self.ask("DELETE", f"/api/v1/namespaces/default/pods/{meta['name']}")  # nobody there to end it
            else:
                taken.add(meta["labels"]["place"])
            used.add(node)
        for place in (0, 1) if not suspended else ():
            free = [
                n for n in nodes if n not in used and _is_ready(nodes[n]) and not nodes[n]["spec"].get("unschedulable")
            ]
            if str(place) not in taken and free:
                used.add(free[0])
                self._start(kind, name, place, free[0])

    def _delete(self, pod: Object) -> None:
        self.ask(
            "DELETE", f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}",
            {"gracePeriodSeconds": 0, "preconditions": {"uid": pod["metadata"]["uid"]}},
        )  # fmt: skip

    def _start(self, kind: str, job: str, place: int, node: str) -> None:
        more = {
            "JobSet": {"jobset.sigs.k8s.io/replicatedjob-name": "workers", "jobset.sigs.k8s.io/job-index": "0",
                       "batch.kubernetes.io/job-completion-index": str(place)},
            "PyTorchJob": {"training.kubeflow.org/replica-type": ("master", "worker")[place],
                           "training.kubeflow.org/replica-index": "0"},
        }  # fmt: skip
        # A PyTorchJob's pod is made anew under the same name, a Job's under another.
        name = f"{job}-{place}" + (f"-{uuid.uuid4().hex[:5]}" if kind == "JobSet" else "")
        meta = {"name": name, "labels": {KINDS[kind][1]: job, "place": str(place), **more[kind]}}
        body = {"metadata": meta, "spec": {**TEMPLATE["spec"], "nodeName": node}}
        if self.ask("POST", "/api/v1/namespaces/default/pods", body) is not None:
            running = {"status": {"phase": "Running"}}
            self.merge(f"/api/v1/namespaces/default/pods/{name}/status", running)
            self.started.append((kind, job, place, node))


@contextlib.contextmanager
def running(folder: Path) -> Iterator[KubeCluster]:
    """A running cluster. Its server takes minutes to build, once."""
    if importlib.util.find_spec("kubernetes") is None:
        refuse("pip install 'trainwarden[kubernetes]'")
    try:
        cluster = KubeCluster(folder)
    except ServerMissing as missing:
        refuse(str(missing))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _is_ready(node: Object) -> bool:
    conditions = node["status"].get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
