"""Maps and counters of fabrics: links below what they can, cards that are missing, ports with errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.trainwarden.formats.judging import judged_text

Place = tuple[int, int]
UP = "==( {}      {} Gbps Active/  LinkUp)==>"
DOWN = '==(                Down/ Polling)==>             [  ] "" ( )'


def iblinkinfo(
    bad: Place | None = None, link: tuple[str, str, str] = ("2X", "106.25", "Could be 4X"),
    missing: Callable[[int, int], bool] = lambda node, card: False, nodes: int = 5, switches: bool = True,
) -> str:  # fmt: skip
    """The map of a fabric in which the card `bad`, a node and a number, has another link."""
    well = ("4X", "106.25", "")
    own = {(node, card): link if (node, card) == bad else well for node in range(1, nodes + 1) for card in range(4)}
    lines = []
    for (node, card), (width, speed, could) in own.items():
        if not missing(node, card):
            lines += [f"CA: gpu0{node} mlx5_{card}:"]
            lines += [f"      0x0c42a10300f20{node}0{card}     1{node}    1[  ] {UP.format(width, speed)}       3 "
                      f"  {4 * node + card:2}[  ] \"MF0;leaf01:MQM9790/U1\" ( {could})"]  # fmt: skip
    if switches:
        lines += ["Switch: 0xb8cef603002a1f40 MF0;leaf01:MQM9790/U1:"]
        for (node, card), (width, speed, could) in own.items():
            port = f"           3   {4 * node + card:2}[  ] "
            there = f'{UP.format(width, speed)}      1{node}    1[  ] "gpu0{node} mlx5_{card}" ( {could})'
            lines += [port + (DOWN if missing(node, card) else there)]
        lines += [f"           3   {port}[  ] {DOWN}" for port in range(40, 64)]  # without a cable
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "link",
    [("2X", "106.25", "Could be 4X"), ("4X", "25.78125", "Could be 106.25 Gbps"), ("4X", "53.125", "")],
)
@pytest.mark.parametrize("switches", [True, False])
def test_a_link_below_what_it_can_or_its_likes_have_is_named_by_its_card(
    tmp_path: Path, link: tuple[str, str, str], switches: bool
):
    text = iblinkinfo((2, 1), link, switches=switches)
    assert judged_text(tmp_path, text) == ("incident", [("nic_error", "gpu02", "mlx5_1")])


def test_a_sound_fabric_has_ports_without_cables(tmp_path: Path):
    assert judged_text(tmp_path, iblinkinfo()) == ("healthy", [])


def test_a_card_that_one_node_alone_has_not_is_down(tmp_path: Path):
    text = iblinkinfo(missing=lambda node, card: (node, card) == (3, 2))
    assert judged_text(tmp_path, text) == ("incident", [("nic_down", "gpu03", "mlx5_2")])


def test_a_card_that_says_itself_that_it_is_down_is_named(tmp_path: Path):
    line = iblinkinfo(switches=False).split("\n")[7 + 2 * 4]
    text = iblinkinfo(switches=False).replace(line, line[: line.index("==(")] + DOWN)
    assert judged_text(tmp_path, text) == ("incident", [("nic_down", "gpu02", "mlx5_3")])


def test_of_two_cards_one_may_not_be_fitted_and_one_that_is_down_is_named(tmp_path: Path):
    few = iblinkinfo(missing=lambda node, card: card > 1 or (node, card) == (3, 1), switches=False)
    assert judged_text(tmp_path, few)[1] == []
    text = iblinkinfo(missing=lambda node, card: card > 1, switches=False)
    line = text.split("\n")[3 + 4]
    text = text.replace(line, line[: line.index("==(")] + DOWN)
    assert judged_text(tmp_path, text)[1] == [("nic_down", "gpu02", "mlx5_1")]


def test_nodes_that_are_fitted_out_otherwise_lack_nothing(tmp_path: Path):
    login = iblinkinfo(missing=lambda node, card: node == 3 and card > 0)
    assert judged_text(tmp_path, login)[1] == []
    pair = iblinkinfo(missing=lambda node, card: (node, card) == (2, 2), nodes=2)
    assert judged_text(tmp_path, pair)[1] == []  # who of two is the odd one
    two = iblinkinfo(missing=lambda node, card: node > 2 and card > 2)
    assert judged_text(tmp_path, two)[1] == []


def test_a_fabric_that_is_run_below_what_it_can_accuses_none(tmp_path: Path):
    text = iblinkinfo().replace("106.25 Gbps", "53.125 Gbps").replace("( )\n", "( Could be 106.25 Gbps)\n")
    assert judged_text(tmp_path, text)[1] == []


def test_a_map_that_is_cut_is_read_and_one_without_links_is_not_judged(tmp_path: Path):
    text = iblinkinfo((2, 1))
    assert judged_text(tmp_path, text[: int(0.7 * len(text))])[1] == [("nic_error", "gpu02", "mlx5_1")]
    bare = "Switch: 0xb8cef603002a1f40 MF0;leaf01:MQM9790/U1:\n" + f"           3    1[  ] {DOWN}\n" * 4
    assert judged_text(tmp_path, bare)[0] == "not judged"


COUNTERS = (
    "link_down_counter", "link_error_recovery_counter", "symbol_error_counter", "port_rcv_errors", "port_xmit_discard",
    "excessive_buffer_errors", "local_link_integrity_errors", "port_xmit_wait",
)  # fmt: skip


def counters(**odd: int) -> str:
    """`ibdiagnet2.pm` of eight cards, of which mlx5_1 of gpu03 has odd counts."""
    lines = []
    for node in range(1, 5):
        for card in range(2):
            lines += ["-" * 79, f"Port=1 Lid=0x00{node}{card} GUID=0x0c42a10300f20{node}0{card} Device=4129 "
                      f"Port Name=gpu0{node}/mlx5_{card}/P1", "-" * 79]  # fmt: skip
            lines += [f"{name}={odd.get(name, 0) if (node, card) == (3, 1) else 0}" for name in COUNTERS]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("odd", "found"),
    [
        ({"local_link_integrity_errors": 1}, True),
        ({"excessive_buffer_errors": 2}, True),
        ({"link_error_recovery_counter": 9}, True),
        ({"symbol_error_counter": 48_213, "port_rcv_errors": 12}, True),
        ({"symbol_error_counter": 48_213}, False),  # by one witness
        ({"symbol_error_counter": 400, "port_rcv_errors": 12}, False),
        ({"link_down_counter": 3, "port_xmit_discard": 900, "port_xmit_wait": 4_294_967_295}, False),
        ({}, False),
    ],
)
def test_counters_that_a_sound_port_has_not_name_it(tmp_path: Path, odd: dict[str, int], found: bool):
    told = judged_text(tmp_path, counters(**odd), "ibdiagnet2.pm")
    assert told == (("incident", [("nic_error", "gpu03", "mlx5_1")]) if found else ("healthy", []))


def test_symbol_errors_of_many_ports_are_of_their_age(tmp_path: Path):
    text = counters().replace("symbol_error_counter=0", "symbol_error_counter=20000").replace("errors=0", "errors=2")
    text = text.replace("integrity_errors=2", "integrity_errors=0").replace("buffer_errors=2", "buffer_errors=0")
    assert judged_text(tmp_path, text, "ibdiagnet2.pm") == ("healthy", [])


def test_symbol_errors_that_the_others_have_too_are_no_fault_of_one(tmp_path: Path):
    odd = counters(symbol_error_counter=20_000, port_rcv_errors=12)
    assert judged_text(tmp_path, odd, "ibdiagnet2.pm")[1] == [("nic_error", "gpu03", "mlx5_1")]
    text = odd.replace("symbol_error_counter=0", "symbol_error_counter=5000")
    assert judged_text(tmp_path, text, "ibdiagnet2.pm") == ("healthy", [])


def tables(recovered: int = 0, **more: str) -> str:
    """`ibdiagnet2.db_csv`."""
    cards = [(node, card) for node in range(1, 5) for card in range(2)]
    text = "# This database file was automatically generated by IBDIAG\n\nSTART_NODES\n"
    text += "NodeDesc,NumPorts,NodeType,ClassVersion,BaseVersion,SystemImageGUID,NodeGUID,PortGUID\n"
    text += "".join(f'"gpu0{n} mlx5_{c}",1,1,1,1,0x{n}{c},0x{n}{c},0x{n}{c}\n' for n, c in cards)
    text += '"MF0;leaf01:MQM9790/U1",65,2,1,1,0xff,0xff,0xff\nEND_NODES\n\nSTART_LINKS\n'
    text += "NodeGuid1,PortNum1,NodeGuid2,PortNum2\n" + "".join(f"0x{n}{c},1,0xff,{4 * n + c}\n" for n, c in cards)
    text += "END_LINKS\n\nSTART_PM_INFO\nNodeGUID,PortGUID,PortNumber,LinkDownedCounter,LinkErrorRecoveryCounter,"
    text += "SymbolErrorCounter,PortRcvErrors,ExcessiveBufferOverrunErrors,LocalLinkIntegrityErrors,PortXmitWait\n"
    text += "".join(f"0x{n}{c},0x{n}{c},1,0,{recovered if (n, c) == (2, 0) else 0},0,0,0,0,8\n" for n, c in cards)
    return text + "END_PM_INFO\n" + "".join(more.values())


def test_tables_of_ibdiagnet_name_the_card_by_its_node(tmp_path: Path):
    assert judged_text(tmp_path, tables(9), "a.db_csv") == ("incident", [("nic_error", "gpu02", "mlx5_0")])
    assert judged_text(tmp_path, tables(), "a.db_csv") == ("healthy", [])
    cut = tables(9)[:-60]
    assert judged_text(tmp_path, cut, "a.db_csv")[1] == [("nic_error", "gpu02", "mlx5_0")]
    assert judged_text(tmp_path, tables(9)[:300], "a.db_csv")[0] == "not judged"


def test_growth_counts_before_totals(tmp_path: Path):
    grown = tables().partition("START_PM_INFO\n")[2].replace("END_PM_INFO", "END_PM_DELTA")
    text = tables(9, delta=f"START_PM_DELTA\n{grown}")
    assert judged_text(tmp_path, text, "a.db_csv") == ("healthy", [])


SUMMARY = """Running version:   "IBDIAGNET 2.13.0.MLNX20231019","IBDIAG 2.1.1"
-I- Fabric Discover finished successfully
{found}---------------------------------------------
Summary
-I- Stage                     Warnings   Errors     Comment
-I- Discovery                 0          0
-I- Links Check               0          0
-I- Port Counters             {warnings}          {errors}
"""


def test_a_summary_is_clean_only_where_each_stage_is(tmp_path: Path):
    assert judged_text(tmp_path, SUMMARY.format(found="", warnings=0, errors=0)) == ("healthy", [])
    assert judged_text(tmp_path, SUMMARY.format(found="", warnings=0, errors=3))[1] == [("nic_error", None, None)]
    assert judged_text(tmp_path, SUMMARY.format(found="", warnings=2, errors=0))[0] == "not judged"
    found = '-W- lid=0x0003 dev=4129 gpu03/mlx5_1/P1 - "symbol_error_counter" increased by 512, exceeds 10\n'
    told = judged_text(tmp_path, SUMMARY.format(found=found, warnings=1, errors=0))
    assert told == ("incident", [("nic_error", "gpu03", "mlx5_1")])
