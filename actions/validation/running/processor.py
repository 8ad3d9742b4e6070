"""How long this process waited for a processor, as the kernel counts it; absent where it does not say."""

from __future__ import annotations

from pathlib import Path

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


def waited_s(proc: Path = _PROC) -> float:
    """Seconds that all threads of this process were ready and had no processor, since they began.

    0 where the kernel counts none, so that nothing is taken off a measurement.
    """
    total_ns = 0
    for thread in (proc / "self/task").iterdir():
        try:
            total_ns += int((thread / "schedstat").read_bytes().split()[1])
        except (OSError, IndexError, ValueError):
            continue  # a thread that has just ended, or no schedstat
    return total_ns / 1e9


def stood_still_s(proc: Path = _PROC, cgroup: Path = _CGROUP) -> float | None:
    """Seconds for which the quota of this process's own control group has held it back; None if that is not told."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            stat = cgroup / path.lstrip("/") / "cpu.stat"
        elif "cpu" in controllers.split(","):
            stat = cgroup / controllers / path.lstrip("/") / "cpu.stat"
        else:
            continue
        told = _numbers(stat)
        if "throttled_usec" in told:
            return told["throttled_usec"] / 1e6
        if "throttled_time" in told:
            return told["throttled_time"] / 1e9
    return None


def _numbers(stat: Path) -> dict[str, int]:
    try:
        pairs = [line.split() for line in stat.read_text().splitlines()]
    except OSError:
        return {}
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
