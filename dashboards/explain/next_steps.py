"""What a person runs next about an incident, by its kind: commands that exist, of ours and of the system."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from typing import Final

from trainwarden.records import ActionRecord, IncidentKind, IncidentRecord

_GPU: Final = "nvidia-smi -q -d ECC,PERFORMANCE,TEMPERATURE,ROW_REMAPPER"
_KERNEL: Final = "dmesg --level=err,warn --ctime"
_LINKS: Final = "nvidia-smi nvlink --status"
_STACK: Final = "ps -eo pid,stat,wchan:32,etime,args --sort=-etime"

ON_NODE: Final[dict[IncidentKind, tuple[tuple[str, str], ...]]] = {
    "crash": ((_KERNEL, "was it killed, and by whom"),),
    "hang": ((_STACK, "state T was stopped, D waits for a disk, R computes"), (_GPU, "a device that hangs says so")),
    "slow_compute": ((_GPU, "clocks and what slows them"), ("top -b -n 1", "who else computes there")),
    "slow_link": (("ip -s link", "errors and drops by port"), (_LINKS, "links that are down or run slower")),
    "gpu_lost": ((_KERNEL, "the Xid that took it"), ("nvidia-smi -L", "which devices are left")),
    "gpu_memory_error": ((_GPU, "rows that wait for a reset"), (_KERNEL, "Xids 48, 63, 64, 94, 95")),
    "gpu_throttle": ((_GPU, "what slows its clocks"),),
    "nvlink_error": ((_LINKS, "links that are down"), ("nvidia-smi nvlink -e", "errors by link")),
    "pcie_error": (("nvidia-smi -q -d PCIE", "width, generation and replays"), (_KERNEL, "AER messages")),
    "nic_down": (("ip -s link", "which port has no carrier"), (_KERNEL, "when the link went")),
    "nic_error": (("ip -s link", "errors by port"),),
    "congestion": (("ip -s link", "drops by port"),),
    "host_contention": (("top -b -n 1", "who else computes there"), ("cat /proc/pressure/cpu", "how long ranks wait")),
    "memory_leak": (("ps -eo pid,rss,etime,args --sort=-rss", "whose memory it is"), ("free -m", "what is left")),
    "out_of_memory": ((_KERNEL, "whom the kernel killed"), ("free -m", "what is left")),
    "cuda_out_of_memory": (("nvidia-smi", "who else holds its memory"),),
    "storage": (("df -h", "a full disk"), ("cat /proc/pressure/io", "how long processes wait for disks")),
    "data_stall": (
        ("cat /proc/pressure/io", "how long loaders wait for disks"),
        ("top -b -n 1", "are the loaders busy"),
    ),
    "checkpoint": (("df -h", "a full disk"),),
    "silent_corruption": ((_GPU, "errors that were corrected"),),
    "node_lost": (),
}
"""To be run on the suspect's node, with what one looks for."""


def next_steps(incident: IncidentRecord, actions: Sequence[ActionRecord], here: str | None = None) -> tuple[str, ...]:
    """Command lines, the most urgent first; names are quoted, so that each can be pasted into a shell.

    On node `here` itself nothing goes by ssh, and no tool is named that it does not have.
    """
    job = quoted(incident.job)
    steps = [
        line
        for action in actions
        if action.outcome == "proposed" and action.plan_digest is not None
        for line in (
            f"trainwarden actions approve {quoted(action.id)}  # {action.kind}",
            f"trainwarden actions deny {quoted(action.id)}",
        )
    ]
    node = incident.suspects[0].node if incident.suspects else None
    if node is not None and incident.kind == "node_lost":
        steps.append(f"ping -c 3 {quoted(node)}  # does it answer at all")
    if node is not None:
        for command, why in ON_NODE.get(incident.kind, ()):
            if node != here:
                steps.append(f"ssh {quoted(node)} {command}  # {why}")
            elif shutil.which(command.partition(" ")[0]) is not None:
                steps.append(f"{command}  # {why}")
    if incident.kind in ("pipeline", "data_quality", "metric_anomaly"):
        steps.append("trainwarden doctor  # is everything reachable, permitted and in time")
    if incident.kind == "metric_anomaly":
        steps.append("trainwarden models list  # which models have voted")
    if incident.wants_action:
        steps.append(f"trainwarden incidents --open --job {job}  # does it last")
    steps.append(f"trainwarden report --job {job} --out report.html  # steps, votes and actions as one page")
    return tuple(steps)


def quoted(name: str) -> str:
    """`name` as one word of a shell and on one line, whatever it holds.

    Examples
    --------
    >>> print(quoted("node-1"), quoted("a b"), quoted("a\\tb"))
    node-1 'a b' $'a\\U00000009b'
    """
    if name.isprintable():
        return shlex.quote(name)
    letters = (f"\\{one}" if one in "\\'" else one if one.isprintable() else f"\\U{ord(one):08x}" for one in name)
    return f"$'{''.join(letters)}'"
