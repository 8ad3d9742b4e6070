"""Clocks of nodes: who is off or follows nothing is named, what one look cannot show is not judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.trainwarden.formats.judging import HEADINGS, filed, headed, judged, judged_text, labelled

TRACKING = """Reference ID    : {id} ({name})
Stratum         : 3
Ref time (UTC)  : Mon Sep 21 14:00:00 2026
System time     : {off} seconds slow of NTP time
Last offset     : +0.000001234 seconds
RMS offset      : 0.000023001 seconds
Leap status     : {leap}
"""
SOURCES = """MS Name/IP address         Stratum Poll Reach LastRx Last sample
===============================================================================
^{state} ntp1.example.com              2   6   377    23   {off}[{off}] +/- 1234us
^- ntp2.example.com              2   6   377    23   +900ms[ +900ms] +/-   99ms
^? ntp3.example.com              0   6     0     -     +0ns[   +0ns] +/-    0ns
"""
STATS = """Name/IP Address            NP  NR  Span  Frequency  Freq Skew  Offset  Std Dev
==============================================================================
ntp1.example.com           11   5   46m     -0.001      0.045  {off}    25us
ntp2.example.com           11   5   46m     -0.001      0.045  {off}    25us
"""
NTPQ = """     remote           refid      st t when poll reach   delay   offset  jitter
==============================================================================
{state}ntp1.example.com .GPS.            1 u   33   64  377    0.123  {off}   0.012
+ntp2.example.com 10.0.0.1         2 u   40   64  377    0.323    0.101   0.022
 ntp3.example.com .INIT.          16 u    -   64    0    0.000    0.000   0.000
"""
TIMEDATECTL = """               Local time: Mon 2026-09-21 14:00:00 UTC
           Universal time: Mon 2026-09-21 14:00:00 UTC
                 RTC time: Mon 2026-09-21 14:00:00
                Time zone: Etc/UTC (UTC, +0000)
System clock synchronized: {synced}
              NTP service: active
          RTC in local TZ: no
"""


def tracking(off: str = "0.000012345", leap: str = "Normal") -> str:
    return TRACKING.format(id="0A000001", name="ntp1.example.com", off=off, leap=leap)


OFF = tracking("0.412345678")
FREE = tracking("0.000000000", "Not synchronised")


@pytest.mark.parametrize(
    ("text", "is_off"),
    [
        (OFF, True),
        (tracking("0.021000000"), False),
        (SOURCES.format(state="*", off="+412ms"), True),
        (SOURCES.format(state="*", off="+12us"), False),
        (STATS.format(off="-310ms"), True),
        (STATS.format(off="+1us"), False),
        (NTPQ.format(state="*", off="-412.345"), True),
        (NTPQ.format(state="*", off="0.456"), False),
        (TIMEDATECTL.format(synced="yes"), False),
    ],
)
def test_a_clock_that_is_far_off_is_named(tmp_path: Path, text: str, is_off: bool):
    told = judged_text(tmp_path, text, "gpu-03.txt")
    assert [kind for kind, _, _ in told[1]] == ["data_quality"] * is_off
    assert told[0] == ("incident" if is_off else "healthy")


@pytest.mark.parametrize(
    "free",
    [
        FREE,
        SOURCES.format(state="?", off="+0ns"),
        NTPQ.format(state=" ", off="0.000"),
        TIMEDATECTL.format(synced="no"),
    ],
)
def test_a_clock_that_follows_nothing_is_named_where_others_do(tmp_path: Path, free: str):
    assert judged_text(tmp_path, free)[0] == "not judged"
    parts = {f"gpu0{n}": free if n == 3 else TIMEDATECTL.format(synced="yes") for n in range(1, 5)}
    assert judged_text(tmp_path, headed(parts)) == ("incident", [("data_quality", "gpu03", None)])


@pytest.mark.parametrize("odd", [OFF, FREE])
def test_nodes_by_labels_headings_and_files(tmp_path: Path, odd: str):
    parts = {f"gpu0{n}": odd if n == 3 else tracking() for n in range(1, 6)}
    for text in (labelled(parts), *(headed(parts, heading) for heading in HEADINGS)):
        assert judged_text(tmp_path, text) == ("incident", [("data_quality", "gpu03", None)])
    assert judged(filed(tmp_path / "files", parts)) == ("incident", [("data_quality", "gpu03", None)])
    well = {node: tracking() for node in parts}
    assert judged(filed(tmp_path / "well", well)) == ("healthy", [])


def test_clocks_that_are_all_off_accuse_no_node_and_a_cut_answer_is_read(tmp_path: Path):
    assert judged_text(tmp_path, headed({f"gpu0{n}": OFF for n in range(1, 6)}))[0] == "not judged"
    text = headed({f"gpu0{n}": OFF if n == 3 else tracking() for n in range(1, 6)})
    assert judged_text(tmp_path, text[: int(0.8 * len(text))])[1] == [("data_quality", "gpu03", None)]
    assert judged_text(tmp_path, TRACKING[:60])[0] == "not judged"
