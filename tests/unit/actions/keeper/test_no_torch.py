"""Agent and keeper, with all that they import to work, run where no torch is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

LOOKS = "import sys, {module}; sys.exit('torch' in sys.modules)"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("module", "loads"),
    [
        ("trainwarden.actions.keeper.service", False),
        ("trainwarden.cli.serve.keeper", False),
        ("trainwarden.collectors.agent.agent", False),
        ("trainwarden.torchrun.memory", False),
        ("trainwarden.checkpoint.slots", False),
        ("trainwarden.checkpoint.saving", True),  # the script's part, so that this test sees what it looks for
    ],
)
def test_what_runs_beside_the_ranks_loads_no_torch(module: str, loads: bool) -> None:
    looked = subprocess.run([sys.executable, "-c", LOOKS.format(module=module)], check=False, timeout=250)
    assert looked.returncode == loads
