"""Nodes that have fallen silent: which are lost, and when it is our own pipeline that is.

A missing heartbeat says that the agent, the way to the bus, the bus or the node is away. A node is lost only if a
second witness says so: its peers wait for it, or nobody has made a step for far longer than steps take. While the job
moves on, nobody is lost, and a node without which it has moved on has lost its agent alone, whatever comes later; where
most fall silent together, what they share has failed, and that is the way to us.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
import numpy as np

from trainwarden.detectors.job.beats import KNOWN_PAUSES, WAIT
from trainwarden.detectors.job.common_mode import quiet_median
from trainwarden.detectors.job.window import Window, job_duration_s
from trainwarden.settings import Config

HEARD_S: Final = 1.0  # a node that is silent for no longer is there
MOST: Final = 0.5  # of the nodes
RECENT: Final = 32  # steps that the usual step time is taken over


class NodeConfig(Config, frozen=True, kw_only=True):
    """When a silent node is lost.

    Attributes
    ----------
    node_silent_s : float
        Least silence of a lost node; an agent that is started anew takes three seconds.
    all_silent_s : float
        When most nodes have been silent for this long, the pipeline has failed.
    wait_steps, still_steps : float
        Usual steps without any step or call: of peers that all wait, and of peers whose waiting is not seen.
    unknown_s : float
        The same where no usual step is known, and least of it while a peer is in a checkpoint or another known pause.
    """

    node_silent_s: Annotated[float, msgspec.Meta(gt=0.0)] = 4.0
    all_silent_s: Annotated[float, msgspec.Meta(gt=0.0)] = 5.0
    wait_steps: Annotated[float, msgspec.Meta(ge=1.0, le=100.0)] = 1.5
    still_steps: Annotated[float, msgspec.Meta(ge=1.0, le=100.0)] = 3.0
    unknown_s: Annotated[float, msgspec.Meta(gt=0.0)] = 30.0


def pipeline_is_silent(window: Window, config: NodeConfig) -> bool:
    """True if most nodes fell silent at about the same time, which is about none of them."""
    silent = window.node_silent_s
    return sum(silent_s > config.node_silent_s / 2 for silent_s in silent.values()) > MOST * len(silent)


def lost_nodes(window: Window, config: NodeConfig) -> dict[str, str]:
    """Nodes that are lost now, each with the reason."""
    if not any(for_s > config.node_silent_s for for_s in window.node_silent_s.values()):
        return {}
    usual_s = _usual_s(window)
    outlived_s = window.still_s + config.node_silent_s + (usual_s or config.unknown_s) * config.still_steps
    silent = {node: for_s for node, for_s in window.node_silent_s.items() if config.node_silent_s < for_s <= outlived_s}
    if not silent or pipeline_is_silent(window, config):
        return {}
    witness = _witness(window, config, usual_s)
    if witness is None:
        return {}
    return {
        node: f"{node} has sent no heartbeat for {silent_s:.1f} s and {witness}" for node, silent_s in silent.items()
    }


def _usual_s(window: Window) -> float | None:
    """How long a step usually takes."""
    if not len(window.steps):
        return None
    rows = slice(max(0, len(window.steps) - RECENT), None)
    usual_s = float(quiet_median(job_duration_s(window, rows)))
    return usual_s if np.isfinite(usual_s) else None


def _witness(window: Window, config: NodeConfig, usual_s: float | None) -> str | None:
    """What the nodes that are heard say to it; None if they do not confirm it."""
    heard = np.array([window.node_silent_s.get(node, np.inf) <= HEARD_S for node in window.nodes], dtype=np.bool_)
    peers = heard & window.live
    if not peers.any():
        return None
    phases = window.beats.phase[: peers.size][peers]
    waits = bool((phases == WAIT).all())
    if usual_s is None:
        least_s = config.unknown_s
    else:
        least_s = max(config.node_silent_s / 2, (config.wait_steps if waits else config.still_steps) * usual_s)
    if np.isin(phases, KNOWN_PAUSES).any():
        least_s = max(least_s, config.unknown_s)
    if window.still_s <= least_s:
        return None
    return "its peers wait" if waits else f"no rank has made a step for {window.still_s:.1f} s"
