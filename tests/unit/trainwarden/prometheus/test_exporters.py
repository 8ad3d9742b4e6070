"""Both generations of exporters' names, their blanks, and whose a series is."""

from __future__ import annotations

import pytest

from tests.servers.exporters import GPU_FIELDS, PORT_FIELDS
from trainwarden.catalogue import lookup
from trainwarden.prometheus.exporters import Who, factor, spellings, who

LABELS = {"gpu": "3", "UUID": "GPU-ab", "instance": "10.0.0.7:9400", "job": "dcgm", "modelName": "H100"}


@pytest.mark.parametrize("field", [name for name in GPU_FIELDS])
def test_both_generations_say_the_same(field):
    usual, newer, scale = GPU_FIELDS[field]
    old, new = lookup(field), lookup(newer)
    assert old is not None
    assert old is new
    assert usual * factor(field) == pytest.approx(usual * scale * factor(newer))


@pytest.mark.parametrize("name", PORT_FIELDS)
def test_ports_are_known(name):
    metric = lookup(name)
    assert metric is not None
    assert metric.per == "nic"


def test_every_spelling_leads_to_the_catalogue():
    known = spellings()
    assert {"DCGM_FI_DEV_XID_ERROR", "DCGM_FI_DEV_XID_ERRORS", "node_infiniband_state_id"} <= known.keys()
    assert set(known) == {alias for alias in known if alias.startswith(("DCGM_", "node_"))}


def test_xids_by_code_are_no_counter_of_ours():
    """One series for each code, of the last five minutes or since the exporter's start: the last line would win."""
    assert not [name for name in spellings() if name.startswith("DCGM_EXP_XID_ERRORS")]


@pytest.mark.parametrize(
    ("more", "node"),
    [
        ({"Hostname": "gpu-7"}, "gpu-7"),
        ({"hostname": "gpu-7", "Hostname": "other"}, "gpu-7"),
        ({"Hostname": "localhost"}, "named"),
        ({}, "named"),
        ({"instance": "10.0.0.8:9400"}, "10.0.0.8"),
    ],
)
def test_the_host_is_the_exporters_own_word(more, node):
    assert who({**LABELS, **more}, "gpu", {"10.0.0.7": "named"}) == Who(node, "3", "GPU-ab")


@pytest.mark.parametrize(
    ("labels", "per", "expected"),
    [
        ({**LABELS, "GPU_I_ID": "7", "GPU_I_PROFILE": "1g.10gb"}, "gpu", Who("10.0.0.7", "3/7", "GPU-ab/7")),
        ({"device": "nvidia4", "gpu_uuid": "GPU-x", "instance": "n"}, "gpu", Who("n", "4", "GPU-x")),
        ({"instance": "n"}, "gpu", None),
        ({"gpu": "1"}, "gpu", None),
        ({"instance": "n:1", "device": "veth12"}, "nic", None),
        ({"instance": "n:1", "device": "eth0"}, "nic", Who("n", "eth0")),
        ({"instance": "n:1"}, "host", Who("n", "host")),
        ({"instance": "n:1", "device": "sda"}, "host", None),
        ({"instance": "n" * 5000, "gpu": "g" * 5000, "UUID": "u" * 5000}, "gpu", Who("n" * 256, "g" * 256, "u" * 256)),
    ],
)
def test_who_a_series_is_about(labels, per, expected):
    assert who(labels, per) == expected
