"""`ring.py`, but the rank of one node is killed so many seconds after its start, each time.

dying_ring.py STEPS LOG NODE SECONDS
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from ring import main  # beside this file, which is run as a script


def die_later() -> None:
    time.sleep(float(sys.argv[4]))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    if os.environ["TRAINWARDEN_NODE"] == sys.argv[3]:
        threading.Thread(target=die_later, daemon=True).start()
    del sys.argv[3:]
    main()
