"""What a board's controller says: failed fans, supplies and temperatures are named, what is not fitted is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.trainwarden.formats.judging import HEADINGS, filed, headed, judged, judged_text, labelled

SENSOR = """CPU1 Temp        | {temp:<10} | degrees C  | {cpu:<6}| 0.000     | 0.000     | 0.000
12V              | 12.192     | Volts      | ok    | 10.299    | 10.740    | 11.245    | 12.891
FAN1             | 12600.000  | RPM        | ok    | 300.000   | 500.000   | 700.000   | 25300.000
FAN5             | {speed:<10} | RPM        | {fan:<6}| 300.000   | 500.000   | 700.000   | 25300.000
FAN9             | na         |            | na    | na        | na        | na        | na
Chassis Intru    | 0x0        | discrete   | 0x0000| na        | na        | na        | na
PS1 Status       | 0x1        | discrete   | 0x{supply}| na        | na        | na        | na
"""
ANOMALY = "metric_anomaly"


def sensor(
    temp: str = "45.000", cpu: str = "ok", speed: str = "12400.000", fan: str = "ok", supply: str = "0100"
) -> str:
    return SENSOR.format(temp=temp, cpu=cpu, speed=speed, fan=fan, supply=supply)


@pytest.mark.parametrize(
    ("odd", "device"),
    [
        ({"fan": "nr", "speed": "0.000"}, "FAN5"),
        ({"fan": "cr", "speed": "400.000"}, "FAN5"),
        ({"cpu": "cr", "temp": "99.000"}, "CPU1_Temp"),
        ({"supply": "0300"}, "PS1_Status"),
        ({"supply": "0980"}, "PS1_Status"),
    ],
)
def test_sensors_that_are_critical_are_named(tmp_path: Path, odd: dict[str, str], device: str):
    assert judged_text(tmp_path, sensor(**odd)) == ("incident", [(ANOMALY, None, device)])


@pytest.mark.parametrize(
    "odd",
    [{}, {"cpu": "nc", "temp": "96.000"}, {"fan": "na", "speed": "na"}, {"supply": "0180"}, {"supply": "0000"}],
)
def test_what_is_sound_not_fitted_or_not_critical_is_not(tmp_path: Path, odd: dict[str, str]):
    assert judged_text(tmp_path, sensor(**odd)) == ("healthy", [])


def test_nodes_are_told_apart_and_a_cut_table_is_read(tmp_path: Path):
    parts = {f"gpu0{n}": sensor(fan="nr", speed="0.000") if n == 3 else sensor() for n in range(1, 5)}
    for text in (labelled(parts), *(headed(parts, heading) for heading in HEADINGS)):
        assert judged_text(tmp_path, text) == ("incident", [(ANOMALY, "gpu03", "FAN5")])
    assert judged(filed(tmp_path / "files", parts))[1] == [(ANOMALY, "gpu03", "FAN5")]
    text = sensor(fan="nr", speed="0.000")
    assert judged_text(tmp_path, text[: int(0.8 * len(text))])[1] == [(ANOMALY, None, "FAN5")]


SDR = """CPU1 Temp        | 45 degrees C      | ok
FAN1             | 9360 RPM          | ok
FAN2             | {reading:<17} | {status}
FAN A            | no reading        | ns
PSU2 Status      | Not Readable      | ns
"""


@pytest.mark.parametrize(
    ("status", "reading", "found"),
    [("cr", "0 RPM", True), ("nr", "0 RPM", True), ("nc", "700 RPM", False), ("ns", "Disabled", False)],
)
def test_the_repository_of_sensors(tmp_path: Path, status: str, reading: str, found: bool):
    told = judged_text(tmp_path, SDR.format(status=status, reading=reading))
    assert told == (("incident", [(ANOMALY, None, "FAN2")]) if found else ("healthy", []))


ELIST = """Inlet Temp       | 04h | ok  |  7.1 | 24 degrees C
Fan1             | 38h | ok  |  7.1 | 9360 RPM
Fan2             | 39h | ns  |  7.1 | No Reading
Status PSU1      | 62h | ok  | 10.1 | Presence detected
Status PSU2      | 63h | {status}  | 10.2 | {words}
"""


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("Presence detected, Power Supply AC lost", True),
        ("Presence detected, Failure detected", True),
        ("Presence detected", False),
        ("", False),
    ],
)
def test_words_of_what_is_no_number(tmp_path: Path, words: str, found: bool):
    told = judged_text(tmp_path, ELIST.format(status="ok", words=words))
    assert told == (("incident", [(ANOMALY, None, "Status_PSU2")]) if found else ("healthy", []))


def events(*of: tuple[str, str, str, str]) -> str:
    lines = [("09/21/2026 | 13:00:01", "Event Logging Disabled #0x51", "Log area reset/cleared", "Asserted"), *of]
    return "".join(f"{n:4x} | {' | '.join(event)}\n" for n, event in enumerate(lines, 1))


FAN = ("Fan #0x45", "Lower Critical going low ")


@pytest.mark.parametrize(
    ("of", "kinds"),
    [
        ([("09/21/2026 | 14:00:01", *FAN, "Asserted")], [ANOMALY]),
        ([("09/21/2026 | 14:00:01", "Power Supply #0xc9", "Failure detected", "Asserted")], [ANOMALY]),
        ([("09/21/2026 | 14:00:01", "Temperature #0x01", "Upper Critical going high", "Asserted")], [ANOMALY]),
        ([("09/21/2026 | 14:00:01", "Memory #0x87", "Uncorrectable ECC (@DIMMA1(CPU1))", "Asserted")], ["node_lost"]),
        ([("09/21/2026 | 14:00:01", "Processor #0x04", "IERR", "Asserted")], ["node_lost"]),
        ([("09/21/2026 | 14:00:01", "Critical Interrupt #0xa1", "Bus Fatal Error", "Asserted")], ["pcie_error"]),
        ([("09/21/2026 | 14:00:01", "Memory #0x87", "Correctable ECC logging limit reached", "Asserted")], [ANOMALY]),
        ([("09/21/2026 | 14:00:01", "Memory #0x87", "Correctable ECC", "Asserted")], []),
        ([("09/21/2026 | 14:00:01", "Temperature #0x01", "Upper Non-critical going high", "Asserted")], []),
        ([("09/21/2026 | 14:00:01", *FAN, "Asserted"), ("09/21/2026 | 14:00:09", *FAN, "Deasserted")], []),
        ([("01/02/2026 | 14:00:01", *FAN, "Asserted"), ("09/21/2026 | 14:00:09", "Fan #0x46", "x", "Asserted")], []),
    ],
)
def test_events_count_by_their_last_state(tmp_path: Path, of: list[tuple[str, str, str, str]], kinds: list[str]):
    answer, told = judged_text(tmp_path, events(*of), "sel.txt")
    assert [kind for kind, _, _ in told] == kinds
    assert answer == ("incident" if kinds else "healthy")


def test_events_of_nodes_name_the_node(tmp_path: Path):
    bad = events(("09/21/2026 | 14:00:01", *FAN, "Asserted"))
    parts = {f"gpu0{n}": bad if n == 2 else events() + events() for n in range(1, 4)}
    assert [(kind, node) for kind, node, _ in judged_text(tmp_path, labelled(parts))[1]] == [(ANOMALY, "gpu02")]
