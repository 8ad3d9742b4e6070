"""What Kubernetes lets this engine do, asked of Kubernetes itself."""

from __future__ import annotations

import msgspec

from trainwarden.actions.launchers.kubernetes.api import Api
from trainwarden.actions.launchers.kubernetes.jobs import Kind
from trainwarden.launching import NODE_VERBS, Verb


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
