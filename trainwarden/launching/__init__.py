"""The interface between engine and launchers: operations, their progress and results.

Read `trainwarden.launching.launcher` first.

::

    engine ── capabilities() ──▶ which verbs, and in its own words why not the others
           ── state(job) ──────▶ phase, generation, nodes, ranks on nodes
           ── submit(operation) ▶ accepted | done | refused          never waits for the operation's end
           ── poll(job, id) ───▶ accepted | running | done | failed | unknown

An operation is carried out once by its id, whoever asks how often. It names the generation that it was planned from;
a launcher whose generation has risen since then refuses it, so nobody acts on what is no longer true.
`trainwarden.launching.job_output` is what everybody who starts a job does with its output.
"""

from trainwarden.launching.launcher import Launcher
from trainwarden.launching.messages import (
    CHECKS,
    COORDINATOR_MARK,
    MAX_SENTENCE_CHARS,
    NODE_VERBS,
    Accused,
    Capabilities,
    Check,
    Findings,
    Generation,
    JobPhase,
    LauncherState,
    NodeCondition,
    NodeState,
    Operation,
    OperationId,
    Plan,
    Progress,
    Refusal,
    Report,
    Sentence,
    Targets,
    Verb,
    refusal,
    refused,
)
from trainwarden.launching.rates import DeviceRate, LinkRate, Rates, device_rates, link_rates, rates_in

__all__ = [
    "CHECKS",
    "COORDINATOR_MARK",
    "MAX_SENTENCE_CHARS",
    "NODE_VERBS",
    "Accused",
    "Capabilities",
    "Check",
    "DeviceRate",
    "Findings",
    "Generation",
    "JobPhase",
    "Launcher",
    "LauncherState",
    "LinkRate",
    "NodeCondition",
    "NodeState",
    "Operation",
    "OperationId",
    "Plan",
    "Progress",
    "Rates",
    "Refusal",
    "Report",
    "Sentence",
    "Targets",
    "Verb",
    "device_rates",
    "link_rates",
    "rates_in",
    "refusal",
    "refused",
]
