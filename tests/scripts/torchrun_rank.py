"""A rank that says where it is and waits: RANK's file in the folder given; it fails while a file FAIL-RANK is there.

Where a file `end` is there it ends well. Standard library alone, so that many start at once.
"""

from __future__ import annotations

import os
import pathlib
import sys
import time

folder, rank, attempt = pathlib.Path(sys.argv[1]), os.environ["RANK"], os.environ["TRAINWARDEN_ATTEMPT"]
place = f"{attempt}-{rank}-{os.environ['TRAINWARDEN_NODE']}"
(folder / f"{place}.begun").write_text(f"{os.getpid()} {os.environ.get('TRAINWARDEN_RESUME_FROM', '')}")
while not (folder / "end").exists():
    if (folder / f"fail-{attempt}-{rank}").exists():
        sys.exit(7)
    time.sleep(0.05)
