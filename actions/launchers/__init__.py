"""One file per launcher, each a `trainwarden.launching.Launcher`. CATALOG is the table of what there is.

Read `actions.launchers.local.client` first.
"""

from __future__ import annotations

from typing import Final

CATALOG: Final[dict[str, str]] = {
    "kubernetes": "actions.launchers.kubernetes.client:KubernetesLauncher",
    "local": "actions.launchers.local.client:LocalLauncher",
    "slurm": "actions.launchers.slurm.client:SlurmLauncher",
    "torchrun": "actions.launchers.torchrun.client:TorchrunLauncher",
    "webhook": "actions.launchers.webhook.client:WebhookLauncher",
}
ENTRY_POINTS: Final = "trainwarden.launchers"
