"""Step times that trainers send to InfluxDB: line protocol, annotated CSV and JSON answers are judged as steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.unit.trainwarden.formats.answers import answer_to

T0, STEPS, RANKS = 1_790_000_000, 200, 8


class Step(NamedTuple):
    step: int
    rank: int
    time_s: int
    duration: float
    compute: float


def steps(all_slow: bool = False, slow: int | None = None, scale: float = 1.0) -> Iterator[Step]:
    for number in range(1, STEPS + 1):
        for rank in range(RANKS):
            late = number > 120
            wobble = 0.01 * ((7 * number + 3 * rank) % 5 - 2)
            duration = 2.0 * (1.5 if late and (all_slow or slow is not None) else 1.0) + wobble
            compute = 1.2 * (1.8 if late and rank == slow else 1.0) + wobble
            yield Step(number, rank, T0 + 3 * number, scale * duration, scale * compute)


def when(time_s: int) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def lines(told: Iterator[Step], unit: str = "s", step: bool = True) -> str:
    count = ",step={}i" if step else ""
    return "".join(f"training,host=n{one.rank // 4},rank={one.rank} step_time_{unit}={one.duration:.4f},"
                   f"compute_{unit}={one.compute:.4f}{count.format(one.step)} {one.time_s * 10**9}\n"
                   for one in told)  # fmt: skip


def annotated(told: Iterator[Step], step: bool = True) -> str:
    rows = list(told)
    text = "#group,false,false,false,false,true,true,true,true\n#datatype,string,long,dateTime:RFC3339,double,string,"
    text += "string,string,string\n#default,_result,,,,,,,\n,result,table,_time,_value,_field,_measurement,host,rank\n"
    for field in ("step_time_s", "compute_s", *(["step"] if step else [])):
        for one in rows:
            value = {"step_time_s": one.duration, "compute_s": one.compute, "step": one.step}[field]
            text += f",,0,{when(one.time_s)},{value},{field},training,n{one.rank // 4},{one.rank}\n"
    return text


def answered(told: Iterator[Step], step: bool = True) -> str:
    series: dict[int, list[list[object]]] = {}
    for one in told:
        row = [when(one.time_s), one.duration, one.compute, *([one.step] if step else [])]
        series.setdefault(one.rank, []).append(row)
    columns = ["time", "step_time_s", "compute_s", *(["step"] if step else [])]
    tables = [{"name": "training", "tags": {"host": f"n{rank // 4}", "rank": str(rank)}, "columns": columns,
               "values": values} for rank, values in series.items()]  # fmt: skip
    return json.dumps({"results": [{"statement_id": 0, "series": tables}]})


FORMS = {"lines.lp": lines, "query.csv": annotated, "answer.json": answered}
Form = Callable[..., str]
each_form = pytest.mark.parametrize(("name", "form"), FORMS.items(), ids=FORMS)


@each_form
def test_steps_that_become_longer_are_a_slow_job_and_even_ones_healthy(tmp_path: Path, name: str, form: Form):
    assert answer_to(tmp_path / "slow", {name: form(steps(all_slow=True))})[1] == [("slow_job", [])]
    assert answer_to(tmp_path / "even", {name: form(steps())}) == ("healthy", [])


@each_form
def test_the_rank_that_computes_longer_is_named_with_its_node(tmp_path: Path, name: str, form: Form):
    answer, incidents = answer_to(tmp_path, {name: form(steps(slow=5))})
    assert (answer, incidents) == ("incident", [("slow_compute", [(5, "n1", None)])])


@each_form
def test_samples_without_the_step_are_counted(tmp_path: Path, name: str, form: Form):
    assert answer_to(tmp_path, {name: form(steps(slow=5), step=False)})[1] == [("slow_compute", [(5, "n1", None)])]


def test_milliseconds_by_the_name_of_the_field_are_seconds(tmp_path: Path):
    told = answer_to(tmp_path, {"lines.lp": lines(steps(slow=5, scale=1e3), "ms")})
    assert told[1] == [("slow_compute", [(5, "n1", None)])]


@each_form
def test_an_export_that_is_cut_short_is_judged_by_what_is_whole_or_not_at_all(tmp_path: Path, name: str, form: Form):
    text = form(steps(slow=5))
    answer, incidents = answer_to(tmp_path, {name: text[: int(0.6 * len(text))]})
    assert incidents in ([], [("slow_compute", [(5, "n1", None)])])
    assert answer != "healthy" or name == "lines.lp"


def test_files_of_nodes_are_one_job(tmp_path: Path):
    parts = {f"n{node}.lp": lines(one for one in steps(slow=5) if one.rank // 4 == node) for node in (0, 1)}
    assert answer_to(tmp_path, parts)[1] == [("slow_compute", [(5, "n1", None)])]


def test_gpus_beside_steps_are_judged_too(tmp_path: Path):
    gpus = "".join(f"nvidia_smi,host=n0,index={gpu} temperature_gpu={96 if gpu == 2 and at > 20 else 60}i "
                   f"{(T0 + 10 * at) * 10**9}\n" for at in range(60) for gpu in range(4))  # fmt: skip
    _, incidents = answer_to(tmp_path, {"lines.lp": gpus + lines(steps())})
    assert incidents == [("gpu_throttle", [(None, "n0", "gpu2")])]


def test_an_answer_without_any_field_of_ours_is_not_judged(tmp_path: Path):
    assert (
        answer_to(tmp_path / "a", {"lines.lp": "weather,city=x rain=1.5 1790000000000000000\n" * 9})[0] == "not judged"
    )
    assert answer_to(tmp_path / "b", {"a.json": answered(iter(()))})[0] == "not judged"
