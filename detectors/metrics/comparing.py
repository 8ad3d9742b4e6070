"""Which entities of a family are compared with each other when some of them have new samples, and whom nobody can."""

from __future__ import annotations

import numpy as np

from trainwarden.detectors.job.samples import FamilySamples, name_of
from trainwarden.detectors.metrics.bundle.lined_up import interval_s
from trainwarden.detectors.metrics.bundle.metric_vote import Scores
from trainwarden.detectors.metrics.bundle.peers import CachedComparison, PeerContext
from trainwarden.detectors.metrics.entity_history import EntityHistory
from trainwarden.detectors.metrics.models.rows import Floats


def scored_beside(one: FamilySamples, family: EntityHistory, joined: Floats, joined_s: Floats, fresh: int) -> Scores:
    """Scores of the `fresh` newest of z-scores ``joined [r, d, m + k]``, taken at ``joined_s [r, m + k]``.

    Whoever has nothing new now stands beside them with what it has shown.
    """
    vote, rows = family.vote, one.rows
    if "dtw" not in vote.models:
        return vote.score_block(joined, fresh)
    stride = vote.config.dtw_stride
    age = int(family.age[rows].max())
    others, until_s = np.zeros(0, dtype=np.int64), np.zeros(0)
    if stride - age - 1 < fresh:
        others, until_s = family.others(rows, float(joined_s[:, -fresh].min()), stride)
    everybody = np.concatenate([rows, others])
    roles = [family.roles[row] for row in everybody.tolist()]
    groups = np.unique(roles, return_inverse=True)[1] if any(roles) else None
    apart = family.apart(interval_s((joined_s,)))[everybody]
    held = CachedComparison(family.raw[rows], age)
    beside = PeerContext(groups, held, joined_s, family.history[others], family.times_s[others], until_s, apart)
    scores = vote.score_block(joined, fresh, beside)
    if scores.held is not None:
        family.raw[rows], family.age[rows] = scores.held.raw, scores.held.age
    return scores


def why_apart(one: FamilySamples, family: EntityHistory) -> str:
    """Who of those that have new samples cannot be compared for its times; empty if nobody."""
    if "dtw" not in family.vote.models:
        return ""
    every_s = float(np.median(family.every_s[one.rows]))
    places = np.flatnonzero(family.apart(every_s)[one.rows])
    if not places.size:
        return ""
    who = one.entities[int(places[0])]
    usual_s = float(np.nanmedian(family.lead_s))
    off_s = float(family.lead_s[one.rows[places[0]]]) - usual_s
    more = f" (and {places.size - 1} more)" if places.size > 1 else ""
    way = "ahead of" if off_s > 0.0 else "behind"
    return (
        f"the times of {name_of(*who)}{more} are {abs(off_s):.3g} s {way} those of its peers as they come, which is "
        f"more than the {every_s:.3g} s between two samples: by dtw it is compared with nobody"
    )
