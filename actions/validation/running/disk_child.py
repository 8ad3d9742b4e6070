"""Writes, syncs and reads back a file on a disk; run as a file by `node_checks`, not imported.

``python -I -S disk_child.py FOLDER BYTES``: a process of its own, as who waits for a disk that hangs cannot be ended.
Standard library only. Prints two numbers, MB/s written and read; what is wrong is one sentence and exit code 1.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
import zlib

_BLOCK = 1 << 20
WRONG = 1


def main(folder: str, size: int) -> int:
    """Check `folder` with `size` bytes; its file has no name, so a kill leaves none behind."""
    block = random.Random(size).randbytes(_BLOCK)
    count = max(1, size // _BLOCK)
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".trainwarden-", buffering=0) as file:
            written_s = time.perf_counter()
            for number in range(count):
                _whole(file.fileno(), number.to_bytes(8, "little") + block[8:])
            os.fsync(file.fileno())
            written_s = time.perf_counter() - written_s
            # So that it is the disk that answers, where the kernel follows the advice.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            read_s = time.perf_counter()
            for number in range(count):
                back = os.pread(file.fileno(), _BLOCK, number * _BLOCK)
                if zlib.crc32(back) != zlib.crc32(number.to_bytes(8, "little") + block[8:]):
                    sys.stdout.write(f"what was written to {folder} does not come back as it was")
                    return WRONG
            read_s = time.perf_counter() - read_s
    except OSError as error:
        sys.stdout.write(f"{folder} cannot be written and read back ({error.strerror})")
        return WRONG
    mb = count * _BLOCK / 1e6
    sys.stdout.write(f"{mb / written_s:.1f} {mb / read_s:.1f}")
    return 0


def _whole(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
