"""Nodes taken out of service and put back: cordoned with our mark and a condition; another's cordon is left alone."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from trainwarden.actions.launchers.kubernetes.api import STRATEGIC, Api, Missing
from trainwarden.actions.launchers.kubernetes.objects import CONDITION, CORDONED, Node

NAME: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")  # of a DNS subdomain: no list, no path, no option
_ASKED_ALONE: Final = 32  # one request each; of more nodes the whole list is read
_MAX_MARK_CHARS: Final = 300


class Nodes:
    """The cluster's nodes.

    Parameters
    ----------
    conditions : bool
        Whether a cordon is told by a condition of the node as well.
    """

    def __init__(self, api: Api, conditions: bool, now_s: Callable[[], float] = time.time) -> None:
        self._api, self._conditions, self._now_s = api, conditions, now_s

    def get(self, name: str) -> Node:
        """One node.

        Raises
        ------
        Missing
            If there is none.
        """
        return self._api.get(f"/api/v1/nodes/{name}", Node)

    def of(self, names: Sequence[str]) -> dict[str, Node]:
        """Nodes by name; one that has been taken from the cluster is not among them."""
        if len(names) > _ASKED_ALONE:
            wanted = frozenset(names)
            listed = self._api.list("/api/v1/nodes", Node)
            return {one.metadata.name: one for one in listed if one.metadata.name in wanted}
        found = {}
        for name in names:
            try:
                found[name] = self.get(name)
            except Missing:
                continue
        return found

    def known(self, names: Sequence[str]) -> tuple[str, ...] | str:
        """The names as Kubernetes knows them, or one sentence on what is wrong.

        Agents go by their host's name, which may have the domain in it, or lack it.
        """
        found = []
        for name in names:
            for tried in dict.fromkeys((name, name.partition(".")[0])):
                if not NAME.fullmatch(tried):
                    return f"'{name[:80]}' is no name of a node"
                try:
                    found.append(self.get(tried).metadata.name)
                    break
                except Missing:
                    continue
            else:
                return f"Kubernetes knows no node {name}"
        return tuple(found) or "no node was named"

    def cordon(self, name: str, operation: str, why: str) -> str:
        """Keep new pods off a node; what is to be told of it, if it is not ours to touch.

        Raises
        ------
        Conflict
            If it has changed since it was read.
        """
        node = self.get(name)
        mark = _mark(operation, why)
        if not node.cordoned:
            told = {CORDONED: mark}
            self._patch(node, {"metadata": {"annotations": told}, "spec": {"unschedulable": True}})
        elif node.mark.partition(" ")[0] != operation:
            return f"{name} was cordoned already ({node.mark or 'not by trainwarden'}) and is left as it is"
        self._tell(node, "True", "Cordoned", mark)
        return ""

    def uncordon(self, name: str, operation: str) -> None:
        """Put a node that bears our mark back; if somebody has meanwhile, the mark goes."""
        node = self.get(name)
        if node.mark:
            spec = {"spec": {"unschedulable": False}} if node.cordoned else {}
            self._patch(node, {"metadata": {"annotations": {CORDONED: None}}, **spec})
        condition = node.condition(CONDITION)
        if condition is not None and condition.status == "True":
            self._tell(node, "False", "Uncordoned", operation)

    def _patch(self, node: Node, change: dict[str, Any]) -> None:
        change["metadata"]["resourceVersion"] = node.metadata.resource_version
        self._api.patch(f"/api/v1/nodes/{node.metadata.name}", change)

    def _tell(self, node: Node, status: str, reason: str, message: str) -> None:
        known = node.condition(CONDITION)
        if not self._conditions or (known is not None and (known.status, known.message) == (status, message)):
            return
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._now_s()))
        condition = {
            "type": CONDITION, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": now, "lastHeartbeatTime": now,
        }  # fmt: skip
        self._api.patch(
            f"/api/v1/nodes/{node.metadata.name}/status", {"status": {"conditions": [condition]}}, STRATEGIC
        )


def _mark(operation: str, why: str) -> str:
    """Whose cordon it is, and what for.

    Examples
    --------
    >>> _mark("i1/evict/1", 'gpu_lost: GPU 3\\nfell off')
    'i1/evict/1 gpu_lost: GPU 3 fell off'
    """
    words = f"{operation.replace(' ', '_')} {why}"
    return " ".join("".join(letter if letter.isprintable() else " " for letter in words).split())[:_MAX_MARK_CHARS]
