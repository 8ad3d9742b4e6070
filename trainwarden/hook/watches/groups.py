"""The named process groups of this rank, written down once for the agent: ``.groups`` beside the shared file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise

from ..memory import Memory
from ..steps import Steps
from . import hide, loaded

_MADE_BY_STEP = 2  # frameworks make their groups before the first step, some when it runs
_MOST_GROUPS = 64
_NAMELESS = ("", "default_pg", "undefined")


@hide
def watch_groups(memory: Memory, steps: Steps) -> bool:
    """Once the first steps are over, what groups with a name this rank is in; groups without one tell nothing."""
    if steps.count < _MADE_BY_STEP:
        return False
    distributed = loaded("torch.distributed.distributed_c10d")
    world = getattr(distributed, "_world", None)
    named: dict[str, str] = {}
    for group, places in [*getattr(world, "pg_group_ranks", {}).items()][:_MOST_GROUPS]:
        name = str(getattr(group, "group_desc", ""))
        if name not in _NAMELESS:
            named.setdefault(name[:100], ranks_text([*places]))
    if named or memory.uneven:
        memory.leave(".groups", json.dumps({"groups": named, "uneven": memory.uneven}).encode())
    return True


@hide
def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks as text, shorter where they are evenly spaced.

    Examples
    --------
    >>> ranks_text([0, 1, 2, 3]), ranks_text([1, 9, 17]), ranks_text([0, 1, 5]), ranks_text([4])
    ('0-3', '1-17:8', '0,1,5', '4')
    """
    steps = {after - before for before, after in pairwise(ranks)}
    if len(steps) != 1 or min(steps) < 1:
        return ",".join(map(str, ranks))
    step = steps.pop()
    return f"{ranks[0]}-{ranks[-1]}" + (f":{step}" if step > 1 else "")
