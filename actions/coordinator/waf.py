"""What jobs are worth as they run, beside what they would be if lost nodes were waited for and jobs only restarted."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from trainwarden.actions.coordinator.reallocation import Member, available


class RestartOnly:
    """Nodes of each job if none ever went to another: those that it ran on first, all needed to run at all."""

    def __init__(self) -> None:
        self.shares: dict[str, frozenset[str]] = {}

    def observe(self, members: Sequence[Member]) -> None:
        """Follow launches and ends. A job that finds no nodes of its own waits until enough are free."""
        self.shares = {job: share for job, share in self.shares.items() if job in {one.task.job for one in members}}
        usable = set(available(members))
        for one in members:
            if one.task.job in self.shares or not one.runs:
                continue
            free = usable.difference(*self.shares.values())
            first = [node for node in (*one.holds, *one.waiting) if node in free]
            share = frozenset(first[: min(one.task.maximum, max(len(one.holds), one.task.minimum))])
            if len(share) >= one.task.minimum:
                self.shares[one.task.job] = share

    def nodes(self, member: Member, usable: set[str]) -> int:
        """Nodes on which it would run now: all of its own, or none."""
        share = self.shares.get(member.task.job, frozenset())
        return len(share) if share <= usable else 0


class Worth:
    """Weighted throughput of all jobs: now, as planned and if only restarted; and the sums of the three over time."""

    def __init__(self) -> None:
        self.restart_only = RestartOnly()
        self.sums: dict[str, dict[str, float]] = {}
        self._seen_s: float | None = None
        self._last: dict[str, dict[str, float]] = {}

    def observe(self, members: Sequence[Member], goal: Mapping[str, int], now_s: float) -> dict[str, dict[str, float]]:
        """By job the three, as they are at `now_s`; each lasts until the next call."""
        if self._seen_s is not None:
            for job, values in self._last.items():
                sums = self.sums.setdefault(job, dict.fromkeys(values, 0.0))
                for name, value in values.items():
                    sums[name] += value * (now_s - self._seen_s)
        self.restart_only.observe(members)
        usable = set(available(members))
        self._seen_s, self._last = now_s, {
            one.task.job: {
                "now": one.waf(len(one.holds)) if one.runs else 0.0,
                "planned": one.waf(goal.get(one.task.job, len(one.holds))),
                "restart_only": one.waf(self.restart_only.nodes(one, usable)),
            }
            for one in members
        }  # fmt: skip
        return self._last

    def forget(self, jobs: Container[str]) -> None:
        """Let go of the sums of all but `jobs`."""
        self.sums = {job: sums for job, sums in self.sums.items() if job in jobs}
