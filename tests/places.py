"""Where things lie: the checkout, the tests' own data, and the shared data that may lie beside the checkout."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
DATA: Final = ROOT / "tests" / "data"


def shared_data() -> Path | None:
    """The folder of shared data sets (`TRAINWARDEN_SHARED`, else beside the checkout); None if there is none here."""
    named = os.environ.get("TRAINWARDEN_SHARED")
    root = Path(named) if named else ROOT.parent / "shared"
    return root / "data" if (root / "data").is_dir() else None
