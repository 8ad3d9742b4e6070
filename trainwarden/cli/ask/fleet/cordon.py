"""`trainwarden cordon`: a person's word that a node is taken out of use."""

from __future__ import annotations

from trainwarden.cli.ask.fleet.node_word import Job, Node, Wait, Why, say
from trainwarden.cli.shared.options import BusAddress, ConfigFile, Json, KeyFile


def cordon(
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
    """Have a node taken out of use: nothing new is started there, what runs goes on; exit code 1 if not done.

    Example: trainwarden cordon n7 --why "its fan is loud"
    """
    return say("cordon", node, job, why, wait_s=wait, bus=bus, key=key, config=config, json=json)
