"""One file per launcher, each a `trainwarden.launching.Launcher`. CATALOG is the table of what there is.

Read `trainwarden.actions.launchers.torchrun.client` first.
"""

from __future__ import annotations

from typing import Final

CATALOG: Final[dict[str, str]] = {
    "kubernetes": "trainwarden.actions.launchers.kubernetes.client:KubernetesLauncher",
    "slurm": "trainwarden.actions.launchers.slurm.client:SlurmLauncher",
    "torchrun": "trainwarden.actions.launchers.torchrun.client:TorchrunLauncher",
    "webhook": "trainwarden.actions.launchers.webhook.client:WebhookLauncher",
}
ENTRY_POINTS: Final = "trainwarden.launchers"
