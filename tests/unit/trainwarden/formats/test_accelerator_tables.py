"""A look at Ascend's and Gaudi's accelerators: what fails by its own word is named, what only warns is not judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.trainwarden.formats.answers import answer_to


def npu_smi(health: str = "OK", celsius: int = 48, at: int = 3, count: int = 8) -> str:
    ruler = "+===========================+===============+====================================================+"
    lines = [
        "+" + "-" * 96 + "+",
        "| npu-smi 24.1.rc2                 Version: 24.1.rc2" + " " * 45 + "|",
        ruler,
        "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|",
        ruler,
    ]
    for number in range(count):
        word, heat = (health, celsius) if number == at else ("OK", 47)
        lines.append(f"| {number}     910B2               | {word:<13} | 310.5       {heat:<17} 0    / 0             |")
        lines.append(
            f"| 0                         | 0000:C{number}:00.0  | 97          0    / 0          60121/ 65536  |"
        )
    return "\n".join([*lines, ruler, ""])


def hl_smi(events: int = 0, celsius: int = 41, at: int = 3) -> str:
    lines = ["+" + "-" * 77 + "+", "| HL-SMI Version:                              hl-1.17.0-fw-51.3.0            |"]
    for number in range(8):
        count, heat = (events, celsius) if number == at else (0, 41)
        lines.append(
            f"|   {number}  HL-225              N/A  | 0000:{number}f:00.0     N/A |                   {count}  |"
        )
        lines.append(f"| N/A   {heat}C   N/A   420W / 600W |  90000MiB / 98304MiB |    97%           N/A |")
    return "\n".join([*lines, ""])


def ecc(errors: int, at: int = 3, count: int = 4) -> str:
    text = ""
    for number in range(count):
        text += f"        NPU ID                         : {number}\n"
        text += "        HBM Single Bit Error Count     : 4\n"
        text += f"        HBM Double Bit Error Count     : {errors if number == at else 0}\n"
        text += "        HBM Double Bit Isolated Pages Count : 3\n\n"
    return text


def health(word: str, info: str, device: str = "") -> str:
    rows = [("NPU ID", device)] if device else []
    rows += [("Health Status", word), ("Error Code", "X"), ("Error Information", info)]
    return "".join(f"\t{key:<31}: {value}\n" for key, value in rows)


@pytest.mark.parametrize(
    ("text", "kind", "device"),
    [
        (npu_smi("Alarm"), "gpu_lost", "npu3"), (npu_smi("Critical", 104), "gpu_lost", "npu3"),
        (hl_smi(2), "gpu_memory_error", "hpu3"), (ecc(2), "gpu_memory_error", "npu3"),
        (health("OK", "NA", "0") + health("Alarm", "node type=HBM, Multi-bit ECC", "1"), "gpu_memory_error", "npu1"),
        (health("OK", "NA", "0") + health("Critical", "chip reset", "1"), "gpu_lost", "npu1"),
    ],
)  # fmt: skip
def test_the_device_that_fails_by_its_own_word_is_named(tmp_path: Path, text: str, kind: str, device: str):
    assert answer_to(tmp_path, {"look.txt": text}) == ("incident", [(kind, [(None, None, device)])])


@pytest.mark.parametrize("text", [npu_smi(), hl_smi(), ecc(0), health("OK", "NA")])
def test_a_clean_look_is_healthy(tmp_path: Path, text: str):
    assert answer_to(tmp_path, {"look.txt": text}) == ("healthy", [])


@pytest.mark.parametrize("text", [npu_smi("Warning"), npu_smi(celsius=104), hl_smi(celsius=99), npu_smi()[:250]])
def test_what_one_look_does_not_decide_is_not_judged(tmp_path: Path, text: str):
    assert answer_to(tmp_path, {"look.txt": text}) == ("not judged", [])


def test_a_number_behind_the_values_is_that_of_what_was_before(tmp_path: Path):
    texts = [health(word, "NA") + f"\tNPU ID                         : {number}\n"
             for number, word in enumerate(("OK", "Alarm", "OK"))]  # fmt: skip
    assert answer_to(tmp_path, {"look.txt": "".join(texts)})[1] == [("gpu_lost", [(None, None, "npu1")])]


def test_a_device_without_a_number_is_that_of_the_file(tmp_path: Path):
    files = {f"health_npu{number}.txt": health("Alarm" if number == 2 else "OK", "NA") for number in range(4)}
    assert answer_to(tmp_path, files)[1] == [("gpu_lost", [(None, None, "npu2")])]


def test_the_node_is_named_after_the_file_where_several_report_of_the_same_devices(tmp_path: Path):
    told = answer_to(tmp_path / "nodes", {"npu_n1.txt": npu_smi(), "npu_n2.txt": npu_smi("Critical")})
    assert told == ("incident", [("gpu_lost", [(None, "n2", "npu3")])])
    again = {"npu_20260921.txt": npu_smi(), "npu_20260922.txt": npu_smi("Critical")}
    assert answer_to(tmp_path / "days", again)[1] == [("gpu_lost", [(None, None, "npu3")])]
