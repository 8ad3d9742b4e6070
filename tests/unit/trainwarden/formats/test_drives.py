"""Drives that fail and arrays without one are reported by smartctl, nvme and /proc/mdstat; healthy ones are passes."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainwarden.formats.reading import read_job

ATA = """smartctl 7.3 2022-02-28 r5338 [x86_64-linux] (local build)
Serial Number:    ZC1{serial}
SMART overall-health self-assessment test result: {health}
ID# ATTRIBUTE_NAME          FLAG     VALUE WORST THRESH TYPE      UPDATED  WHEN_FAILED RAW_VALUE
  5 Reallocated_Sector_Ct   0x0033   {value}   001   010    Pre-fail  Always       {when} 3920
"""
WELL = ATA.format(serial="A", health="PASSED", value="099", when="-")
ILL = ATA.format(serial="B", health="FAILED!", value="001", when="FAILING_NOW")
NVME = "Smart Log for NVME device:nvme{number} namespace-id:ffffffff\ncritical_warning      : {warning}\n"
ARRAYS = """Personalities : [raid1]
md0 : active raid1 sdb1[1](F) sda1[0]
      104320 blocks [2/1] [U_]
md1 : active raid1 sdd1[1] sdc1[0]
      104320 blocks [2/2] [UU]
md2 : inactive sde1[0](S)
      104320 blocks
unused devices: <none>
"""


def lines_of(text: str, tmp_path: Path, name: str = "out.txt") -> list[str]:
    file = tmp_path / name
    file.write_text(text)
    return [line.removeprefix("health check: ") for log in read_job(file).logs for line in log.lines]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (
            WELL + ILL,
            [
                "drive_ZC1A passed",
                "drive_ZC1B storage failed: it says itself that it fails, Reallocated_Sector_Ct is below its threshold",
            ],
        ),
        (
            NVME.format(number=0, warning="0x9") + NVME.format(number=1, warning=0),
            ["/dev/nvme0 storage failed: spare blocks run out, it is read only", "/dev/nvme1 passed"],
        ),
        (NVME.format(number=0, warning="0x2"), ["/dev/nvme0 passed"]),  # hot: that is for limits of temperatures
        (
            ARRAYS,
            [
                "/dev/md0 storage failed: 1 of 2 drives are missing: sdb1 failed",
                "/dev/md1 passed",
                "/dev/md2 storage failed: the array is not active",
            ],
        ),
        (
            '{"json_format_version": [1, 0], "smartctl": {"version": [7, 3]}, "device": {"name": "/dev/sdb"},'
            ' "smart_status": {"passed": false}}',
            ["/dev/sdb storage failed: it says itself that it fails"],
        ),
        ('{"critical_warning": {"value": 4}, "media_errors": 3}', ["out.txt storage failed: its reliability"]),
        ('{"critical_warning": 0, "media_errors": 3}', ["out.txt passed"]),
    ],
)
def test_drives_are_judged_by_their_own_word(text: str, lines: list[str], tmp_path: Path) -> None:
    found = lines_of(text, tmp_path)
    assert len(found) == len(lines)
    assert all(one.startswith(said) for one, said in zip(found, lines, strict=True)), found
