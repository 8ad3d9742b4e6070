"""What Kubernetes says of nodes and pods, as far as it is read here."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

CORDONED: Final = "trainwarden/cordoned"
CONDITION: Final = "TrainwardenFault"


class Meta(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Of any object."""

    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None

    def label(self, name: str) -> str:
        """A label, or nothing."""
        return (self.labels or {}).get(name, "")

    def annotation(self, name: str) -> str:
        """An annotation, or nothing."""
        return (self.annotations or {}).get(name, "")


class Condition(msgspec.Struct, frozen=True, kw_only=True):
    """One condition of a node or a job."""

    type: str
    status: str
    message: str = ""


class _NodeSpec(msgspec.Struct, frozen=True):
    unschedulable: bool | None = None


class _NodeStatus(msgspec.Struct, frozen=True):
    conditions: list[Condition] | None = None


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One node."""

    metadata: Meta
    spec: _NodeSpec = _NodeSpec()
    status: _NodeStatus = _NodeStatus()

    @property
    def cordoned(self) -> bool:
        """Whether no new pod is placed there."""
        return bool(self.spec.unschedulable)

    @property
    def mark(self) -> str:
        """By which operation of ours and why it was cordoned; empty if by none."""
        return self.metadata.annotation(CORDONED)

    @property
    def lost(self) -> bool:
        """Whether its kubelet has gone; one that never spoke is not lost."""
        ready = self.condition("Ready")
        return ready is not None and ready.status != "True"

    def condition(self, kind: str) -> Condition | None:
        """Its condition of that type."""
        return next((one for one in self.status.conditions or () if one.type == kind), None)


class _PodSpec(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str | None = None


class _PodStatus(msgspec.Struct, frozen=True):
    phase: str = ""


class Pod(msgspec.Struct, frozen=True, kw_only=True):
    """One pod of a job."""

    metadata: Meta
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()

    @property
    def live(self) -> bool:
        """Whether it may still have processes."""
        return self.status.phase not in ("Succeeded", "Failed")

    @property
    def runs(self) -> bool:
        """Whether it runs and is not being deleted."""
        return self.status.phase == "Running" and self.metadata.deletion_timestamp is None

    @property
    def node(self) -> str:
        """Where it is; empty while it waits for a place."""
        return self.spec.node_name or ""
