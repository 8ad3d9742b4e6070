"""`trainwarden uncordon`: a person's word that a node is put back."""

from __future__ import annotations

from trainwarden.cli.ask.fleet.node_word import Job, Node, Wait, Why, say
from trainwarden.cli.shared.options import BusAddress, ConfigFile, Json, KeyFile


def uncordon(
    node: Node,
    *,
    why: Why = "",
    job: Job = None,
    wait: Wait = 20.0,
    bus: BusAddress = None,
    key: KeyFile = None,
    config: ConfigFile = None,
    json: Json = None,
) -> int:
    """Have a node put back that trainwarden took out; what was seen of it before takes it out no more.

    Example: trainwarden uncordon n7 --why "new fan"
    """
    return say("uncordon", node, job, why, wait_s=wait, bus=bus, key=key, config=config, json=json)
