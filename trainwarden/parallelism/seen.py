"""What the process groups of all ranks, put together, say of a job's layout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from trainwarden.hook import ranks_text
from trainwarden.parallelism.groups import Spaced, of_text, spaced_of
from trainwarden.parallelism.layout import AXES, WORDS, Layout


class Seen(NamedTuple):
    """Sizes by kind, the axes fastest first (empty: not told), whether the model is shared out, what does not fit."""

    sizes: dict[str, int]
    order: tuple[str, ...]
    sharded: bool
    contradictions: tuple[str, ...]


def seen(groups: Mapping[int, str]) -> Seen:
    """Sizes and order from the groups that each rank is in.

    Parameters
    ----------
    groups : mapping of int to str
        By rank, as `trainwarden.parallelism.groups.by_kind` writes them.

    Examples
    --------
    >>> seen({0: "pp=0-2:2;tp=0-1", 1: "pp=1-3:2;tp=0-1"})
    Seen(sizes={'pp': 2, 'tp': 2}, order=('tp', 'cp', 'dp', 'pp'), sharded=False, contradictions=())
    """
    of_kind: dict[str, set[str]] = defaultdict(set)
    for text in groups.values():
        for kind, ranks in of_text(text).items():
            of_kind[kind].add(ranks)
    alike: dict[str, Spaced] = {}
    wrong = []
    for kind, found in sorted(of_kind.items()):
        word = WORDS.get(kind, "data")
        spaced = [spaced_of(ranks) for ranks in found]  # each group once, not for each of its ranks
        shapes = {one._replace(first=0) for one in spaced if one is not None}
        if None in spaced:
            wrong.append(f"a {word} parallel group is not evenly spaced")
        elif len({one.size for one in shapes}) > 1:
            unlike = " and ".join(str(size) for size in sorted({one.size for one in shapes}))
            wrong.append(f"{word} parallel groups have {unlike} ranks")
        elif len(shapes) > 1:
            wrong.append(f"{word} parallel groups are not spaced alike")
        else:
            (alike[kind],) = shapes
    sharded = max(alike.get(kind, Spaced(0, 1, 1)).size for kind in ("shard", "fsdp")) > 1
    told, odd = _with_data(alike)
    sizes = {kind: one.size for kind, one in told.items()}
    return Seen(sizes, _order(told), sharded, (*wrong, *odd))


def _with_data(alike: dict[str, Spaced]) -> tuple[dict[str, Spaced], tuple[str, ...]]:
    """The data-parallel group from those of a device mesh: ranks that replicate, and ranks that share the model out."""
    told = {kind: one for kind, one in alike.items() if kind in WORDS}
    shard, replicate = alike.get("shard"), alike.get("replicate")
    if shard is None and (fsdp := alike.get("fsdp")) is not None:  # that one holds context parallelism too
        context = told.get("cp", Spaced(0, 1, 1))
        if fsdp.size % context.size:
            return told, (f"{fsdp.size} ranks that share the model are no multiple of context {context.size}",)
        shard = Spaced(0, fsdp.step * context.size, fsdp.size // context.size)
    if "dp" in told or (shard is None and replicate is None):
        return told, ()
    if shard is None or replicate is None or 1 in (shard.size, replicate.size):
        parts = [one for one in (shard, replicate) if one is not None]
        told["dp"] = max(parts, key=lambda one: one.size)
    elif replicate.step == shard.step * shard.size:
        told["dp"] = Spaced(0, shard.step, shard.size * replicate.size)
    else:
        return told, ("ranks that replicate do not follow ranks that share the model",)
    return told, ()


def _order(told: Mapping[str, Spaced]) -> tuple[str, ...]:
    """Axes by how far apart their ranks are; one of a single rank or that nobody has told stays where it usually is."""
    known = [axis for axis in AXES if axis in told and told[axis].size > 1]
    if len(known) < 2:
        return ()
    ordered = iter(sorted(known, key=lambda axis: told[axis].step))
    return tuple(next(ordered) if axis in known else axis for axis in AXES)


def misplaced(layout: Layout, groups: Mapping[int, str]) -> Iterable[str]:
    """Groups that are not those of a whole `layout`; one sentence for each kind.

    Examples
    --------
    >>> layout = Layout(world_size=4, sizes={"tp": 2, "cp": 1, "dp": 2, "pp": 1})
    >>> list(misplaced(layout, {0: "tp=0-1", 1: "tp=1-3:2"}))
    ['rank 1 is in tensor parallel group 1-3:2, and by the sizes would be in 0-1']
    """
    told = {rank: of_text(groups[rank]) for rank in sorted(groups)}
    for kind in layout.order:
        expected = {rank: text for ranks in layout.groups(kind) for text in [ranks_text(ranks)] for rank in ranks}
        for rank, made_of in told.items():
            made = made_of.get(kind)
            if made is not None and rank in expected and made != expected[rank]:
                group = f"{WORDS[kind]} parallel group {made}"
                yield f"rank {rank} is in {group}, and by the sizes would be in {expected[rank]}"
                break
