"""Devices and nodes that failed: Xids, lost devices, links that went down, nodes that fell silent."""

from __future__ import annotations

from typing import Final

import msgspec

from trainwarden.detectors.collectives.began import DAY_S, began_s
from trainwarden.detectors.facts.nodes import HEARD_S, NodeConfig, lost_nodes, pipeline_is_silent
from trainwarden.detectors.job.samples import name_of
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.logs.device_lines import recovery_ordered
from trainwarden.detectors.logs.rules import Xid, load_xids
from trainwarden.records import EventRecord, IncidentKind, Severity, Suspect, Vote

MAX_SUSPECTS: Final = 16
OLD_S: Final = 7200.0  # Xid lines older than this are from before (Azure NHC ignores them after 2 h)
BURST_S: Final = 180.0  # repeats of an Xid within this count once (NVSentinel, health-events-analyzer)
PIPELINE: Final = "pipeline"
FABRIC: Final = "fabric"  # of its own: that a GPU is back in its fabric takes no other NVLink error away
REPEATS: Final = 5  # bursts within a day that make a watched Xid an incident (NVSentinel)


class DeviceFault(msgspec.Struct):
    """A finding about a device or node that lasts until it is taken back.

    Attributes
    ----------
    by_agent : bool
        An agent tells it once and says when it is over, however often the job is restarted meanwhile.
    was_before : bool
        The job was restarted since.
    """

    kind: IncidentKind
    severity: Severity
    node: str | None
    device: str | None
    rank: int | None
    time_s: float
    reason: str
    by_silence: bool = False
    by_agent: bool = False
    was_before: bool = False


class DeviceFaults:
    """Findings about devices and nodes, each kept until it is taken back.

    Parameters
    ----------
    config : NodeConfig
        When a silent node is lost.
    """

    NOT_KEPT = ("_xids",)

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._xids = load_xids()
        self._devices: dict[str, DeviceFault] = {}
        self._bursts: dict[str, list[float]] = {}

    def apply(self, event: EventRecord, window: Window) -> None:
        """Apply an event about a device; others are left alone."""
        if event.kind == "xid":
            self._take_xid(event, window)
        elif event.kind in {"link_down", "fabric_down", "device_lost", "heartbeat_lost"}:
            self._take_device(event)
        elif event.kind == "link_up":
            self._devices.pop(f"nic_down/{event.node}/{event.device}", None)
        elif event.kind == "fabric_up":
            self._devices.pop(f"{FABRIC}/{event.node}/{event.device}", None)
        elif event.kind == "device_back":
            self._devices.pop(f"gpu_lost/{event.node}/{event.device}", None)
        elif event.kind == "restart" and event.fields.get("stage") == "done":
            # The job runs on what the launcher chose; what is still broken will say so, or has not said to be over.
            self._devices = {key: fault for key, fault in self._devices.items() if fault.by_agent}
            for fault in self._devices.values():
                fault.was_before = True

    def watch_nodes(self, window: Window) -> None:
        """Nodes with live ranks that have fallen silent, and those that are heard again or not missed any more."""
        silent, moves = window.node_silent_s, window.still_s < HEARD_S
        there = {node for node, live in zip(window.nodes, window.live, strict=True) if live}
        for key, fault in list(self._devices.items()):
            if fault.kind == "node_lost" and silent.get(fault.node or "", HEARD_S) < HEARD_S:
                del self._devices[key]
            elif fault.by_silence and (moves or window.finished):
                del self._devices[key]  # the job runs on, with the node after all or without it
            elif fault.was_before and moves and fault.node not in there:
                del self._devices[key]  # the job was restarted without the node
        for node, reason in lost_nodes(window, self._config).items():
            fault = DeviceFault("node_lost", "sev1", node, None, None, window.now_s - silent[node], reason, True)
            self._devices.setdefault(f"node_lost/{node}/None", fault)
        self._watch_pipeline(window)

    def _watch_pipeline(self, window: Window) -> None:
        if not pipeline_is_silent(window, self._config):
            self._devices.pop(PIPELINE, None)
            return
        longest_s = max(window.node_silent_s.values(), default=0.0)
        if longest_s > self._config.all_silent_s and PIPELINE not in self._devices:
            quiet = sum(one > self._config.node_silent_s / 2 for one in window.node_silent_s.values())
            reason = (
                f"no heartbeat of {quiet} of {len(window.node_silent_s)} nodes for {longest_s:.1f} s: "
                "the way from the agents to here is away, or all nodes are"
            )
            since_s = window.now_s - longest_s
            self._devices[PIPELINE] = DeviceFault("pipeline", "sev3", None, None, None, since_s, reason)

    def groups(self) -> list[list[DeviceFault]]:
        """Findings by kind, the gravest first."""
        groups: dict[str, list[DeviceFault]] = {}
        for device in self._devices.values():
            groups.setdefault(device.kind, []).append(device)
        ordered = sorted(groups.items(), key=lambda entry: (min(d.severity for d in entry[1]), entry[0]))
        return [members for _, members in ordered]

    # -- internals -------------------------------------------------------------------------------------------

    def _take_xid(self, event: EventRecord, window: Window) -> None:
        code = event.fields.get("xid", event.fields.get("code"))
        if not isinstance(code, int | float) or window.now_s - event.time_s > OLD_S:
            return
        xid = self._xids.get(int(code)) or Xid(
            code=int(code), class_="WATCH", kind="gpu_lost", severity="sev3", advice="unknown code: record"
        )
        where = f"{event.node}/{event.device}"
        wanted = xid.device_at_fault
        if int(code) == 154:
            wanted, _ = recovery_ordered(event.message)
        elif not wanted and xid.class_ in {"APP", "WATCH"}:
            wanted = xid.class_ == "WATCH" and self._repeats(f"{where}/{int(code)}", event.time_s)
        if wanted:
            reason = f"Xid {int(code)} on {name_of(event.node, event.device or 'a GPU')}: {xid.advice}"
            self._devices.setdefault(
                f"{xid.kind}/{where}",
                DeviceFault(xid.kind, xid.severity, event.node or None, event.device, event.rank, event.time_s, reason),
            )

    def _repeats(self, key: str, time_s: float) -> bool:
        bursts = [at for at in self._bursts.get(key, []) if time_s - at < DAY_S]
        if not bursts or time_s - bursts[-1] > BURST_S:
            bursts.append(time_s)
        self._bursts[key] = bursts[-2 * REPEATS :]
        return len(bursts) >= REPEATS

    def _take_device(self, event: EventRecord) -> None:
        table: dict[str, tuple[IncidentKind, Severity, str]] = {
            "link_down": ("nic_down", "sev2", "the link went down"),
            "fabric_down": ("nvlink_error", "sev1", "it is in trouble in its NVLink fabric"),
            "device_lost": ("gpu_lost", "sev1", "the driver has lost the device"),
            "heartbeat_lost": ("node_lost", "sev1", "no heartbeat any more"),
        }
        kind, severity, what = table[event.kind]
        reason = f"{name_of(event.node, event.device)}: {event.message[:200] or what}"
        fault = self._devices.setdefault(
            f"{FABRIC if event.kind == 'fabric_down' else kind}/{event.node}/{event.device}",
            DeviceFault(kind, severity, event.node, event.device, event.rank, began_s(event), reason),
        )
        fault.by_agent = event.kind != "heartbeat_lost"  # that one is taken back when the node is heard


def device_vote(members: list[DeviceFault]) -> Vote:
    """The vote that tells `members`, findings of one kind."""
    members = sorted(members, key=lambda device: (device.severity, device.time_s))
    first = members[0]
    suspects = tuple(
        Suspect(score=1.0, reason=device.reason, rank=device.rank, node=device.node, device=device.device)
        for device in members[:MAX_SUSPECTS]
        if device.node or device.device or device.rank is not None
    )
    reason = first.reason if len(members) == 1 else f"{first.reason}, and {len(members) - 1} more"
    return Vote(
        opinion="anomalous", score=1.0, reason=reason, kind=first.kind, severity=first.severity, suspects=suspects,
        onset_s=min(device.time_s for device in members), hard=True,
    )  # fmt: skip
