"""A Kubernetes in memory that is spoken to as the API server is; one JobSet or PyTorchJob of two pods, four nodes."""

from __future__ import annotations

import copy
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

Said = tuple[int, bytes]
SUSPEND = {"JobSet": ("suspend",), "PyTorchJob": ("runPolicy", "suspend")}
PATHS = {
    "JobSet": "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets/job",
    "PyTorchJob": "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs/job",
}


class KubeDouble:
    """Keeps versions, generations and preconditions as the API server does; `play` is its controllers and kubelets.

    `denied` are rights that the engine lacks, `budget` what a disruption budget says to evictions, `refusing` what is
    said to every change. `said` are the changes asked for. `drops` makes suspensions unknown, as in an old definition.
    """

    def __init__(self, kind: str = "JobSet", elastic: bool = False) -> None:
        self.kind, self.path = kind, PATHS[kind]
        self.nodes = {f"n{number}": self._made(f"n{number}", {"spec": {}}) for number in (1, 2, 3, 4)}
        for node in self.nodes.values():
            node["status"] = {"conditions": [{"type": "Ready", "status": "True"}]}
        spec: dict[str, Any] = {"replicatedJobs": [{"name": "W", "replicas": 2, "template": {"spec": {}}}]}
        if kind == "PyTorchJob":
            replicas = {"Master": {"replicas": 1}, "Worker": {"replicas": 1}}
            spec = {"pytorchReplicaSpecs": replicas, **({"elasticPolicy": {}} if elastic else {})}
        self.job: dict[str, Any] | None = self._made("job", {"spec": spec, "status": {}})
        self.job["metadata"] |= {"namespace": "default", "annotations": {"theirs": "kept"}}
        self.pods: dict[str, dict[str, Any]] = {}
        self.denied: set[str] = set()
        self.budget = self.refusing = ""
        self.said: list[str] = []
        self.made = 0
        self.drops = False
        self.play()

    def _made(self, name: str, more: dict[str, Any]) -> dict[str, Any]:
        self._version = getattr(self, "_version", 0) + 1
        meta = {
            "name": name, "uid": f"uid-{self._version}", "generation": 1, "resourceVersion": str(self._version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        }  # fmt: skip
        return {"metadata": meta, **more}

    # --- what is asked -----------------------------------------------------------------------------------------------

    def exchange(self, method: str, path: str, body: Any, media: str) -> Said:
        body = json.loads(json.dumps(body))
        parts = urlsplit(path)
        if parts.path.endswith("selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            of = f"{asked['verb']} {asked['resource']}{'/' + asked['subresource'] if 'subresource' in asked else ''}"
            return 201, json.dumps({"status": {"allowed": of not in self.denied}}).encode()
        if parts.path.endswith("/pods"):
            return _page(self.pods, parse_qs(parts.query))
        if parts.path == "/api/v1/nodes":
            return _page(self.nodes, parse_qs(parts.query))
        if parts.path.endswith("/eviction"):
            return self._evict(parts.path.split("/")[-2], body["deleteOptions"])
        found = self._find(parts.path)
        if found is None:
            return _no(404, f'"{parts.path.rpartition("/")[2]}" not found')
        return self._patch(found, parts.path, body) if method == "PATCH" else (200, json.dumps(found).encode())

    def _find(self, path: str) -> dict[str, Any] | None:
        if path == self.path:
            return self.job
        name = path.removesuffix("/status").rpartition("/")[2]
        return self.nodes.get(name) if path.startswith("/api/v1/nodes/") else None

    def _evict(self, name: str, options: dict[str, Any]) -> Said:
        pod = self.pods.get(name)
        if pod is None:
            return _no(404, "pod not found")
        if options["preconditions"]["uid"] != pod["metadata"]["uid"]:
            return _no(409, "the UID in the precondition does not match")
        if self.budget:
            return _no(429, self.budget)
        if "dryRun" not in options:
            self.said.append(f"evict {name}")
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        return 201, b"{}"

    def _patch(self, found: dict[str, Any], path: str, body: dict[str, Any]) -> Said:
        if self.refusing:
            return _no(403, self.refusing)
        version = body.get("metadata", {}).pop("resourceVersion", None)
        if version not in (None, found["metadata"]["resourceVersion"]):
            return _no(409, "the object has been modified; please apply your changes to the latest version")
        before = copy.deepcopy(found.get("spec"))
        if path.endswith("/status"):
            [condition] = body["status"]["conditions"]
            kept = [one for one in found["status"]["conditions"] if one["type"] != condition["type"]]
            found["status"]["conditions"] = [*kept, condition]
            self.said.append(f"condition {found['metadata']['name']} {condition['status']}")
        else:
            if self.drops and found is self.job:
                body.pop("spec", None)
            _merge(found, body)
        if found.get("spec") != before:
            found["metadata"]["generation"] += 1
            self.said.append(f"{found['metadata']['name']} {json.dumps(body['spec'])}")
        self.touch(found)
        return 200, json.dumps(found).encode()

    def touch(self, found: dict[str, Any]) -> None:
        """Somebody writes something to it."""
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)

    # --- what others do ----------------------------------------------------------------------------------------------

    @property
    def suspended(self) -> bool:
        assert self.job is not None
        said: Any = self.job["spec"]
        for word in SUSPEND[self.kind]:
            said = (said or {}).get(word)
        return bool(said)

    def suspend(self, wanted: bool) -> None:
        """A person does."""
        assert self.job is not None
        spec = self.job["spec"] if self.kind == "JobSet" else self.job["spec"].setdefault("runPolicy", {})
        spec["suspend"] = wanted
        self.job["metadata"]["generation"] += 1
        self.touch(self.job)

    def play(self) -> None:
        """Controllers, the scheduler and kubelets do what is theirs."""
        assert self.job is not None
        for name, pod in list(self.pods.items()):
            if self.suspended:
                pod["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
            if "deletionTimestamp" in pod["metadata"] and self.ready(pod["spec"]["nodeName"]):
                del self.pods[name]
        if self.suspended:
            return
        taken = {
            pod["metadata"]["labels"]["place"]
            for pod in self.pods.values()
            if "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] == "Running"
        }
        for place in (0, 1):
            free = [n for n in self.nodes if not self.nodes[n]["spec"].get("unschedulable") and self.ready(n)]
            used = {pod["spec"]["nodeName"] for pod in self.pods.values()}
            if str(place) not in taken and (nodes := [n for n in free if n not in used]):
                self._start(place, nodes[0])

    def ready(self, node: str) -> bool:
        return self.nodes[node]["status"]["conditions"][0]["status"] == "True"

    def _start(self, place: int, node: str) -> None:
        self.made += 1
        pod = self._made(f"job-{place}-{self.made}", {"spec": {"nodeName": node}, "status": {"phase": "Running"}})
        pod["metadata"]["namespace"] = "default"
        jobset = {"jobset.sigs.k8s.io/replicatedjob-name": "W", "jobset.sigs.k8s.io/job-index": str(place),
                  "batch.kubernetes.io/job-completion-index": "0"}  # fmt: skip
        kubeflow = {"training.kubeflow.org/replica-type": ("master", "worker")[place],
                    "training.kubeflow.org/replica-index": "0"}  # fmt: skip
        pod["metadata"]["labels"] = {"place": str(place), **(jobset if self.kind == "JobSet" else kubeflow)}
        self.pods[pod["metadata"]["name"]] = pod

    @property
    def on(self) -> list[str]:
        """Where the pods that run are."""
        return sorted(
            pod["spec"]["nodeName"] for pod in self.pods.values() if "deletionTimestamp" not in pod["metadata"]
        )


def _merge(found: dict[str, Any], change: dict[str, Any]) -> None:
    """RFC 7396."""
    for key, value in change.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict):
            _merge(found.setdefault(key, {}), value)
        else:
            found[key] = value


def _page(objects: dict[str, dict[str, Any]], query: dict[str, list[str]]) -> Said:
    """Two to a page."""
    start = int(query.get("continue", ["0"])[0])
    names = sorted(objects)
    items = [objects[name] for name in names[start : start + 2]]
    more = str(start + 2) if start + 2 < len(names) else ""
    return 200, json.dumps({"metadata": {"continue": more}, "items": items}).encode()


def _no(status: int, message: str) -> Said:
    return status, json.dumps({"kind": "Status", "message": message}).encode()
