"""What the demo shows while it runs: a live table on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from trainwarden.cli.run.demo_fault import Fault
from trainwarden.cli.shared.follow import JobView
from trainwarden.cli.shared.output import Voice

if TYPE_CHECKING:
    from rich.table import Table

LINE_EVERY_STEPS = 10
REDRAW_S = 0.25
BARS = "▁▂▃▄▅▆▇█"


def spark(values: list[float], width: int = 40) -> str:
    """The last `width` values as a row of bars from 0 to the largest.

    Examples
    --------
    >>> spark([1.0, 1.0, 2.0])
    '▄▄█'
    """
    kept = values[-width:]
    top = max(kept, default=0.0)
    return "".join(BARS[min(7, int(7.999 * value / top))] if top > 0 else BARS[0] for value in kept)


class LiveView:
    """Iteration times, votes and incidents while the job runs.

    On a terminal a table is redrawn in place; elsewhere one line is written every ten steps.
    """

    def __init__(self, ranks: int, voice: Voice) -> None:
        from rich.console import Console
        from rich.live import Live

        self._ranks = ranks
        self._voice = voice
        self._console = Console(file=voice.stream)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._drawn_at_s = 0.0
        self._line_at_step = 0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def update(self, view: JobView, fault: Fault) -> None:
        """Show what `view` knows now; cheap when called often."""
        now_s = time.monotonic()
        if now_s - self._drawn_at_s < REDRAW_S:
            return
        self._drawn_at_s = now_s
        if self._live is not None:
            self._live.update(self._table(view, fault), refresh=True)
            return
        steps = view.iterations()
        if steps and steps[-1][0] >= self._line_at_step + LINE_EVERY_STEPS:
            self._line_at_step = steps[-1][0] - steps[-1][0] % LINE_EVERY_STEPS
            self._voice.say(f"step {steps[-1][0]}: {steps[-1][1]:.3f} s/iteration{self._votes(view)}")

    def _votes(self, view: JobView) -> str:
        if not view.verdicts:
            return ""
        verdict = view.verdicts[-1]
        voting = [name for name, vote in verdict.votes.items() if vote.opinion == "anomalous"]
        return f"; votes: {', '.join(voting)}" if voting else ""

    def _table(self, view: JobView, fault: Fault) -> Table:
        from rich.table import Table

        table = Table(title=f"job {view.job}", show_header=True, expand=False)
        for column in ("rank", "step", "phase", "iteration times", "now s", "compute s", "wait s"):
            table.add_column(column)
        rows: dict[int, list[tuple[int, dict[str, float | None]]]] = {rank: [] for rank in range(self._ranks)}
        for (rank, _, step), row in view.steps.items():
            rows.setdefault(rank, []).append((step, row))
        phases = {r: p for beat in view.heartbeats.values() for r, p in zip(beat.ranks, beat.phases, strict=False)}
        for rank, taken in sorted(rows.items()):
            taken.sort(key=lambda item: item[1]["end_s"] or 0.0)
            last = taken[-1][1] if taken else {}
            table.add_row(
                f"{rank} *" if fault.injected_at_s is not None and rank == fault.rank else str(rank),
                str(taken[-1][0]) if taken else "-",
                phases.get(rank, "-"),
                spark([row["duration_s"] or 0.0 for _, row in taken]),
                *(
                    f"{last[name]:.3f}" if last.get(name) is not None else "-"
                    for name in ("duration_s", "compute_s", "wait_s")
                ),
            )
        verdict = view.verdicts[-1] if view.verdicts else None
        if verdict is not None:
            table.caption = "votes: " + "  ".join(f"{name} {vote.score:.2f}" for name, vote in verdict.votes.items())
        return table
