"""Words of people: which silence lies over which incident."""

from __future__ import annotations

import pytest

from tests.web_doubles import NOW_S, action, incident
from trainwarden.commands.builders import on_action, silence
from trainwarden.commands.silences import Silences, silenced_text
from trainwarden.records import Suspect

ON_N1 = incident(suspects=(Suspect(score=0.9, reason="r", node="n1"), Suspect(score=0.1, reason="r", node="n2")))


@pytest.mark.parametrize(
    ("of", "lies"),
    [
        ({"job": "j"}, True),
        ({"job": "k"}, False),
        ({"incident_kind": "hang"}, True),
        ({"incident_kind": "crash"}, False),
        ({"node": "n1"}, True),
        ({"node": "n2"}, False),
        ({"job": "j", "incident_kind": "hang", "node": "n1"}, True),
        ({"job": "j", "incident_kind": "crash", "node": "n1"}, False),
    ],
)
def test_over_which_incident_it_lies(of, lies):
    silences = Silences()
    silences.apply(silence("ann", NOW_S, NOW_S + 10.0, **of), 0)
    assert (silences.over(ON_N1, NOW_S) is not None) == lies
    assert silences.over(ON_N1, NOW_S + 10.0) is None


def test_the_newest_word_stands_in_whatever_order_they_come():
    long, ended = silence("ann", NOW_S, NOW_S + 99.0, job="j"), silence("bob", NOW_S, 0.0, job="j")
    for order in ([(long, 1), (ended, 2)], [(ended, 2), (long, 1)]):
        silences = Silences()
        for word, offset in order:
            silences.apply(word, offset)
        silences.forget(NOW_S + 60.0)
        assert silences.over(ON_N1, NOW_S) is None


def test_an_old_silence_is_forgotten():
    silences = Silences()
    silences.apply(silence("ann", NOW_S, NOW_S + 9.0, job="j"), 5)
    silences.forget(NOW_S + 90_000.0)
    silences.apply(silence("ann", NOW_S, NOW_S + 200_000.0, job="j"), 4)
    assert silences.standing(NOW_S) != []


def test_one_plan_one_word():
    first, other = action(), action(plan_digest="d2")
    assert on_action("approve", first, "a", 1.0).id == on_action("approve", first, "b", 2.0).id
    assert len({on_action(word, one, "a", 1.0).id for word in ("approve", "deny") for one in (first, other)}) == 4


def test_who_and_until_when():
    assert silenced_text(silence("ann", 0.0, 3_600.0, job="j")) == "silenced by ann until 1970-01-01 01:00:00 UTC"
