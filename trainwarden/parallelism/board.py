"""What all sources of a job say of its layout, joined: trusted in their order, and contradictions said.

What the process groups of all ranks, put together, say of a job's layout.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from trainwarden.hook import ranks_text
from trainwarden.parallelism.claim import TRUST, Claim, Source, claim_of
from trainwarden.parallelism.groups import Spaced, of_text, spaced_of
from trainwarden.parallelism.layout import AXES, WORDS, Layout, product
from trainwarden.records import EventRecord


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


MAX_CLAIMS: Final = 200_000  # of one job: two a node and one a rank
ATTEMPT_S: Final = 600.0  # all ranks of one attempt begin within so long
MAX_SAID: Final = 4  # contradictions that are told
EXPERTS: Final = "experts (MoE): the load of each follows from the tokens of all"
SHARDED: Final = "FSDP: every micro-batch is a collective call of all replicas"


class LayoutBoard:
    """The newest word of every source of one job. Repeats, damage and words of earlier attempts change nothing.

    Examples
    --------
    >>> board = LayoutBoard()
    >>> fields = {"source": "arguments", "framework": "Megatron", "world_size": 8, "started_s": 1.0, "tp": 2, "pp": 2}
    >>> board.apply(EventRecord(id="e", job="j", node="n", time_s=2.0, kind="parallel_layout", rank=0, fields=fields))
    True
    >>> board.layout().summary()
    'tp 2 x pp 2; context and data not known; from Megatron arguments'
    """

    def __init__(self) -> None:
        self._claims: dict[tuple[Source, int | str], tuple[int, Claim]] = {}
        self._joined: Layout | None = None
        self._stale = False

    def apply(self, event: EventRecord) -> bool:
        """Take an event in; False if it is of another kind."""
        if event.kind != "parallel_layout":
            return False
        claim = claim_of(event)
        if claim is None or event.rank is None:
            return True
        # A rank speaks for its groups, one rank of a node for what its command line and settings say.
        who = (claim.source, event.rank if claim.source == "groups" else event.node)
        known = self._claims.get(who)
        if known is None and len(self._claims) >= MAX_CLAIMS:
            return True
        if known is None or (claim.started_s >= known[1].started_s and known != (event.rank, claim)):
            self._claims[who] = (event.rank, claim)
            self._stale = True
        return True

    def layout(self) -> Layout | None:
        """The layout as far as it is known; None if no source has said anything."""
        if self._stale:
            self._stale = False
            self._joined = joined(list(self._claims.values()))
        return self._joined

    def state(self) -> bytes:
        """All of it; `restore` takes it back."""
        return msgspec.json.encode([[*who, rank, claim] for who, (rank, claim) in self._claims.items()])

    def restore(self, state: bytes) -> None:
        """Go on from `state`.

        Raises
        ------
        ValueError
            If it is damaged.
        """
        try:
            rows = msgspec.json.decode(state, type=list[tuple[Source, int | str, int, Claim]])
        except msgspec.DecodeError as error:
            raise ValueError(f"no claims of a layout: {error}") from error
        self._claims = {(source, who): (rank, claim) for source, who, rank, claim in rows}
        self._stale = True


def joined(claims: Sequence[tuple[int, Claim]]) -> Layout | None:
    """One layout from the claims of ranks; None where there are none of more than one rank."""
    newest = max((claim for _, claim in claims), key=lambda claim: claim.started_s, default=None)
    if newest is None or newest.world_size < 2:
        return None
    since_s, world = newest.started_s - ATTEMPT_S, newest.world_size
    present = [(r, c) for r, c in claims if c.started_s >= since_s and c.world_size == world and r < world and c.says]
    if not present:
        return None
    join = _Join(world)
    for source in TRUST:
        join.add(source, [(rank, claim) for rank, claim in present if claim.source == source])
    return join.layout()


class _Join:
    """Sizes as they come in, most trusted first."""

    def __init__(self, world: int) -> None:
        self.world = world
        self.sizes: dict[str, int] = {}
        self.by: dict[str, str] = {}
        self.order: tuple[str, ...] = ()
        self.sources: dict[str, None] = {}
        self.uneven: dict[str, None] = {}
        self.wrong: dict[str, None] = {}
        self.groups: dict[int, str] = {}

    def add(self, source: Source, claims: Sequence[tuple[int, Claim]]) -> None:
        """All that one source says."""
        for claim in dict.fromkeys(claim for _, claim in claims):
            by = claim.said_by
            self._sizes(claim.sizes.items(), by)
            self.uneven |= dict.fromkeys(filter(None, claim.uneven.split("; ")))
            order = tuple(claim.order.split("-"))
            if not self.order and sorted(order) == sorted(AXES):
                self.order = order
        if source == "groups" and claims:
            self.groups = {rank: claim.groups for rank, claim in claims}
            found = seen(self.groups)
            self._sizes(found.sizes.items(), claims[0][1].said_by)
            self.order = self.order or found.order
            self.wrong |= dict.fromkeys(found.contradictions)
            self.uneven |= dict.fromkeys([SHARDED] if found.sharded and not self._refused("FSDP") else [])

    def _sizes(self, sizes: Iterable[tuple[str, int]], by: str) -> None:
        for kind, size in sizes:
            self.sources[by] = None
            if (known := self.sizes.setdefault(kind, size)) != size:
                self.wrong[f"{self.by[kind]} say {WORDS[kind]} {known}, {by} say {size}"] = None
            self.by.setdefault(kind, by)

    def layout(self) -> Layout:
        """All of it together."""
        self._fill()
        if self.sizes.get("ep", 1) > 1 and not self._refused("experts"):
            self.uneven[EXPERTS] = None
        layout = Layout(
            world_size=self.world,
            sizes=self.sizes,
            order=self.order or AXES,
            sources=tuple(self.sources),
            uneven=tuple(self.uneven),
            contradictions=tuple(self.wrong)[:MAX_SAID],
        )
        if layout.whole and self.groups and (odd := tuple(misplaced(layout, self.groups))):
            return msgspec.structs.replace(layout, contradictions=odd[:MAX_SAID])
        return layout

    def _refused(self, word: str) -> bool:
        return any(one.startswith(word) for one in self.uneven)

    def _fill(self) -> None:
        """What follows from what is known: axes of one rank, and the data-parallel size, which is what is left."""
        asked, missing = product(self.sizes), [axis for axis in AXES if axis not in self.sizes]
        known = " x ".join(f"{axis} {self.sizes[axis]}" for axis in AXES if axis in self.sizes)
        if not missing and asked != self.world:
            self.wrong[f"{known} are {asked} ranks, and there are {self.world}"] = None
        elif self.world % asked:
            self.wrong[f"{known} do not divide {self.world} ranks"] = None
        elif self.wrong:
            return  # nothing follows from what cannot all be so
        elif known and asked == self.world:
            self.sizes |= dict.fromkeys(missing, 1)
        elif missing == ["dp"]:
            self.sizes["dp"] = self.world // asked
