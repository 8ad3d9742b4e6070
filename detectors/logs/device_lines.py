"""Of which device, node or task a line tells, and how grave that is by the driver's own words."""

from __future__ import annotations

import re
from functools import cache
from typing import Final, Literal

import msgspec

from trainwarden.detectors.job.window import Window
from trainwarden.detectors.logs.rules import LogRule, Xid, load_xids
from trainwarden.records import Severity

_XID: Final = re.compile(
    r"(?:Xid \((?:PCI:)?[0-9a-fA-F:.]{4,32}\): |XidCriticalError: Xid=)([0-9]{1,4})(?:,|\b)(.{0,400})"
)
_SXID: Final = re.compile(r"SXid \(PCI:[0-9a-fA-F:.]{4,32}\): ([0-9]{4,6}), ?(.{0,200})")
_PREVIOUS: Final = re.compile(r"\bcaused by previous Xid ([0-9]{1,4})\b")  # a channel's end, and of what it came
_ORDER: Final = re.compile(r"\bto 0x[0-9a-fA-F]{1,4} \(([A-Za-z0-9 ]{1,40})\)")
_FATAL: Final = re.compile(r"(?i)\b(non-?fatal|fatal)\b")
# Whose line it is: the first that fits. PCI addresses as the driver writes them; ports as libibverbs names them.
_DEVICES: Final = (
    re.compile(r"S?Xid \((?:PCI:)?([0-9a-fA-F:.]{4,32})\)"),
    re.compile(r"\b(?:mlx5_core|efa|amdgpu|habanalabs|i915|xe|nvidia|bnxt_en|ice|i40e|ixgbe) ([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"),  # noqa: E501
    re.compile(r"\b((?:mlx5|bnxt_re|irdma|rdmap[0-9]{1,3}s[0-9]{1,3}|rocep?[0-9a-z]{0,12}|ibp?[0-9a-z]{1,12})_?[0-9]{0,3}):[0-9]{1,3}\b"),
    re.compile(r"\bNVRM: (GPU[0-9]{1,2})\b"),
    re.compile(r"\bhabanalabs (hl[0-9]{1,3}): "),
    re.compile(r"\bGPU ((?:[0-9a-fA-F]{4}){1,2}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\.[0-7]"),
    re.compile(r"^health check: ((?:gpu|[nh]pu|mlx|neuron)[0-9a-z_]{1,16}|HCA-[0-9]{1,2}|(?:sd|vd|xvd)[a-z]{1,3}|nvme[0-9]{1,3}n[0-9]{1,3}|(?:dm-|md|dev)[0-9][0-9-]{0,8}|(?:eth|ib|en[ospx])[0-9][0-9a-z]{0,14}|[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]) "),  # noqa: E501
    re.compile(r"^health check: (\S{1,60}) board failed: "),
    re.compile(r"\b(nvme[0-9]{1,3})n?[0-9]{0,3}\b"),
    re.compile(r"\b((?:eth|ib|bond|en[ospx])[0-9][0-9a-z]{0,14}): "),
    re.compile(r"XidCriticalError: Xid=[0-9]{1,4} on Device=((?:GPU|MIG)-[0-9a-f-]{8,40})"),
    re.compile(r"\bNo IB port ([a-z0-9]{2,12}_[a-z0-9_]{1,12})[: ]"),
    re.compile(r"\bgim error libgv: \[([0-9a-f]{1,4}(?::[0-9a-f]{1,2}){3})\]"),
)  # fmt: skip
# AWS Neuron's runtime and its driver's kernel line (nrt-troubleshoot); its tools call the device nd0.
_NEURON: Final = re.compile(
    r"\[(?:ND|MLA) ([0-9]{1,3})\]\[NC |\bNEURON_HW_ERR=.{0,200}? nd-id=([0-9]{1,3})\b|\bon Neuron device: ([0-9]{1,3}):"
)
_GPUS: Final = (_DEVICES[0], _DEVICES[4])
_ADDRESS: Final = re.compile(r"(?:[0-9a-fA-F]{4})?([0-9a-fA-F]{4}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?")
# Where a scheduler, a launcher or Ray tells of a node that is not its own.
_NODES: Final = (
    re.compile(r"\b(?:srun|slurmstepd): error: ([A-Za-z0-9][A-Za-z0-9_.-]{0,62}): tasks? [0-9,\[\]-]{1,400}: "),
    re.compile(r"\bNode failure on ([A-Za-z0-9][A-Za-z0-9_.-]{0,62})"),
    re.compile(r"\bRemote daemon: {1,4}\[\[[0-9]{1,10},[0-9]{1,6}\],[0-9]{1,6}\] on node ([A-Za-z0-9_.-]{1,63})"),
    re.compile(r"\bkubelet, ([a-z0-9][a-z0-9.-]{0,252})"),
    re.compile(r"\bnode \((?:ID: [0-9a-f]{1,64}, )?IP: ([0-9A-Fa-f.:]{2,45})"),
    re.compile(r"\bEvicted {1,8}([a-z0-9][a-z0-9.-]{0,252}) {1,8}(?:Pod )?The node "),
    re.compile(r"\bTPU session error from worker ([a-z0-9][a-z0-9.-]{0,252})"),
    re.compile(r"\bnode with IP ([0-9A-Fa-f.:]{1,44}[0-9A-Fa-f])"),
    re.compile(r"^([a-z0-9][a-z0-9.-]{0,252}) {1,40}NotReady "),
    re.compile(r"\bNEURON_HW_ERR=.{0,200}? hostname=([A-Za-z0-9][A-Za-z0-9_.-]{0,62})"),
    re.compile(r"\bNode ([a-z0-9][a-z0-9.-]{0,252}) status is now: NodeNotReady\b"),  # of Kubernetes' node controller
    # slurmctld's own log (node_mgr.c, job_mgr.c); what slurmstepd calls ON is the first node of the step.
    re.compile(
        r"\berror: Nodes? ([A-Za-z0-9][A-Za-z0-9_.-]{0,62}(?:\[[0-9,-]{1,200}\])?) "
        r"(?:not responding|taken out by Slurm)\b"
    ),
    re.compile(r"\b(?:failed|failure of|missing from batch) node ([A-Za-z0-9][A-Za-z0-9_.-]{0,62})(?= |$)"),
    re.compile(r"slurmctld: .{0,120}?\b[Nn]ode[ =]([A-Za-z0-9][A-Za-z0-9_.-]{0,62})(?: state |: | unexpectedly )"),
    re.compile(r"\b[Nn]ode with (?:node|client) (?:id|ID):? \S{1,80} and (?:ip|address): ([0-9A-Fa-f.:]{2,45})"),
    re.compile(r"\bdead or unavailable\. Node IP: ([0-9A-Fa-f.:]{1,44}[0-9A-Fa-f])"),
)
_AGENT: Final = "torch/distributed/run.py"  # torchrun's first line: a task of srun is then a node's launcher
_MAX_RANKS: Final = 65_536
_MOST_LISTED: Final = 64  # nodes of one list
_TASK: Final = re.compile(r": task ([0-9]{1,6}): ")  # of srun; one that has ended alone
_DETAILS: Final = ("Severity ", "Data {")  # further lines of the SXid before, which says Fatal or Non-fatal
# Xids whose line carries the driver's own severity (NVLink 5, R570 and newer).
_SAYS_SEVERITY: Final = frozenset(range(144, 151))
_PLUGIN: Final = "XidCriticalError"  # Kubernetes' device plug-in takes the device out
_RECOVERY: Final = 154
_RESETS: Final = ("gpu reset", "drain and reset")
_REBOOTS: Final = ("reboot",)
_OF_PROGRAMS: Final = frozenset({"APP", "FOLLOW", "IGNORE"})  # a line for each channel as a program ends
RULES: Final = frozenset({"nvidia.xid", "nvidia.sxid", "nvidia.sxid_warning"})


def device_of(line: str) -> str | None:
    """The device that a line is about: its PCI address, port or interface.

    Examples
    --------
    >>> device_of("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."), device_of("step 1")
    ('0000:3b:00', None)
    >>> device_of("NVRM: Xid (PCI:00000000:3B:00.0): 79, lost"), device_of("NVRM: GPU 0000:3b:00.0: fallen off the bus")
    ('0000:3b:00', '0000:3b:00')
    >>> device_of("mlx5_core 0000:a8:00.0 ens3: Link down"), device_of("NET/IB : mlx5_3:1 Got async event : port error")
    ('0000:a8:00.0', 'mlx5_3')
    """
    found = next(((pattern, match[1]) for pattern in _DEVICES if (match := pattern.search(line))), None)
    if found is None:
        neuron = _NEURON.search(line)
        return f"nd{neuron[neuron.lastindex or 1]}" if neuron else None
    if found[0] not in _GPUS:
        return found[1]
    address = _ADDRESS.fullmatch(found[1])  # the driver writes it in three ways: one GPU is one suspect
    return found[1] if address is None else f"{address[1]}:{address[2]}".lower()


def node_said(line: str) -> str | None:
    """The node that a scheduler or launcher tells of, which need not be the one that the line comes from.

    Examples
    --------
    >>> node_said("srun: error: gpu-07: tasks 1-3: Out Of Memory"), node_said("srun: error: Node failure on gpu-08")
    ('gpu-07', 'gpu-08')
    >>> node_said("Warning  Evicted  12m  kubelet, gpu-09  The node was low on resource: memory."), node_said("step 1")
    ('gpu-09', None)
    """
    return next((match[1] for one in _NODES if (match := one.search(line))), None)


def nodes_listed(name: str) -> list[str]:
    """The nodes that a name means, as slurmctld writes several; itself where it is of one.

    Examples
    --------
    >>> nodes_listed("node[03,05-06]"), nodes_listed("gpu-07")
    (['node03', 'node05', 'node06'], ['gpu-07'])
    """
    stem, bracket, rest = name.partition("[")
    if not bracket:
        return [name]
    found = []
    for part in rest.rstrip("]").split(",")[:_MOST_LISTED]:
        low, _, high = part.partition("-")
        if low.isdigit() and (high or low).isdigit():
            numbers = range(int(low), min(int(high or low), int(low) + _MOST_LISTED) + 1)
            found += [f"{stem}{number:0{len(low)}d}" for number in numbers]
    return found[:_MOST_LISTED] or [name]


def task_said(line: str) -> int | None:
    """The only task of a job step that Slurm tells of.

    Examples
    --------
    >>> task_said("srun: error: gpu-07: task 4: Out Of Memory"), task_said("srun: error: gpu-07: tasks 1-3: Killed")
    (4, None)
    """
    match = _TASK.search(line)
    return int(match[1]) if match else None


class Tasks(msgspec.Struct):
    """Whether the tasks of the job's step in Slurm are its ranks, as far as the lines of the job show.

    Examples
    --------
    >>> tasks, line = Tasks(), "srun: error: gpu-07: task 4: Out Of Memory"
    >>> tasks.rank_of(line), tasks.hear(4, "gpu-07.cluster"), tasks.rank_of(line)
    (4, None, 4)
    >>> tasks.hear(4, "gpu-00"), tasks.rank_of(line)  # each task is a node's torchrun
    (None, None)
    """

    are_agents: bool = False  # torchrun has said so
    nodes: dict[int, set[str]] = msgspec.field(default_factory=dict)  # where each rank was heard

    def read(self, line: str) -> None:
        """Learn from a line of the job whether torchrun runs."""
        if _AGENT in line:
            self.are_agents = True

    def hear(self, rank: int | None, node: str | None) -> None:
        """Note that `rank` was heard on `node`."""
        if rank is None or not node:
            return
        known = self.nodes.get(rank)
        if known is None and len(self.nodes) < _MAX_RANKS:
            known = self.nodes[rank] = set()
        if known is not None:
            known.add(_host(node))

    def observe(self, window: Window) -> None:
        """Learn where ranks run, if new lines tell of tasks."""
        if any(": task" in line.line for line in window.logs):
            for rank, node in zip(window.ranks.tolist(), window.nodes, strict=True):
                self.hear(rank, node)

    def is_rank(self, task: int, node: str | None) -> bool:
        """Whether `task`, which Slurm saw on `node`, may be the rank of that number: none that was heard elsewhere."""
        return not self.are_agents and (node is None or self.nodes.get(task, set()) <= {_host(node)})

    def rank_of(self, line: str) -> int | None:
        """The rank whose end Slurm tells of in `line`; None if it tells of none or of a task that is no rank."""
        task = task_said(line)
        return task if task is not None and self.is_rank(task, node_said(line)) else None


def _host(node: str) -> str:
    """The name without its domain."""
    return node.partition(".")[0]


def as_said(rule: LogRule, line: str) -> LogRule:
    """`rule` with what the line itself says: the Xid's entry in the table, the driver's severity or order.

    Examples
    --------
    >>> from trainwarden.detectors.logs.rules import shipped_rules
    >>> def of(line): rule = as_said(shipped_rules().match(line), line); return rule.role, rule.kind, rule.severity
    >>> of("NVRM: Xid (PCI:0000:3b:00): 145, RLW_REMAP Nonfatal XC0 i0 Link 00")
    ('app', 'nvlink_error', 'sev3')
    >>> of("NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    ('root', 'gpu_lost', 'sev1')
    >>> of("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error")
    ('app', 'nvlink_error', 'sev3')
    >>> of("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Severity 5 Engine instance 32 Sub-engine instance 00")
    ('app', 'nvlink_error', 'sev3')
    """
    if rule.id == "nvidia.xid":
        return _of_xid(rule, line)
    if rule.id in RULES and (match := _SXID.search(line)):
        if match[2].startswith(_DETAILS):
            return _with(rule, "app", "sev3")
        if word := _FATAL.search(match[2]):
            fatal = word[1].lower() == "fatal"
            return _with(rule, "root" if fatal else "app", "sev1" if fatal else "sev3")
    return rule


def xid_of(line: str) -> Xid | None:
    """The entry of the Xid that the line reports; None if it reports none that is known."""
    match = _XID.search(line)
    previous = _PREVIOUS.search(match[2]) if match else None
    return _xids().get(int((previous or match)[1])) if match else None


def of_previous(line: str) -> bool:
    """Whether the line is a channel's end for which another Xid is to blame: it accuses neither its GPU nor its rank.

    Examples
    --------
    >>> of_previous("NVRM: Xid (PCI:0000:ed:00): 45, pid=70, name=python3, Ch 0c caused by previous Xid 145")
    True
    """
    return _PREVIOUS.search(line) is not None and "Xid" in line


def of_program(line: str) -> bool:
    """Whether the line is an Xid of a program's end, which comes once for each of its channels."""
    xid = xid_of(line)
    return xid is not None and xid.class_ in _OF_PROGRAMS


def _of_xid(rule: LogRule, line: str) -> LogRule:
    match = _XID.search(line)
    xid = xid_of(line)
    if match is None or xid is None:
        return msgspec.structs.replace(rule, role="app", class_="H")
    wanted, severity = xid.device_at_fault, xid.severity
    if xid.code == _RECOVERY:
        wanted, severity = recovery_ordered(match[2])
    elif _PLUGIN in line:  # it has left out those of programs
        wanted = True
    elif xid.code in _SAYS_SEVERITY and (word := _FATAL.search(match[2])):
        wanted = word[1].lower() == "fatal"
        severity = "sev1" if wanted else "sev3"
    return msgspec.structs.replace(
        rule, role="root" if wanted else "app", kind=xid.kind, severity=severity,
        class_="A" if xid.class_ == "APP" and _PLUGIN not in line else "H",
    )  # fmt: skip


def recovery_ordered(text: str) -> tuple[bool, Severity]:
    """Whether the driver orders a reset or reboot (Xid 154), and how grave that is.

    Examples
    --------
    >>> recovery_ordered("changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    (False, 'sev3')
    >>> recovery_ordered("changed from 0x0 (None) to 0x4 (Drain and Reset)")
    (True, 'sev1')
    """
    match = _ORDER.search(text)
    order = (match[1] if match else text).lower()
    if any(word in order for word in (*_RESETS, *_REBOOTS)):
        return True, "sev1"
    return False, "sev3"


def _with(rule: LogRule, role: Literal["root", "app"], severity: Severity) -> LogRule:
    return msgspec.structs.replace(rule, role=role, severity=severity, kind="nvlink_error", class_="H")


@cache
def _xids() -> dict[int, Xid]:
    return load_xids()
