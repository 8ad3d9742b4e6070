"""Sums over kernels of all ranks: the rank that computes longest and waits least is named, and nobody else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.unit.trainwarden.formats.answers import Suspects, answer_to
from trainwarden.formats.dumps.kernel_sums import KernelTable
from trainwarden.formats.source import Source

MM, FLASH, SUM = "sm90_xmma_gemm_bf16_tn", "void flash_fwd_kernel<Traits<(int)128, (int)64>>(Params)", "AllReduce_Sum"
OWN, WAIT = {MM: (4.0, 640), FLASH: (0.9, 128)}, 1.9
Kernels = Mapping[str, tuple[float, int]]


def rank(own: float = 1.0, wait: float = 1.0, call: str = SUM, more: Kernels | None = None) -> Kernels:
    """Seconds and calls by kernel; `own` and `wait` are shares of the usual times."""
    kernels = {name: (own * seconds, calls) for name, (seconds, calls) in OWN.items()}
    return {**kernels, **(more or {}), f"ncclDevKernel_{call}_bf16_RING_LL(ncclDevComm *)": (wait * WAIT, 320)}


def nsys_csv(kernels: Kernels) -> str:
    lines = ["Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name"]
    lines += [f'9.9,{seconds * 1e9:.0f},{calls},1.0,1.0,1,1,0.1,"{name}"'
              for name, (seconds, calls) in kernels.items()]  # fmt: skip
    return "\n".join(lines) + "\n"


def nsys_text(kernels: Kernels) -> str:
    other = " ** CUDA API Summary (cuda_api_sum):\n\n Time (%)  Total Time (ns)  Num Calls  Avg (ns)  Name\n"
    other += " --------  ---------------  ---------  --------  ----\n"
    other += "     99.0      9,000,000,000         77       1.0  cuda\n"
    lines = [f"{'9.9':>9}  {seconds * 1e9:>15,.0f}  {calls:>9,}  {'1.0':>8}  {name}"
             for name, (seconds, calls) in kernels.items()]  # fmt: skip
    return (
        f"Processing [r.sqlite] with [cuda_gpu_kern_sum.py]...\n\n{other}\n ** CUDA GPU Kernel Summary:\n\n"
        " Time (%)  Total Time (ns)  Instances  Avg (ns)  Name\n --------  ---------------  ---------  --------  ----\n"
        + "\n".join(lines) + "\n\n"
    )  # fmt: skip


def profiler(kernels: Kernels) -> str:
    """As `key_averages().table()` prints it; an operator holds the time of its kernel once more."""
    header = ("Name", "Self CPU %", "Self CPU", "Self CUDA", "Self CUDA %", "CUDA total", "# of Calls")
    rows = [("ProfilerStep*", "1%", "4.000s", "0.000us", "0%", "9.000s", "10")]
    rows += [("aten::mm", "1%", "6.000ms", f"{kernels[MM][0]:.3f}s", "9%", "9.000s", "640")]
    rows += [(name, "0.00%", "0.000us", f"{seconds * 1e3:.3f}ms", "9%", "9.000s", str(calls))
             for name, (seconds, calls) in kernels.items()]  # fmt: skip
    ruler = "  ".join("-" * width for width in (80, *[12] * 6)) + "  "
    lines = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, (80, *[12] * 6), strict=True)) + "  "
             for row in (header, *rows)]  # fmt: skip
    return "\n".join([ruler, lines[0], ruler, *lines[1:], ruler, "Self CPU time total: 6.5s", ""])


FORMS = {"nsys.csv": nsys_csv, "nsys.txt": nsys_text, "profiler.txt": profiler}
Form = Callable[[Kernels], str]
EVEN = {number: rank(1.0 + 0.004 * number, 1.0 - 0.01 * number) for number in range(6)}
SLOW = {**EVEN, 2: rank(1.35, 0.3)}


def asked(folder: Path, ranks: Mapping[int, Kernels], form: Form = nsys_csv, name: str = "nsys_rank{}.csv"):
    return answer_to(folder, {name.format(number): form(kernels) for number, kernels in ranks.items()})


FOUND: tuple[str, list[tuple[str, Suspects]]] = ("incident", [("slow_compute", [(2, None, None)])])


@pytest.mark.parametrize(("ending", "form"), FORMS.items(), ids=FORMS)
def test_the_rank_that_computes_longest_and_waits_least_is_named(tmp_path: Path, ending: str, form: Form):
    assert asked(tmp_path / "slow", SLOW, form, "rank{}_" + ending) == FOUND
    assert asked(tmp_path / "even", EVEN, form, "rank{}_" + ending) == ("healthy", [])


def test_operators_that_contain_kernels_are_not_counted_once_more(tmp_path: Path):
    for place, form in enumerate(FORMS.values()):
        path = tmp_path / f"{place}.txt"
        path.write_text(form(rank()), encoding="utf-8")
        (sums,) = KernelTable().read(Source(path, path.name), {}).kernels
        assert (sum(sums.own_s.values()), sums.wait_s) == pytest.approx((4.9, 1.9))


def test_files_that_differ_by_a_number_alone_are_of_these_ranks(tmp_path: Path):
    assert asked(tmp_path, SLOW, name="report_{}_cuda_gpu_kern_sum.csv") == FOUND


@pytest.mark.parametrize(
    "ranks",
    [
        {0: rank()},
        {0: rank(), 1: rank(1.35, 0.3), 2: rank()},  # too few
        {**EVEN, 2: rank(1.35, 1.2)},  # it waits as long: its work is another
        {**EVEN, 2: rank(1.35, 0.3), 3: rank(1.35, 0.3)},  # two: a stage, or a pair
        {**EVEN, 2: rank(1.1, 0.7)},  # little longer
        {**EVEN, 2: rank(1.0, 0.3)},  # late, and not for its kernels
        {number: rank(1.35 if number == 2 else 1.0, 0.3 if number == 2 else 1.0, "SendRecv") for number in EVEN},
        {**EVEN, 2: {name.replace("RING", "TREE"): (3.0, 7) for name in rank()}},  # other kernels
        {number: {MM: (4.0, 640)} for number in EVEN},  # no collective at all
    ],
)
def test_what_cannot_be_compared_is_not_judged(tmp_path: Path, ranks: Mapping[int, Kernels]):
    assert asked(tmp_path, ranks) == ("not judged", [])


def test_more_work_of_one_rank_is_no_slowness(tmp_path: Path):
    embedding = {"embedding_kernel": (1.5, 10)}
    assert asked(tmp_path, {**EVEN, 2: rank(more=embedding)}) == ("healthy", [])


def test_ranks_of_nodes_that_count_from_zero_are_told_to_be_named(tmp_path: Path):
    names = [f"n{node}_rank{number}.csv" for node in range(2) for number in range(3)]
    files = {name: nsys_csv(kernels) for name, kernels in zip(names, SLOW.values(), strict=True)}
    assert answer_to(tmp_path, files) == ("not judged", [])


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_table_that_is_cut_short_is_not_compared_with_whole_ones(tmp_path: Path, form: Form):
    whole = {f"rank{number}.txt": form(kernels) for number, kernels in EVEN.items()}
    assert answer_to(tmp_path, {**whole, "rank2.txt": whole["rank2.txt"][:400]})[0] != "incident"


def test_sums_of_calls_alone_are_refused_with_what_to_give(tmp_path: Path):
    only = nsys_text({}).partition(" ** CUDA GPU")[0]
    assert answer_to(tmp_path, {"rank0.txt": only})[0] == "not judged"
