"""Who is accused after which measurements: a world of ranks whose times are made up, behind the door of real ones."""

from __future__ import annotations

import random

import msgspec
import pytest

from trainwarden.actions.validation.baseline import Baseline
from trainwarden.actions.validation.messages import lines
from trainwarden.actions.validation.participants import ValidationTargets
from trainwarden.actions.validation.programme import Wanted, validate
from trainwarden.actions.validation.results import NodeReport, RankInfo, RankReport, Validation
from trainwarden.errors import DataError


class World:
    """Ranks on nodes; a burn-in takes 10 ms of a device, a message 1 ms within a node and 4 ms between nodes."""

    def __init__(self, nodes=4, per_node=2, *, seed=0, noise=0.03, busy=0.0, cuda=False):
        self.nodes_of = {rank: f"node-{rank // per_node}" for rank in range(nodes * per_node)}
        self.per_node, self.random, self.noise, self.busy, self.cuda = per_node, random.Random(seed), noise, busy, cuda
        self.compute, self.links, self.ports, self.stood, self.wrong = {}, {}, {}, {}, {}
        self.dead, self.hung, self.absent, self.late = set(), set(), set(), set()
        self.once = set()
        self.orders, self.node_reports = [], []

    def join(self):
        kind = {"device": "GPU"} if self.cuda else {"device": "cpu", "at_once": 2}
        return {
            rank: RankInfo(rank=rank, node=node, local_rank=rank % self.per_node, **kind)
            for rank, node in self.nodes_of.items()
            if rank not in self.absent
        }

    def places(self):
        return {rank: node for rank, node in self.nodes_of.items() if node != "node-0"}

    def ask(self, order):
        self.orders.append(order)
        answer = {"gemm": self.gemm, "links": self.link, "answer": lambda o, r: RankReport(rank=r)}.get(order.what)
        gone = self.dead | self.hung | (self.late if order.what == "gemm" else set())
        return {rank: answer(order, rank) for rank in order.ranks if rank not in gone}

    def ended(self):
        return dict.fromkeys(self.dead, "was ended by SIGKILL")

    def nodes(self):
        return self.node_reports

    def more(self, seconds):
        """Noise adds only; a busy machine lets a rank wait for as long again and again."""
        return seconds * (1 + abs(self.random.gauss(0, self.noise)))

    def gemm(self, order, rank):
        round_ = sum(rank in one.ranks for one in self.orders if one.what == "gemm")
        factor = 1.0 if rank in self.once and round_ > 1 else self.compute.get(rank, 1.0)
        busy = tuple(self.more(0.01 * factor) for _ in range(7))
        share = self.stood.get(rank, 0.0)
        waits = [self.random.expovariate(1 / (one * self.busy)) if self.busy else 0.0 for one in busy]
        wall = tuple(one / (1 - share) + wait for one, wait in zip(busy, waits, strict=True))
        return RankReport(
            rank=rank, wall_s=wall, busy_s=busy, throttled_s=share * sum(wall), flop=1e9, wrong=self.wrong.get(rank, 0)
        )

    def link(self, order, rank):
        peer = next(one for pair in order.pairs for one in pair if rank in pair and one != rank)
        if peer in self.dead | self.hung or self.links.get((rank, peer)) == 0:
            return RankReport(rank=rank, peer=peer, error="no end within 3 s")
        usual = 0.001 if self.nodes_of[rank] == self.nodes_of[peer] else 0.004
        factor = self.links.get((rank, peer), 1.0) * max(self.ports.get(rank, 1.0), self.ports.get(peer, 1.0))
        asked = sum({rank, peer} in map(set, one.pairs) for one in self.orders)
        if (rank, peer) in self.once and asked > 1:
            factor = 1.0
        own = [self.more(usual * factor) for _ in range(9)]
        waits = [self.random.expovariate(1 / (one * self.busy)) if self.busy else 0.0 for one in own]
        return RankReport(
            rank=rank, peer=peer, message_bytes=1_000_000, waited_s=tuple(waits),
            wall_s=tuple(map(sum, zip(own, waits, strict=True))),
        )  # fmt: skip


def judged(world: World, baseline=None, **wanted) -> Validation:
    return validate(world, len(world.nodes_of), Wanted(**wanted), baseline or Baseline(None))


def accused(result):
    return [(one.kind, one.ranks) for one in result.accused]


@pytest.mark.parametrize("busy", [0.0, 3.0])
@pytest.mark.parametrize("nodes", [1, 2, 4, 8])
def test_a_healthy_group_is_never_accused_busy_or_not(nodes, busy):
    for seed in range(40):
        result = judged(World(nodes, seed=seed, busy=busy))
        assert result.accused == (), seed


@pytest.mark.parametrize("cuda", [False, True])
def test_what_was_measured_is_told_in_plain_units_whoever_is_slow_first(cuda):
    world = World(seed=1, noise=0.0, cuda=cuda)
    world.compute[5] = 2.0
    world.links[0, 2] = world.links[2, 0] = 10.0
    result = judged(world)
    slow, *others = result.rates.devices
    assert slow.summary == "rank 5 on node-2: 50 GFLOP/s, its peers 100"
    assert {(one.gflop_s, one.peers_gflop_s) for one in others} == {(100.0, 100.0)}
    link, back, *rest = result.rates.links
    assert {link.ranks, back.ranks} == {(0, 2), (2, 0)}
    assert link.summary == "rank 0 on node-0 to rank 2 on node-1: 0.2 Gbit/s, its peers 2"
    within = [one for one in rest if one.nodes[0] == one.nodes[1]]
    assert {(one.gbit_s, one.peers_gbit_s) for one in within} == {(8.0, 8.0)}
    told = list(lines(result))
    assert told[told.index(next(one for one in told if one.startswith("slow_compute"))) + 1] == f"    {slow.summary}"
    assert f"    {link.summary}" in told


@pytest.mark.parametrize("cuda", [False, True])
def test_a_slow_device_is_named_with_its_node(cuda):
    for seed in range(20):
        world = World(seed=seed, cuda=cuda)
        world.compute[5] = 1.3
        result = judged(world)
        assert accused(result) == [("slow_compute", (5,))]
        assert result.accused[0].nodes == ("node-2",)
        assert "1." in result.accused[0].text
        assert result.exit_code == 1


def test_who_was_slow_once_is_noted_and_not_accused():
    world = World()
    world.compute[5], world.once = 1.5, {5}
    result = judged(world)
    assert accused(result) == []
    assert any("rank 5" in one and "not when asked again" in one for one in result.noted)


def test_a_processor_that_others_take_is_no_slow_device():
    world = World(busy=2.0)
    result = judged(world)
    assert accused(result) == []
    assert any("busy" in one for one in result.noted)


def test_a_rank_that_its_control_group_holds_back_is_named_so_and_its_links_are_left_out():
    world = World()
    world.stood[3] = 0.8
    result = judged(world)
    assert accused(result) == [("host_contention", (3,))]
    assert not any(3 in (one.sender, one.receiver) for one in result.links)


@pytest.mark.parametrize("checks", [("gemm", "links"), ("links",)])
def test_a_device_that_has_no_memory_left_is_not_judged_and_not_lost(checks):
    """A job that stands still keeps its devices' memory."""
    world = World(cuda=True)
    measured, linked = world.gemm, world.link
    full = {"error": "CUDA out of memory. Tried to allocate 128.00 MiB"}
    world.gemm = lambda order, rank: RankReport(rank=rank, **full) if rank == 2 else measured(order, rank)

    def link(order, rank):
        peer = next(one for pair in order.pairs for one in pair if rank in pair and one != rank)
        if 2 in (rank, peer):
            return RankReport(rank=rank, peer=peer, **(full if rank == 2 else {"error": "nothing came through"}))
        return linked(order, rank)

    world.link = link
    result = judged(world, checks=checks)
    assert result.accused == ()
    assert result.judged == ()
    assert "rank 2 on node-1: its device has no memory left for it" in result.unjudged
    if "gemm" in checks:  # what is known of a device costs its peers no limit of a link
        assert not any(2 in pair for order in world.orders for pair in order.pairs)


def test_where_all_are_held_back_alike_nobody_is_named():
    world = World()
    world.stood = dict.fromkeys(range(8), 0.8)
    assert accused(judged(world)) == []


def test_one_wrong_product_is_enough():
    world = World()
    world.wrong[2] = 1
    result = judged(world)
    assert accused(result) == [("silent_corruption", (2,))]
    assert "3 of 21" in result.accused[0].text
    assert [one.rank for one in result.compute if one.suspect] == [2]
    assert not any(one.suspect for one in result.links)


@pytest.mark.parametrize("factor", [1.3, 20.0])
def test_a_slow_link_is_named_and_not_its_ends(factor):
    for seed in range(20):
        world = World(seed=seed)
        world.links[3, 4] = world.links[4, 3] = factor
        result = judged(world)
        assert accused(result) == [("slow_link", (3, 4))]
        assert result.accused[0].link == (3, 4)
        assert [(one.sender, one.receiver) for one in result.links if one.suspect] == [(3, 4), (4, 3)]
        assert not any(one.suspect for one in result.compute)
        assert all(one.gbps == pytest.approx(0.008 / one.usual_s) for one in result.links)


def test_a_link_that_is_slow_one_way_says_which():
    world = World()
    world.links[4, 3] = 5.0
    result = judged(world)
    assert accused(result) == [("slow_link", (3, 4))]
    assert "only from 4 to 3" in result.accused[0].text


def test_a_link_that_was_slow_once_is_noted():
    world = World()
    world.links[4, 3], world.once = 5.0, {(4, 3)}
    result = judged(world)
    assert accused(result) == []
    assert any("not when alone" in one for one in result.noted)


def test_a_slow_port_is_told_from_a_slow_link_by_its_second_partner():
    for seed in range(20):
        world = World(nodes=8, per_node=1, seed=seed)
        world.ports[5] = 3.0
        result = judged(world)
        assert accused(result) == [("slow_link", (5,))]
        assert result.accused[0].link is None
        assert all(one.suspect == (5 in (one.sender, one.receiver)) for one in result.links)


@pytest.mark.parametrize("per_node", [2, 4])
@pytest.mark.parametrize("node", range(4))
def test_a_node_with_a_slow_port_is_one_finding_whatever_its_neighbours(node, per_node):
    """Its links touch ranks of all other nodes, so none is left that has no slow link."""
    for seed in range(10):
        world = World(nodes=4, per_node=per_node, seed=seed)
        ranks = tuple(range(node * per_node, (node + 1) * per_node))
        world.links = {
            pair: 20.0
            for one in ranks
            for other in range(4 * per_node)
            for pair in ((one, other), (other, one))
            if other not in ranks
        }
        result = judged(world)
        assert accused(result) == [("slow_link", ranks)], result.accused
        assert result.accused[0].nodes == (f"node-{node}",)


def test_two_slow_links_that_meet_are_not_their_common_rank():
    """It has a third link, which is well."""
    for seed in range(10):
        world = World(nodes=8, per_node=1, seed=seed)
        for pair in ((3, 4), (1, 4)):
            world.links[pair] = world.links[pair[::-1]] = 5.0
        assert sorted(accused(judged(world))) == [("slow_link", (1, 4)), ("slow_link", (3, 4))]


def test_a_slow_node_is_one_finding_with_all_its_ranks():
    world = World(nodes=5)
    world.compute = {4: 2.0, 5: 2.0}
    result = judged(world)
    assert accused(result) == [("slow_compute", (4, 5))]
    assert "all ranks of node-2" in result.accused[0].text


def test_a_link_that_carries_nothing_is_named():
    world = World()
    world.links[3, 4] = world.links[4, 3] = 0
    result = judged(world)
    assert accused(result) == [("slow_link", (3, 4))]
    assert "carries nothing" in result.accused[0].text


def test_whoever_is_dead_hung_or_absent_is_named_and_the_others_are_measured():
    world = World(nodes=6)
    world.dead, world.hung, world.absent = {1}, {6}, {9}
    result = judged(world)
    assert accused(result) == [("node_lost", (9,)), ("crash", (1,)), ("hang", (6,))]
    assert result.accused[0].nodes == ("node-4",)
    assert result.links
    assert not any({1, 6, 9} & {one.sender, one.receiver} for one in result.links)
    assert len(result.accused[-1].witnesses) == 2


def test_a_rank_that_hangs_at_its_links_has_its_partners_as_witnesses():
    world = World()
    world.hung = set()
    ask = world.ask
    world.ask = lambda order: (world.hung.add(2) if order.what == "links" else None) or ask(order)
    result = judged(world)
    assert accused(result) == [("hang", (2,))]
    assert any("had no answer from it either" in one for one in result.accused[0].witnesses)


def test_who_answers_again_is_noted():
    world = World()
    world.late = {4}
    result = judged(world)
    assert accused(result) == []
    assert any("answers again" in one for one in result.noted)


def test_two_nodes_have_no_median_but_a_baseline(tmp_path):
    path = tmp_path / "baseline.json"
    well = judged(World(nodes=2, per_node=1), Baseline(path))
    assert len(well.unjudged) == 2
    again = World(nodes=2, per_node=1, seed=1)
    assert judged(again, Baseline(path)).unjudged == ()
    again.compute[1] = 1.5
    again.links[0, 1] = 2.0
    result = judged(again, Baseline(path))
    assert accused(result) == [("slow_compute", (1,)), ("slow_link", (0, 1))]
    assert "no other partner" in result.accused[1].text
    kept = path.read_bytes()
    assert judged(again, Baseline(path)).exit_code == 1
    assert path.read_bytes() == kept


def test_a_baseline_that_is_none_is_refused(tmp_path):
    path = tmp_path / "baseline.json"
    path.write_text('{"busy_s": 3}')
    with pytest.raises(DataError, match="baseline"):
        Baseline(path)


def test_a_disk_that_is_full_accuses_its_node():
    world = World()
    world.node_reports = [
        NodeReport(node="node-1", wrong={"disk": "no space"}),
        NodeReport(node="node-2", left_out={"disk": "no folder"}, mb_per_s={"memory": 1000.0}),
    ]
    result = judged(world)
    assert accused(result) == [("storage", (2, 3))]
    assert any("node-2" in one for one in result.noted)
    assert msgspec.json.decode(msgspec.json.encode(result), type=Validation) == result


@pytest.mark.thorough
def test_passes_are_few_whatever_the_group():
    for nodes in (16, 64, 256):
        world = World(nodes=nodes, per_node=2)
        assert judged(world).passes <= 7
        assert sum(one.what == "links" for one in world.orders) <= 7


def test_checks_that_are_not_wanted_are_not_made():
    world = World()
    judged(world, checks=("links",))
    assert {one.what for one in world.orders} == {"links", "end"}


def test_whom_it_is_about_is_measured_beside_more_others_on_four_nodes():
    world = World(nodes=16, per_node=2)
    world.compute[9] = 1.5
    result = judged(world, named=ValidationTargets(nodes=("node-4",)))
    assert accused(result) == [("slow_compute", (9,))]
    assert (result.ranks, len(result.compute), "node-4" in result.nodes) == (5, 5, True)
    assert {rank for order in world.orders for rank in order.ranks} == {0, 2, 4, 8, 9}
    assert result.unjudged == ("links within a node: fewer than 4 links, and no baseline",)


def test_a_whole_node_that_is_slow_is_not_its_own_median():
    world = World(nodes=16, per_node=8)
    world.compute |= dict.fromkeys(range(32, 40), 1.4)
    (found,) = judged(world, named=ValidationTargets(nodes=("node-4",))).accused
    assert (found.kind, found.nodes, found.ranks) == ("slow_compute", ("node-4",), tuple(range(32, 40)))


def test_who_is_not_meant_is_not_accused_and_who_does_not_come_is():
    world = World(nodes=8, per_node=2)
    world.compute[1], world.absent, world.dead = 2.0, {3, 15}, {13}
    result = judged(world, named=ValidationTargets(ranks=(8, 15), nodes=("node-9",)))
    assert [(one.kind, one.ranks or one.nodes) for one in result.accused] == [
        ("node_lost", (15,)), ("node_lost", ("node-9",)),
    ]  # fmt: skip
    assert "no rank of node-9 has come; there are node-1, node-2" in result.accused[1].text


def test_nobody_at_all_is_a_result():
    world = World(nodes=1)
    world.absent = {0, 1}
    assert accused(judged(world)) == [("node_lost", (0,)), ("node_lost", (1,))]
