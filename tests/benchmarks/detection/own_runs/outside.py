"""What is done to a rank from outside: stopped and continued by turns, or given less of a CPU than it needs."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from threading import Event
from typing import Any, Final

STOPPED_S, GOES_ON_S = 0.15, 0.25  # a slowdown by 1.6
STARVED_SHARE: Final = 0.4  # of what the rank used before
MEASURED_S: Final = 15.0
PERIOD_S: Final = 0.5  # of a control group's quota
GROUPS: Final = Path("/sys/fs/cgroup/cpu")


class Outside:
    """Carries out the orders that a rank cannot carry out on itself."""

    def __init__(self, pids: Path, orders: list[dict[str, Any]]) -> None:
        self._pids = pids
        self._orders = [one for one in orders if one["kind"] in {"stopped", "starved"}]

    def run(self, done: Event) -> None:
        """Until all is done or the job has ended."""
        for order in sorted(self._orders, key=lambda one: one["from_s"]):
            if done.wait(max(0.0, order["from_s"] - MEASURED_S - time.time())):
                return
            pid = int((self._pids / str(order["rank"])).read_text())
            with suppress(ProcessLookupError, FileNotFoundError):  # the job has ended first
                self._stop(pid, order, done) if order["kind"] == "stopped" else self._starve(pid, order, done)

    @staticmethod
    def _stop(pid: int, order: dict[str, Any], done: Event) -> None:
        done.wait(max(0.0, order["from_s"] - time.time()))
        try:
            while time.time() < order["to_s"] and not done.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep(STOPPED_S)
                os.kill(pid, signal.SIGCONT)
                time.sleep(GOES_ON_S)
        finally:
            os.kill(pid, signal.SIGCONT)

    @staticmethod
    def _starve(pid: int, order: dict[str, Any], done: Event) -> None:
        """A control group (version 1) that may use a share of what the rank used in the seconds before."""
        before_s, begun_s = _used_s(pid), time.time()
        done.wait(max(1.0, order["from_s"] - time.time()))
        used = (_used_s(pid) - before_s) / (time.time() - begun_s)
        group = GROUPS / f"own-run-{pid}"
        group.mkdir()
        try:
            (group / "cpu.cfs_period_us").write_text(str(round(1e6 * PERIOD_S)))
            (group / "cpu.cfs_quota_us").write_text(str(max(1_000, round(1e6 * PERIOD_S * used * STARVED_SHARE))))
            (group / "cgroup.procs").write_text(str(pid))
            order["used_cores"], order["allowed_cores"] = round(used, 4), round(used * STARVED_SHARE, 4)
            done.wait(max(0.0, order["to_s"] - time.time()))
        finally:
            with suppress(ProcessLookupError):
                (GROUPS / "cgroup.procs").write_text(str(pid))
            time.sleep(0.1)
            group.rmdir()


def _used_s(pid: int) -> float:
    """Processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
