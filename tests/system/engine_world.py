"""What tests of an engine before a real scheduler share: incidents told on the bus, and the engine's actions there."""

from __future__ import annotations

import time

from trainwarden.protocols import Bus
from trainwarden.records import ActionRecord, IncidentRecord, Suspect
from trainwarden.topics import ACTIONS, INCIDENTS


class EngineWorld:
    """The job `name`, of which the node `bad` is suspected, on `bus`."""

    bus: Bus
    name: str
    bad: str

    def tell(self, kind: str = "gpu_lost", name: str = "i1", revision: int = 0) -> None:
        now_s = time.time()
        suspects = (Suspect(score=0.9, reason="it fell off", node=self.bad),)
        incident = IncidentRecord(
            id=name, job=self.name, kind=kind, severity="sev1", state="opened", revision=revision,  # type: ignore[arg-type]
            opened_at_s=now_s, updated_at_s=now_s, reason="GPU 3 fell off the bus", suspects=suspects,
        )  # fmt: skip
        self.bus.publish(INCIDENTS, self.name, incident)
        self.bus.flush()

    def story(self) -> list[tuple[str, str]]:
        return [
            (a.id, a.outcome) for message in self.bus.read(ACTIONS) if isinstance(a := message.record, ActionRecord)
        ]
