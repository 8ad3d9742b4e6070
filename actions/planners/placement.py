"""How long an iteration takes if its ranks lie on GPUs so: predicted from measured links and compute times.

::

    iteration = sum_p s_p + sum_b q_b + (M - 1) max(s, q) + d

``s_p`` is the time of pipeline stage p for one micro-batch: of its slowest tensor-parallel group, the slowest GPU's
compute time and what the group exchanges. ``q_b`` is the slowest transfer between stages b and b + 1 for one
micro-batch, ``M`` the micro-batches of an iteration, and ``d`` the slowest reduction over data-parallel groups. A
group is as slow as the slowest link between any two of its nodes, as rings and trees are NCCL's own choice; transfers
within a node take no time unless its own rate is given. A stage is as slow as its slowest replica (Falcon, 5.3), so
what lies in several stages costs several times.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

MOST_PAIRS = 1 << 21  # pairs of GPUs looked at together: 16 MB an array
MANY = 128  # members of a group from which on it is faster to look at its nodes, each once, than at all pairs


class Layout(NamedTuple):
    """What is placed, and what was measured.

    Attributes
    ----------
    tp, dp, pp, micro_batches : int
    compute_s : float array [gpus]
        Seconds per micro-batch, by place of the GPU in the list of those that are used.
    node : int array [gpus]
        Place of its node.
    byte_s : float array [nodes, nodes]
        Seconds per byte, symmetric.
    tp_bytes, dp_bytes, pp_bytes : float
        What a rank exchanges in an iteration in its tensor-parallel and data-parallel group, and with the next stage.
    stage_work : float array [pp], optional
        What a stage has to compute, where stages differ; `compute_s` is then that of a GPU in a stage with 1.
    """

    tp: int
    dp: int
    pp: int
    micro_batches: int
    compute_s: Floats
    node: Ints
    byte_s: Floats
    tp_bytes: float
    dp_bytes: float
    pp_bytes: float
    stage_work: Floats | None = None

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.tp * self.dp * self.pp


class Terms(NamedTuple):
    """What `iteration_s` is made of, by placement; 0 where nothing is exchanged.

    Attributes
    ----------
    group_s : float array [placements, pp, dp]
        A micro-batch in each tensor-parallel group.
    link_s : float array [placements, pp - 1, dp, tp or 1]
        A micro-batch's transfer from each rank to the next stage.
    reduction_s : float array [placements, pp, tp or 1]
        The reduction of each data-parallel group.
    """

    group_s: Floats
    link_s: Floats
    reduction_s: Floats

    def iteration_s(self, micro_batches: int) -> Floats:
        """Seconds of an iteration [placements]."""
        stage_s, link_s = self.group_s.max(axis=2), self.link_s.max(axis=(2, 3))
        slowest_s = np.maximum(stage_s.max(axis=1), link_s.max(axis=1, initial=0.0))
        through_s = stage_s.sum(axis=1) + link_s.sum(axis=1)
        total: Floats = through_s + (micro_batches - 1) * slowest_s + self.reduction_s.max(axis=(1, 2))
        return total

    def strain_s(self) -> Floats:
        """Sum over all groups and links [placements]: falls also while another one as slow holds the iteration up."""
        groups_s = self.group_s.sum(axis=(1, 2)) + self.reduction_s.sum(axis=(1, 2))
        total: Floats = groups_s + self.link_s.sum(axis=(1, 2, 3))
        return total


def iteration_s(layout: Layout, placements: Ints) -> Floats:
    """Predicted seconds of an iteration.

    Parameters
    ----------
    placements : int array [placements, ranks]
        Place of each rank's GPU; ranks with the tensor axis fastest, then data, then pipeline.

    Returns
    -------
    float array [placements]

    Examples
    --------
    >>> layout = Layout(1, 1, 2, 4, np.array([1.0, 2.0]), np.array([0, 0]), np.zeros((1, 1)), 0.0, 0.0, 0.0)
    >>> iteration_s(layout, np.array([[0, 1]]))  # 1 + 2 until the first comes out, then three more at 2 each
    array([9.])
    """
    judged = [terms(layout, part).iteration_s(layout.micro_batches) for part in parts(layout, placements)]
    return np.concatenate(judged)


def parts(layout: Layout, placements: Ints) -> list[Ints]:
    """`placements` in parts that fit into memory."""
    at_once = max(1, MOST_PAIRS // (layout.ranks * min(max(layout.tp, layout.dp), MANY)))
    return [placements[start : start + at_once] for start in range(0, len(placements), at_once)]


def terms(layout: Layout, placements: Ints) -> Terms:
    """The parts of the prediction for `placements` [placements, ranks]."""
    grid = placements.reshape(len(placements), layout.pp, layout.dp, layout.tp)
    nodes = layout.node[grid]
    group_s = layout.compute_s[grid].max(axis=3)
    if layout.stage_work is not None:
        group_s = group_s * layout.stage_work[:, None]
    if layout.tp_bytes and layout.tp > 1:
        group_s = group_s + slowest(layout.byte_s, nodes) * (layout.tp_bytes / layout.micro_batches)
    if (nodes == nodes[..., :1]).all():
        nodes = nodes[..., :1]  # a tensor-parallel group on one node: all its members have the same links
    link_s = np.zeros((len(grid), layout.pp - 1, 1, 1))
    if layout.pp_bytes and layout.pp > 1:
        link_s = layout.byte_s[nodes[:, :-1], nodes[:, 1:]] * (layout.pp_bytes / layout.micro_batches)
    reduction_s = np.zeros((len(grid), layout.pp, 1))
    if layout.dp_bytes and layout.dp > 1:
        reduction_s = slowest(layout.byte_s, nodes.swapaxes(2, 3)) * layout.dp_bytes
    return Terms(group_s, link_s, reduction_s)


def slowest(byte_s: Floats, groups: Ints) -> Floats:
    """Seconds per byte of the slowest link in each group [..., members]."""
    members = groups.shape[-1]
    if members > MANY:
        worst = [links_of(byte_s, group)[0].max() for group in groups.reshape(-1, members)]
        return np.array(worst).reshape(groups.shape[:-1])
    links = byte_s[groups[..., :, None], groups[..., None, :]]
    links[..., np.arange(members), np.arange(members)] = 0.0  # nobody sends to himself
    of_groups: Floats = links.max(axis=(-1, -2))
    return of_groups


def links_of(byte_s: Floats, group: Ints) -> tuple[Floats, Ints]:
    """Seconds per byte between the nodes of a group [members], each once; and a place in it for each such node."""
    there, place, members = np.unique(group, return_index=True, return_counts=True)
    links = byte_s[np.ix_(there, there)]
    np.fill_diagonal(links, np.where(members > 1, links.diagonal(), 0.0))
    return links, place
