"""Two hundred seeded runs in one process: two real engines and a real cluster under every fault, and no rule broken.

`trainwarden bench chaos` counts them. `tests/system/test_chaos_processes.py` does some of it to real processes.
"""

from __future__ import annotations

import msgspec
import pytest

from tests.chaos.runs import QUICK, SEEDS, summed
from tests.chaos.world import World


@pytest.mark.thorough
def test_twenty_runs_break_no_rule_and_come_to_every_kind_of_fault() -> None:
    """Runs that come to nothing would show nothing."""
    total = summed(World(seed).run() for seed in QUICK)
    assert not {rule: found for rule, found in total.violations.items() if found}
    assert min(total.actions[kind] for kind in ("restart", "evict", "validate", "stop", "cordon", "move")) > 0
    assert min(total.done[what] for what in ("move", "evict", "restart", "cordon", "uncordon")) > 0
    assert len(total.faults) >= 32
    assert total.ends["goes on"] > total.ends["stopped"] > 0


@pytest.mark.thorough
@pytest.mark.parametrize("tenth", range(1, len(SEEDS) // len(QUICK)))
def test_the_other_runs_break_none_either(tenth: int) -> None:
    total = summed(World(seed).run() for seed in SEEDS[tenth * len(QUICK) : (tenth + 1) * len(QUICK)])
    assert not {rule: found for rule, found in total.violations.items() if found}


@pytest.mark.thorough
def test_a_seed_is_one_history() -> None:
    one, other = (msgspec.to_builtins(World(7).run().effects) for _ in range(2))
    assert one == other
