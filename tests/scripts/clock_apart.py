"""The command line with a wall clock that is so many seconds ahead of the machine's, or behind it.

clock_apart.py SECONDS WORD...
"""

from __future__ import annotations

import sys
import time

from trainwarden.cli.main import run

if __name__ == "__main__":
    ahead_s, right = float(sys.argv[1]), time.time
    time.time = lambda: right() + ahead_s
    sys.argv[:2] = ["trainwarden"]
    run()
