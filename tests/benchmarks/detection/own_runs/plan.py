"""Which runs are captured, what goes wrong in them and when, and which half each run belongs to.

Runs are split by whole runs. What is chosen on them is chosen on the half "choose"; figures are those of "report".
Each script has a healthy run and one with faults in either half. Ten minutes of ranks that mostly sleep: a step is a
second of emulated device time, so that several jobs fit on two cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final, Literal

Half = Literal["choose", "report"]
Kind = Literal["starved", "stopped", "leak", "threads", "data_stall", "log_storm", "disk"]

STEP_S: Final = 1.0
FIRST_S: Final = (215.0, 245.0)  # a fault begins so long after the run; until then the run is healthy
SECOND_S: Final = (415.0, 440.0)
LENGTH_S: Final = {"log_storm": 20.0}
USUAL_LENGTH_S: Final = 110.0


@dataclass(frozen=True, slots=True)
class Spell:
    """One fault: `rank` suffers `kind` from `start_s` seconds after the command was started, for `length_s`."""

    kind: Kind
    rank: int
    start_s: float
    length_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """One training job: a script of the repository with so many ranks."""

    name: str
    half: Half
    script: str
    ranks: int
    seed: int
    minutes: float
    spells: tuple[Spell, ...]

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the script is given."""
        steps = round(60.0 * self.minutes / STEP_S)
        common = ("--steps", str(steps), "--seed", str(self.seed))
        ms = str(1_000.0 * STEP_S)
        own = {
            "train_gpt": ("--micro-batches", str(2 * self.ranks), "--micro-batch-ms", str(500.0 * STEP_S)),
            "ddp_accumulate": ("--work-ms", ms, "--save-every", "90", "--save-ms", "4000", "--evaluate-every", "70",
                               "--evaluate-ms", "3000"),
            "fsdp": ("--work-ms", ms),
            "sgd_by_hand": ("--work-ms", ms, "--micro-batches", "2"),
            "pipeline": ("--work-ms", str(1_000.0 * STEP_S / self.ranks * 2.0), "--micro-batches", "2"),
        }  # fmt: skip
        return (*common, *own[self.script])


SCRIPTS: Final = ("train_gpt", "ddp_accumulate", "fsdp", "sgd_by_hand", "pipeline")
RANKS: Final = {"pipeline": 4}
USUAL_RANKS: Final = 8
FAULTS: Final[dict[Half, tuple[tuple[Kind, ...], ...]]] = {
    "choose": (
        ("starved", "leak"),
        ("stopped", "threads"),
        ("data_stall", "disk"),
        ("log_storm", "starved"),
        ("threads", "stopped"),
    ),
    "report": (
        ("threads", "stopped"),
        ("leak", "starved"),
        ("log_storm", "threads"),
        ("stopped", "data_stall"),
        ("disk", "starved"),
    ),
}
HALVES: Final[tuple[Half, ...]] = ("choose", "report")


def runs() -> tuple[Run, ...]:
    """All runs, in the order in which they are captured: both halves in turn, healthy and with faults.

    Examples
    --------
    >>> [run.name for run in runs()][:3]
    ['train_gpt-choose-healthy', 'train_gpt-report-healthy', 'train_gpt-choose-faults']
    """
    return tuple(_drawn())


def _drawn() -> Iterator[Run]:
    for place, script in enumerate(SCRIPTS):
        for faulty in (False, True):
            for half in HALVES:
                seed = 100 * (1 + place) + 10 * HALVES.index(half) + faulty
                ranks = RANKS.get(script, USUAL_RANKS)
                spells = _spells(FAULTS[half][place], ranks, seed) if faulty else ()
                name = f"{script}-{half}-{'faults' if faulty else 'healthy'}"
                yield Run(name, half, script, ranks, seed, 10.0, spells)


def _spells(kinds: tuple[Kind, ...], ranks: int, seed: int) -> tuple[Spell, ...]:
    """When and where: drawn by the run's seed."""
    random = Random(seed)
    return tuple(
        Spell(kind, random.randrange(ranks), round(random.uniform(*span), 1), LENGTH_S.get(kind, USUAL_LENGTH_S))
        for kind, span in zip(kinds, (FIRST_S, SECOND_S), strict=True)
    )
