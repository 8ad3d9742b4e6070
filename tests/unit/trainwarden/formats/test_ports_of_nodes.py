"""Ports of several nodes: who is slower, down or loses packets where the others' of the same name do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.trainwarden.formats.judging import HEADINGS, filed, headed, judged, judged_text, labelled

PORT = "eth2"
ETHTOOL = """Settings for eth2:
\tSupported ports: [ FIBRE ]
\tSupported link modes:   100000baseCR4/Full
\tAdvertised link modes:  100000baseCR4/Full
\tSpeed: {speed}
\tDuplex: {duplex}
\tAuto-negotiation: on
\tPort: Direct Attach Copper
\tLink detected: {link}
"""


def ethtool(speed: str = "100000Mb/s", duplex: str = "Full", link: str = "yes") -> str:
    return ETHTOOL.format(speed=speed, duplex=duplex, link=link)


def nodes(odd: str, count: int = 5, well: str | None = None) -> dict[str, str]:
    """Texts of nodes, of which gpu03 has the odd one."""
    return {f"gpu0{n}": odd if n == 3 else ethtool() if well is None else well for n in range(1, count + 1)}


SLOW = ethtool("25000Mb/s")


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_port_slower_than_those_of_its_name_is_named(tmp_path: Path, heading: str):
    assert judged_text(tmp_path, headed(nodes(SLOW), heading)) == ("incident", [("nic_error", "gpu03", PORT)])
    assert judged_text(tmp_path, headed(nodes(ethtool()), heading)) == ("healthy", [])


def test_nodes_by_labels_and_by_files_too(tmp_path: Path):
    assert judged_text(tmp_path, labelled(nodes(SLOW))) == ("incident", [("nic_error", "gpu03", PORT)])
    assert judged(filed(tmp_path / "files", nodes(SLOW))) == ("incident", [("nic_error", "gpu03", PORT)])


def test_a_port_without_a_link_or_with_half_duplex_is_named(tmp_path: Path):
    down = nodes(ethtool("Unknown!", "Unknown!", "no"))
    assert judged_text(tmp_path, headed(down)) == ("incident", [("nic_down", "gpu03", PORT)])
    half = nodes(ethtool(duplex="Half"))
    assert judged_text(tmp_path, headed(half)) == ("incident", [("nic_error", "gpu03", PORT)])


@pytest.mark.parametrize("count", [1, 3])
def test_too_few_ports_are_not_judged(tmp_path: Path, count: int):
    assert judged_text(tmp_path, headed(nodes(SLOW, count)))[0] == "not judged"


def test_nodes_of_two_kinds_accuse_none_and_a_cut_text_is_read(tmp_path: Path):
    mixed = {f"gpu0{n}": SLOW if n > 3 else ethtool() for n in range(1, 7)}
    assert judged_text(tmp_path, headed(mixed))[1] == []
    text = headed(nodes(SLOW, 6))
    assert judged_text(tmp_path, text[: int(0.9 * len(text))])[1] == [("nic_error", "gpu03", PORT)]


def test_a_port_alone_that_becomes_slower_is_named(tmp_path: Path):
    looks = [("100000Mb/s", minute) for minute in range(4)] + [("25000Mb/s", minute) for minute in range(4, 8)]
    text = "".join(f"2026-09-21 14:0{minute}:00\n{ethtool(speed)}" for speed, minute in looks)
    assert judged_text(tmp_path, text, "gpu-03.txt")[1] == [("nic_error", "gpu-03", PORT)]
    assert judged_text(tmp_path, text.replace("100000Mb/s", "25000Mb/s"), "gpu-03.txt")[1] == []


def ibstat(state: str = "Active") -> str:
    return f"CA 'mlx5_0'\n\tPort 1:\n\t\tState: {state}\n\t\tPhysical state: LinkUp\n\t\tRate: 400\n"


def test_a_port_that_is_down_is_held_against_its_name_on_other_nodes_or_its_own_node(tmp_path: Path):
    assert judged_text(tmp_path, headed(nodes(ibstat("Down"), well=ibstat())))[1] == [("nic_down", "gpu03", "mlx5_0")]
    cards = "".join(ibstat("Down" if n == 3 else "Active").replace("mlx5_0", f"mlx5_{n}") for n in range(5))
    assert judged_text(tmp_path, cards)[1] == [("nic_down", None, "mlx5_3")]
    few = "".join(ibstat("Down" if n == 1 else "Active").replace("mlx5_0", f"mlx5_{n}") for n in range(3))
    assert judged_text(tmp_path, few)[1] == []


def counters(drops: list[float]) -> str:
    """`ethtool -S` again and again, a minute apart."""
    text, lost, packets = "", 0.0, 0.0
    for minute, rate in enumerate(drops):
        lost, packets = lost + 60 * rate, packets + 60 * 50_000
        text += f"2026-09-21 14:{minute:02d}:00\nNIC statistics:\n     rx_packets: {packets:.0f}\n"
        text += f"     rx_bytes: {4_000 * packets:.0f}\n     rx_dropped: {lost:.0f}\n"
    return text


def test_counters_by_files_of_hosts_and_ports_name_both(tmp_path: Path):
    parts = {f"gpu0{n}_eth2": counters([900.0 if n == 3 else 0.0] * 12) for n in range(1, 5)}
    assert judged(filed(tmp_path / "bad", parts, "{}.txt")) == ("incident", [("nic_error", "gpu03", PORT)])
    parts = {f"gpu0{n}_eth2": counters([0.0] * 12) for n in range(1, 5)}
    assert judged(filed(tmp_path / "well", parts, "{}.txt")) == ("healthy", [])


def test_a_heading_names_node_and_port(tmp_path: Path):
    parts = {f"gpu0{n} eth2": counters([900.0 if n == 3 else 0.0] * 12) for n in range(1, 5)}
    assert judged_text(tmp_path, headed(parts)) == ("incident", [("nic_error", "gpu03", PORT)])


def test_a_port_for_management_that_drops_what_is_not_for_it_is_well(tmp_path: Path):
    text = counters([0.0] * 8 + [900.0] * 8)
    assert judged_text(tmp_path, of_packets(text, 960), "gpu03_eth2.txt")[1] == []
    text = counters([0.0] * 8 + [6.0] * 8)
    assert judged_text(tmp_path, of_packets(text, 3_000), "gpu03_eth2.txt")[1] == []  # 0.2 %, and few


def of_packets(text: str, rate: int) -> str:
    """Counters of a port with so many packets a second."""
    for number, line in enumerate(line for line in text.split("\n") if "rx_packets" in line):
        text = text.replace(line, f"     rx_packets: {60 * rate * number}")
    return text


@pytest.mark.parametrize(
    ("drops", "found"),
    [
        ([0.0] * 8 + [900.0] * 8, True),  # than before
        ([900.0] * 16, False),  # always so
        ([0.0] * 8 + [3.0] * 8, False),  # what is not for it
        ([0.0] * 8 + [30.0] * 8, False),  # a small share
        ([0.0] * 8 + [900.0] * 2 + [0.0] * 6, False),  # a moment
    ],
)
def test_a_port_alone_is_held_against_its_past(tmp_path: Path, drops: list[float], found: bool):
    told = judged_text(tmp_path, counters(drops), "gpu03_eth2.txt")[1]
    assert told == ([("nic_error", "gpu03", PORT)] if found else [])


def sar(node: str, moved: float = 780_000.0, used: float = 6.39, lost: float = 0.0) -> str:
    """`sar -n DEV,EDEV 60`."""
    lines = [f"Linux 5.15.0-91-generic ({node}) \t09/21/2026 \t_x86_64_\t(96 CPU)"]
    header = "IFACE rxpck/s txpck/s rxkB/s txkB/s rxcmp/s txcmp/s rxmcst/s %ifutil"
    for minute in range(20):
        stamp = f"14:{minute:02d}:01"
        lines += ["", f"{stamp} {header}", f"{stamp} lo 9.00 9.00 1.00 1.00 0.00 0.00 0.00 0.00"]
        lines += [f"{stamp} eth2 90000.00 90000.00 {moved:.2f} {moved:.2f} 0.00 0.00 0.10 {used:.2f}"]
    for minute in range(20):
        stamp = f"14:{minute:02d}:01"
        lines += ["", f"{stamp} IFACE rxerr/s txerr/s coll/s rxdrop/s txdrop/s txcarr/s rxfram/s rxfifo/s txfifo/s"]
        lines += [f"{stamp} eth2 {lost:.2f} 0.00 0.00 0.00 0.00 0.00 {lost:.2f} 0.00 0.00"]
    lines += ["Average: eth2 90000.00 90000.00 780000.00 780000.00 0.00 0.00 0.10 6.39"]
    return "\n".join(lines) + "\n"


def hosts(**odd: float) -> dict[str, str]:
    return {f"gpu0{n}": sar(f"gpu0{n}", **(odd if n == 3 else {})) for n in range(1, 5)}


def test_interfaces_of_sar_tell_losses_and_the_speed_of_the_link(tmp_path: Path):
    assert judged_text(tmp_path, "".join(hosts().values())) == ("healthy", [])
    assert judged_text(tmp_path, "".join(hosts(lost=310.0).values()))[1] == [("nic_error", "gpu03", PORT)]
    # The same bytes on a link of a quarter of the speed.
    assert judged_text(tmp_path, "".join(hosts(used=25.56).values()))[1] == [("nic_error", "gpu03", PORT)]
    assert judged_text(tmp_path, labelled(hosts(lost=310.0)))[1] == [("nic_error", "gpu03", PORT)]


def test_losses_are_compared_where_nothing_tells_how_many_packets_there_are(tmp_path: Path):
    def of_losses(text: str) -> str:
        title, _, rest = text.partition("\n")
        return title + "\n" + rest[rest.index("14:00:01 IFACE rxerr/s") :]

    assert judged_text(tmp_path, "".join(map(of_losses, hosts(lost=310.0).values())))[1] == [
        ("nic_error", "gpu03", PORT)
    ]
    assert judged_text(tmp_path, "".join(map(of_losses, hosts(lost=30.0).values()))) == ("healthy", [])


def test_a_share_of_the_link_that_tells_no_speed_accuses_none(tmp_path: Path):
    assert judged_text(tmp_path, "".join(hosts(moved=90_000.0, used=0.74).values()))[1] == []
    assert judged_text(tmp_path, "".join(hosts(used=31.0).values()))[1] == []
    assert judged_text(tmp_path, "".join(hosts(moved=610.0, used=0.01).values()))[1] == []  # rounded to half the speed


def sadf(node: str, lost: float = 0.0, wait_ms: float = 0.3) -> str:
    """`sadf -d -- -A`, an activity after the other."""
    stamps = [f"{node};60;2026-09-21 14:{minute:02d}:01 UTC" for minute in range(20)]
    late = [wait_ms if minute >= 10 else 0.3 for minute in range(20)]
    lines = ["# hostname;interval;timestamp;CPU;%user;%nice;%system;%iowait;%steal;%idle"]
    lines += [f"{stamp};-1;20.11;0.00;2.31;0.21;0.00;77.37" for stamp in stamps]
    lines += [f"{node};-1;2026-09-21 14:20:30 UTC;LINUX-RESTART\t(96 CPU)"]
    lines += ["# hostname;interval;timestamp;runq-sz;plist-sz;ldavg-1;ldavg-5;ldavg-15;blocked"]
    lines += [f"{stamp};4;900;12.1;11.0;9.0;0" for stamp in stamps]
    lines += ["# hostname;interval;timestamp;DEV;tps;rkB/s;wkB/s;dkB/s;areq-sz;aqu-sz;await;%util"]
    lines += [
        f"{stamp};nvme0n1;60.10;9600.00;80.00;0.00;160.00;0.02;{wait:.2f};{95.0 if wait > 40 else 6.0:.2f}"
        for stamp, wait in zip(stamps, late, strict=True)
    ]
    lines += ["# hostname;interval;timestamp;IFACE;rxpck/s;txpck/s;rxkB/s;txkB/s;rxcmp/s;txcmp/s;rxmcst/s;%ifutil"]
    lines += [f"{stamp};eth2;90000.00;90000.00;780000.00;780000.00;0.00;0.00;0.10;6.39" for stamp in stamps]
    lines += ["# hostname;interval;timestamp;IFACE;rxerr/s;txerr/s;coll/s;rxdrop/s;txdrop/s;txcarr/s;rxfram/s;rxfifo/s"]
    lines += [f"{stamp};eth2;0.00;0.00;0.00;{lost:.2f};0.00;0.00;0.00;0.00" for stamp in stamps]
    return "\n".join(lines) + "\n"


def fleet(**odd: float) -> dict[str, str]:
    return {f"gpu0{n}": sadf(f"gpu0{n}", **(odd if n == 3 else {})) for n in range(1, 5)}


def test_semicolons_of_sadf_tell_disks_and_interfaces(tmp_path: Path):
    assert judged_text(tmp_path, "".join(fleet().values())) == ("healthy", [])
    assert judged_text(tmp_path, "".join(fleet(lost=310.0).values()))[1] == [("nic_error", "gpu03", PORT)]
    assert judged_text(tmp_path, "".join(fleet(wait_ms=200.0).values()))[1] == [("storage", "gpu03", "nvme0n1")]
    assert judged(filed(tmp_path / "files", fleet(lost=310.0)))[1] == [("nic_error", "gpu03", PORT)]
    cut = sadf("gpu03", wait_ms=200.0)
    assert judged_text(tmp_path, cut[: int(0.8 * len(cut))])[1] == [("storage", "gpu03", "nvme0n1")]
    assert judged_text(tmp_path, "# hostname;interval;timestamp;proc/s;cswch/s\n")[0] == "not judged"


def moment(minute: int, lost: float, wait_ms: float) -> dict[str, object]:
    late_ms = wait_ms if minute >= 10 else 0.3
    disk = {"disk-device": "nvme0n1", "tps": 60.1, "rkB": 9600.0, "wkB": 80.0, "await": late_ms}
    bytes_ = {"rxkB": 7.8e5, "txkB": 7.8e5, "ifutil-percent": 6.39}
    return {
        "timestamp": {"date": "2026-09-21", "time": f"14:{minute:02d}:01", "utc": 1, "interval": 60},
        "cpu-load": [{"cpu": "all", "user": 20.0, "system": 2.1, "iowait": 0.2, "steal": 0.0, "idle": 77.7}],
        "disk": [{**disk, "util-percent": 95.0 if wait_ms > 40 and minute >= 10 else 6.0}],
        "network": {
            "net-dev": [{"iface": "eth2", "rxpck": 9e4, "txpck": 9e4, **bytes_}],
            "net-edev": [{"iface": "eth2", "rxerr": 0.0, "txerr": 0.0, "rxdrop": lost, "txdrop": 0.0}],
        },
    }  # fmt: skip


def sadf_json(lost: float = 0.0, wait_ms: float = 0.3) -> str:
    of = []
    for number in range(1, 5):
        odd = (lost, wait_ms) if number == 3 else (0.0, 0.3)
        of += [{"nodename": f"gpu0{number}", "statistics": [moment(minute, *odd) for minute in range(20)]}]
    return json.dumps({"sysstat": {"hosts": of}})


def test_json_of_sadf_tells_the_same(tmp_path: Path):
    assert judged_text(tmp_path, sadf_json(), "sa.json") == ("healthy", [])
    assert judged_text(tmp_path, sadf_json(lost=310.0), "sa.json")[1] == [("nic_error", "gpu03", PORT)]
    assert judged_text(tmp_path, sadf_json(wait_ms=200.0), "sa.json")[1] == [("storage", "gpu03", "nvme0n1")]
    assert judged_text(tmp_path, sadf_json()[:900], "sa.json")[0] == "not judged"
