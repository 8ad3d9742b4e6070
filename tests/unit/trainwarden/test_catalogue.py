"""The metric catalogue: one meaning per name, one name per meaning, units in names."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import pytest

from trainwarden.catalogue import ALIASES, CATALOGUE, Metric, lookup
from trainwarden.collectors.nic.collector import EFA, EFA_DEVICE, ETHERNET, RDMA, RDMA_HARDWARE, RDMA_WORDS

ROWS = tomllib.loads(files("trainwarden").joinpath("catalogue.toml").read_text())["metric"]


def test_names_and_aliases_are_unique() -> None:
    names = [row["name"] for row in ROWS]
    aliases = [alias for row in ROWS for alias in row.get("aliases", ())]
    assert len(set(names)) == len(names) == len(CATALOGUE)
    assert len(set(aliases)) == len(aliases) == len(ALIASES)
    assert not set(names) & set(aliases)


def test_no_row_has_a_key_that_nobody_reads() -> None:
    assert {key for row in ROWS for key in row} <= set(Metric.__struct_fields__)


@pytest.mark.parametrize("metric", CATALOGUE.values(), ids=lambda metric: metric.name)
def test_a_name_says_whose_it_is_and_ends_in_its_unit(metric: Metric) -> None:
    assert metric.name.startswith(f"{metric.per}_")
    assert metric.name.endswith(f"_{metric.unit}")
    assert metric.meaning.endswith(".")
    assert metric.high is None or metric.low is None or metric.low < metric.high
    assert metric.alias_scale > 0.0
    assert metric.alias_scale == 1.0 or metric.aliases


def test_every_kind_of_device_has_metrics() -> None:
    assert {metric.per for metric in CATALOGUE.values()} == {"gpu", "nic", "host", "rank", "agent"}


def test_names_of_other_exporters_are_known_with_their_units() -> None:
    for alias, name, scale in (
        ("DCGM_FI_DEV_SM_CLOCK", "gpu_sm_clock_hertz", 1e6),
        ("DCGM_FI_DEV_FB_USED", "gpu_memory_used_bytes", 1_048_576.0),
        ("DCGM_FI_DEV_XID_ERRORS", "gpu_xid_state", 1.0),
        ("node_infiniband_port_transmit_wait_total", "nic_rdma_transmit_wait_count", 1.0),
        ("node_pressure_cpu_waiting_seconds_total", "host_cpu_pressure_seconds", 1.0),
    ):
        metric = lookup(alias)
        assert metric is not None
        assert (metric.name, metric.alias_scale) == (name, scale)


def test_every_counter_file_is_a_metric() -> None:
    for table in (ETHERNET, RDMA, RDMA_WORDS, RDMA_HARDWARE, EFA, EFA_DEVICE):
        for name in table.values():
            assert CATALOGUE[name].per == "nic"
            assert CATALOGUE[name].kind == "counter"
