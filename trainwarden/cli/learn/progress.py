"""How far a training run is: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from trainwarden.cli.shared.output import Voice

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, TaskID

    from trainwarden.trainer_offline.progress import Stage

ECHO = 3  # columns left free at the right: the ^C that a terminal writes there must not begin a new line
NARROW = 60  # columns below which a line has no room for a bar beside its words


class TrainingProgress:
    """One bar for each stage on standard error, where that is a terminal that can move its cursor; else lines.

    Parameters
    ----------
    voice : Voice
        Where the lines go.
    bars : bool
        Bars may be drawn: False where a program listens.
    console : rich.console.Console, optional
        Where the bars go; standard error by default.
    """

    def __init__(self, voice: Voice, *, bars: bool = True, console: Console | None = None) -> None:
        from rich.console import Console

        self._voice = voice
        # Bound to the stream of now: MLflow's own progress is kept quiet by a redirected sys.stderr.
        self._console = console or Console(file=sys.stderr)
        self._progress = self._made() if bars and self._console.is_terminal and not self._dumb() else None
        self._tasks: dict[Stage, TaskID] = {}
        self._stage: Stage | None = None
        self.registered = False

    def _dumb(self) -> bool:
        return self._console.is_dumb_terminal

    def _made(self) -> Progress:
        from rich.constrain import Constrain
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.table import Column

        console = self._console  # Progress has its own only once it is built

        class Bars(Progress):
            def get_renderables(self) -> Iterator[RenderableType]:
                yield Constrain(self.make_tasks_table(self.tasks), console.width - ECHO)

        # A line that is folded is drawn again and again below itself: words give way, counts and times do not.
        words = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        bar = [BarColumn(bar_width=20)] if self._console.width >= NARROW else []
        return Bars(
            SpinnerColumn(finished_text="✓" if self._console.encoding.lower().startswith("utf") else "*"),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            *bar,
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[words]}", markup=False, table_column=words),
            console=self._console,
            expand=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            if kind is None:
                self._finish()
            self._progress.stop()

    def __call__(self, stage: Stage, text: str, done: int = 0, of: int = 0, /) -> None:
        """Hear of a step (see `trainwarden.trainer_offline.progress.TellStage`)."""
        self._reached(stage)
        self.registered = stage == "registering" and 0 < of <= done
        if self._progress is None:
            self._voice.say(f"[{done}/{of}] {text}" if of else text)
            return
        if not of:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        if of:
            self._progress.update(self._tasks[stage], completed=done, total=of, words=text)

    def begin(self, stage: Stage, words: str) -> None:
        """Show that `stage` has begun, before anything is known of it; no line where there are no bars."""
        self._reached(stage)
        if self._progress is not None:
            self._progress.update(self._tasks[stage], words=words)

    def _reached(self, stage: Stage) -> None:
        """What came before `stage` is over; the clock of `stage` runs from now."""
        if stage == self._stage:
            return
        self._finish()
        self._stage = stage
        if self._progress is not None:
            self._tasks[stage] = self._progress.add_task(stage, total=None, words="")

    def _finish(self) -> None:
        if self._progress is None or self._stage not in self._tasks:
            return
        task = self._tasks[self._stage]
        total = self._progress.tasks[task].total or 1
        self._progress.update(task, completed=total, total=total, words="")

    @property
    def drawn(self) -> bool:
        """Whether there are bars, not lines."""
        return self._progress is not None

    @property
    def stage(self) -> Stage | None:
        """Where the run is, or was when it ended."""
        return self._stage
