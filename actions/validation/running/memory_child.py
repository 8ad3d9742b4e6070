"""Fills memory with patterns and reads them back; run as a file by `node_checks`, not imported.

``python -I -S memory_child.py BYTES``: a process of its own, as the kernel may end whoever asks for too much. Standard
library only. Prints MB/s; what is wrong is one sentence and exit code 1.
"""

from __future__ import annotations

import mmap
import sys
import time

_BLOCK = 1 << 20
_PATTERNS = (0x55, 0xAA)  # each bit both ways, and never as its neighbours
WRONG = 1


def main(size: int) -> int:
    """Check `size` bytes, rounded down to blocks of 1 MiB."""
    count = max(1, size // _BLOCK)
    start_s = time.perf_counter()
    with mmap.mmap(-1, count * _BLOCK) as memory:
        for pattern in _PATTERNS:
            block = bytes([pattern]) * _BLOCK
            for number in range(count):
                memory[number * _BLOCK : (number + 1) * _BLOCK] = block
            for number in range(count):
                if memory[number * _BLOCK : (number + 1) * _BLOCK] != block:
                    sys.stdout.write(f"a pattern of {pattern:#04x} does not come back as it was written")
                    return WRONG
    sys.stdout.write(f"{len(_PATTERNS) * count * _BLOCK / 1e6 / (time.perf_counter() - start_s):.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
