"""What a demo does: which fault, on which rank, at which step of how many."""

from __future__ import annotations

from typing import Self

import msgspec

from trainwarden.actions.remedies.policy import Mode
from trainwarden.errors import ConfigError

DEADLINE_S = 170.0  # the demo ends within three minutes, whatever happens
FIRST_FAULT_STEP = 35  # enough healthy steps before it to know what is usual
LEARNT_STEP = 100  # of slow-rank: by then, after half a minute, the job has taught models by its own healthy start
STEPS_AFTER_FAULT = 60
LEAST_STEPS_AFTER_FAULT = 25


class DemoPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo does; see ``trainwarden demo --help``."""

    fault: str
    rank: int
    slowdown: float
    at_step: int
    ranks: int
    seed: int
    steps: int
    mode: Mode
    within_s: float = DEADLINE_S
    goes_on: bool = False  # without the rank that is killed, until it joins again

    @classmethod
    def checked(
        cls,
        *,
        fault: str,
        rank: int,
        slowdown: float,
        at_step: int | None,
        ranks: int,
        seed: int,
        steps: int | None,
        mode: Mode,
        within_s: float = DEADLINE_S,
        goes_on: bool = False,
    ) -> Self:
        """A plan that can be carried out; steps that nobody named follow from the seed.

        Raises
        ------
        ConfigError
            If it cannot.

        Examples
        --------
        >>> plan = DemoPlan.checked(fault="hang", rank=1, slowdown=2.0, at_step=None, ranks=4, seed=3, steps=None,
        ...     mode="auto")
        >>> plan.at_step, plan.steps
        (38, 98)
        """
        if rank >= ranks and fault != "none":
            raise ConfigError(f"--rank {rank}: ranks are 0 to {ranks - 1}")
        if fault in ("slow-rank", "hang") and ranks < 2:
            raise ConfigError(
                f"--ranks {ranks}: a {fault} is told from a busy rank by its peers, so it needs at least 2"
            )
        if goes_on and (fault != "crash" or ranks < 2):
            raise ConfigError("--continue: that is of --fault kill, and of 2 ranks or more")
        if goes_on and mode != "auto":
            raise ConfigError(f"--mode {mode}: the rank that --continue takes back is started in mode auto alone")
        first = LEARNT_STEP if fault == "slow-rank" else FIRST_FAULT_STEP
        at_step = at_step if at_step is not None else first + seed % 7
        steps = steps if steps is not None else at_step + STEPS_AFTER_FAULT
        if at_step + LEAST_STEPS_AFTER_FAULT > steps and fault != "none":
            raise ConfigError(
                f"--steps {steps}: leave at least {LEAST_STEPS_AFTER_FAULT} steps after the fault at step {at_step}"
            )
        return cls(
            fault=fault,
            rank=rank,
            slowdown=slowdown,
            at_step=at_step,
            ranks=ranks,
            seed=seed,
            steps=steps,
            mode=mode,
            within_s=within_s,
            goes_on=goes_on,
        )
