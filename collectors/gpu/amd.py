"""How many AMD GPUs there are: by their kernel driver, as nothing else of theirs is read.

AMD's own binding (``amdsmi``) is one for ROCm's ``libamd_smi.so`` and does not import without it; what could not be run
is not built.
"""

from __future__ import annotations

import re
from pathlib import Path

_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


def amd_gpus(sysfs: str) -> int:
    """GPUs that the ``amdgpu`` driver of the kernel has taken, by PCI address."""
    try:
        return sum(bool(_ADDRESS.fullmatch(found.name)) for found in Path(sysfs, "bus/pci/drivers/amdgpu").iterdir())
    except OSError:
        return 0
