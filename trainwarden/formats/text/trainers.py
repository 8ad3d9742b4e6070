"""Step lines of trainers: which step, how long it took, and that training goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from trainwarden.log_shapes import by_shape, unmasked

MAX_CHARS: Final = 8_192  # of a line; verl's have thousands
_N: Final = r"([0-9]{1,12}(?:\.[0-9]{1,9})?(?:[eE][-+]?[0-9]{1,3})?)"


@dataclass(frozen=True, slots=True)
class Trainer:
    """How one trainer prints its steps.

    Attributes
    ----------
    word : str
        Stands in every such line; looked for first, as that is cheap.
    pattern : str
        Groups ``step`` (none: a further line of the trainer's last step) and, if the line says it, ``s`` or ``ms``
        (time of a step), ``hz`` (steps a second) or ``rate`` (samples or tokens a second). Repeats are bounded and none
        stands inside another: linear time.
    sample : str
        A line of it.
    """

    name: str
    word: str
    pattern: str
    sample: str


@dataclass(frozen=True, slots=True)
class StepLine:
    """What a step line says; `duration_s` and `rate` are None where it does not say them."""

    trainer: str
    step: int | None = None
    duration_s: float | None = None
    rate: float | None = None


def _n(group: str) -> str:
    return _N.replace("(", f"(?P<{group}>", 1)


COUNTED: Final = "transformers"  # its lines have no number: each is as many steps as the one before
TRAINERS: Final = (
    Trainer("megatron", "elapsed time per iteration",
            r"iteration {1,12}(?P<step>[0-9]{1,12})/ {0,12}[0-9]{1,12} \|.{0,400}?elapsed time per iteration \(ms\): " + _n("ms"),  # noqa: E501
            " iteration      100/    9000 | consumed samples: 25600 | elapsed time per iteration (ms): 5000.0 | lm loss: 3.1E+00 |"),  # noqa: E501
    Trainer("deepspeed", "iter time (s):", r"steps: (?P<step>[0-9]{1,12}) loss: .{1,40} iter time \(s\): " + _n("s"),
            "steps: 10 loss: 2.5000 iter time (s): 1.250 samples/sec: 51.2"),
    Trainer("deepspeed_timer", "CurrSamplesPerSec=",
            r"global_step=(?P<step>[0-9]{1,12}), RunningAvgSamplesPerSec=[0-9.]{1,20}, CurrSamplesPerSec=" + _n("rate"),
            "[Rank 0] epoch=0/micro_step=20/global_step=20, RunningAvgSamplesPerSec=51.2, CurrSamplesPerSec=51.2, MemAllocated=1GB"),  # noqa: E501
    Trainer("nemo", "train_step_timing in s",
            r"global_step[:=] ?(?P<step>[0-9]{1,12})(?:\.[0-9]{1,3})?.{0,400}?train_step_timing in s[:=] ?" + _n("s"),
            "Training epoch 0, iteration 12/999 | lr: 1e-05 | global_step: 12 | reduced_train_loss: 10.1 | train_step_timing in s: 2.3"),  # noqa: E501
    Trainer("maxtext", "completed step:", r"completed step: (?P<step>[0-9]{1,12}), seconds: " + _n("s"),
            "completed step: 12, seconds: 3.456, TFLOP/s/device: 123.4, Tokens/s/device: 2100.0, total_weights: 65536, loss: 9.8"),  # noqa: E501
    Trainer("nanogpt", ", time ", r"iter (?P<step>[0-9]{1,12}): loss .{1,40}, time " + _n("ms") + "ms",
            "iter 120: loss 3.2011, time 250.31ms, mfu 35.20%"),
    Trainer("torchtitan", " tps: ",
            r"step: {1,8}(?P<step>[0-9]{1,12}) {1,8}loss: .{1,400}? tps: (?P<rate>[0-9,]{1,15})",
            "[titan] 2025-03-01 10:00:00,123 - root - INFO - step: 12  loss:  7.0011  memory: 60.10GiB(76.00%)  tps: 3,345  mfu: 34.10%"),  # noqa: E501
    Trainer("olmo", "[step=", r"\[step=(?P<step>[0-9]{1,12})(?:/[0-9]{1,12})?[,\]]", "[step=12/1000,epoch=0]"),
    Trainer("olmo", "throughput/", r"throughput/device/(?:batches_per_second|BPS)=" + _n("hz"),
            "    throughput/device/batches_per_second=0.5000"),
    Trainer("composer", "[batch=", r"\[batch=(?P<step>[0-9]{1,12})/[0-9]{1,12}\]", "[batch=12/100]:"),
    Trainer("composer", "throughput/", r"Train throughput/batches_per_sec: " + _n("hz"),
            "\t Train throughput/batches_per_sec: 0.5000"),
    Trainer("torchtune", "tokens_per_second_per_gpu:",
            r"Step (?P<step>[0-9]{1,12}) \| .{0,400}?tokens_per_second_per_gpu:" + _n("rate"),
            "Step 12 | loss:1.2 lr:2e-05 tokens_per_second_per_gpu:1234.5 peak_memory_active:20.1"),
    Trainer("fairseq", '"num_updates"',
            r'"ups": "' + _n("hz") + r'".{0,200}?"num_updates": "(?P<step>[0-9]{1,12})"',
            '{"epoch": 1, "loss": "3.1", "wps": "51200", "ups": "0.50", "wpb": "8192", "num_updates": "100"}'),
    Trainer("open_clip", "Batch (t): ", r"Train Epoch: [0-9]{1,6} \[ {0,12}(?P<step>[0-9]{1,12})/.{0,200}?Batch \(t\): " + _n("s"),  # noqa: E501
            "Train Epoch: 0 [  25600/256000 (10%)] Data (t): 0.012 Batch (t): 1.512, 169.3/s LR: 0.0001 Loss: 3.2 (3.2)"),  # noqa: E501
    Trainer("imagenet", "Time", r"Epoch: {1,4}\[[0-9]{1,6}\]\[ {0,12}(?P<step>[0-9]{1,12})/[0-9]{1,12}\]:?\s{1,4}(?:Batch)?Time[:\s]{1,4}" + _n("s"),  # noqa: E501
            "Epoch: [1][ 100/5005]\tTime  0.312 ( 0.340)\tData  0.012 ( 0.020)\tLoss 6.9100e+00 (6.9200e+00)"),
    Trainer("torchvision", "Epoch: ", r"Epoch: {1,4}\[[0-9]{1,6}\] {1,4}\[ {0,12}(?P<step>[0-9]{1,12})/ {0,12}[0-9]{1,12}\].{0,800}?\btime: " + _n("s"),  # noqa: E501
            "Epoch: [0]  [  10/1251]  eta: 0:10:11  lr: 0.1  loss: 6.9 (6.9)  time: 0.3110  data: 0.0120  max mem: 3"),
    Trainer("timm", "Train: ", r"Train: [0-9]{1,6} \[ {0,12}(?P<step>[0-9]{1,12})/.{0,200}?Time: " + _n("s") + "s",
            "Train: 0 [  50/1251 (  4%)]  Loss: 6.91 (6.92)  Time: 0.312s, 820.51/s  (0.340s, 752.94/s)"),
    Trainer("detectron2", " iter: ", r" iter: (?P<step>[0-9]{1,12}) .{0,800}? time: " + _n("s"),
            "[09/21 08:00:01 d2.utils.events]:  eta: 2:10:11  iter: 19  total_loss: 1.2  time: 0.3100  data_time: 0.01"),  # noqa: E501
    Trainer("mmengine", "(train)", r"(?:Epoch|Iter)\(train\) {1,4}(?:\[[0-9]{1,6}\])?\[ {0,12}(?P<step>[0-9]{1,12})/.{0,400}? time: " + _n("s"),  # noqa: E501
            "09/21 08:00:01 - mmengine - INFO - Epoch(train)  [1][   50/1000]  lr: 2.0e-02  eta: 2:10:11  time: 0.5111"),  # noqa: E501
    Trainer("paddle", "interval_steps_per_second: ",
            r"global_step: (?P<step>[0-9]{1,12}), .{0,200}?interval_steps_per_second: " + _n("hz"),
            "loss: 2.5, learning_rate: 1e-05, global_step: 10, interval_runtime: 1.5, interval_steps_per_second: 0.6667"),  # noqa: E501
    Trainer("verl", "timing_s/step:", r"\bstep:(?P<step>[0-9]{1,12}) - .{0,8000}?timing_s/step:" + _n("s"),
            "step:12 - actor/pg_loss:0.01 - actor/grad_norm:0.3 - timing_s/step:85.210 - perf/throughput:1021.3"),
    Trainer("levanter", "Progress on:train", r"Progress on:train (?P<step>[0-9]{1,12})(?:\.0)?it/\S{1,20} rate:" + _n("s") + "s/it",  # noqa: E501
            "Progress on:train 120.0it/1.00kit rate:1.5s/it remaining:1:00:00 elapsed:03:00 postfix:loss=3.1"),
    Trainer("mlperf", ":::MLLOG", r'"key": "(?:train_loss|tracked_stats|train_step)".{0,400}?"(?:step|samples_count|step_num)": (?P<step>[0-9]{1,15})',  # noqa: E501
            ':::MLLOG {"namespace": "", "time_ms": 1700000000000, "event_type": "POINT_IN_TIME", "key": "train_loss", "value": 3.2, "metadata": {"file": "x.py", "lineno": 1, "samples_count": 512}}'),  # noqa: E501
    Trainer("bar", "it]", r"(?P<step>[0-9]{1,12})/[0-9]{1,12} \[[0-9:]{4,12}<[0-9:?]{1,12}, {1,4}" + _n("s") + r"s/it\]",  # noqa: E501
            " 12%|#2        | 123/1000 [10:23<1:14:06,  5.07s/it]"),
    Trainer("bar_loss", "s/it", r"(?P<step>[0-9]{1,12})/[0-9]{1,12} \[[0-9:]{4,12}<[0-9:?]{1,12}, {1,4}" + _n("s") + "s/it",  # noqa: E501
            "Epoch 0:  12%|#2        | 123/1000 [10:23<1:14:06,  5.07s/it, v_num=0, train_loss=2.3]"),
    Trainer("bar_rate", "it/s", r"(?P<step>[0-9]{1,12})/[0-9]{1,12} \[[0-9:]{4,12}<[0-9:?]{1,12}, {1,4}" + _n("hz") + "it/s",  # noqa: E501
            "Epoch 0:  12%|#2        | 123/1000 [00:23<01:14,  5.07it/s, v_num=0, train_loss=2.3]"),
    Trainer(COUNTED, "'epoch': ", r"\{'loss': .{1,400}?'epoch': ", "{'loss': 2.5, 'grad_norm': 0.7, 'learning_rate': 1e-05, 'epoch': 0.05}"),  # noqa: E501
    Trainer("plain", "tep", r"(?i:^|[\[\s|])(?:global_)?[Ss]tep[\s:=]{1,4}(?P<step>[0-9]{1,12})\b", "step 12 | loss 3.21 | step_time 1.2s"),  # noqa: E501
    Trainer("plain", "ter", r"(?i:^|[\[\s|])[Ii]ter(?:ation)?[\s:=]{1,4}(?P<step>[0-9]{1,12})\b", "iter 12 | loss 3.21 | dt: 523.10ms"),  # noqa: E501
)  # fmt: skip
# How scripts without a name say how long a step took. A running average since the start says little of one step.
_PLAIN: Final = "plain"
_LASTED: Final = (
    re.compile(r"(?i)\b(?:dt|(?:step|iter|iteration|batch)[_ ]?time|time[_ /](?:per[_ ])?(?:step|iter|batch))(?: \(s\))?[\s:=]{1,4}" + _N.replace("(", "(?P<number>", 1) + r" ?(?P<unit>ms|s)?\b"),  # noqa: E501
    re.compile(_N.replace("(", "(?P<number>", 1) + r" ?(?P<unit>ms|s|sec)/(?:step|it|iter|iteration|batch)\b"),
    re.compile(r"\| {0,4}" + _N.replace("(", "(?P<number>", 1) + r" (?P<unit>ms) \|"),  # llm.c
    re.compile(_N.replace("(", "(?P<number>", 1) + r" ?(?P<unit>it|iter|step|batche)s?/s(?:ec)?\b"),
)  # fmt: skip
_RATE: Final = re.compile(
    r"(?i)\b([0-9][0-9,]{0,14}(?:\.[0-9]{1,9})?)(k?) ?(?:tok(?:en)?s?|samples?|examples?|seqs?)/s(?:ec(?:ond)?)?\b"
)
_COMPILED: Final = tuple((row.name, row.word, re.compile(row.pattern)) for row in TRAINERS)
# Who may have written a line: levanter's pattern alone wants a digit that it names, 0, as every digit of a shape is.
_possible = by_shape(lambda shape: tuple(_fitting(unmasked(shape))))


def _fitting(line: str) -> Iterator[tuple[str, re.Pattern[str]]]:
    return ((name, pattern) for name, word, pattern in _COMPILED if word in line and pattern.search(line))


def step_line(line: str) -> StepLine | None:
    """What a step line of a known trainer says, None for any other line.

    Examples
    --------
    >>> step_line(" iteration  100/ 9000 | elapsed time per iteration (ms): 5000.0 | lm loss: 3.1 |")
    StepLine(trainer='megatron', step=100, duration_s=5.0, rate=None)
    >>> step_line("step: 12  loss:  7.00  tps: 3,345  mfu: 34%").rate, step_line("a step by step guide") is None
    (3345.0, True)
    """
    if len(line) > MAX_CHARS:
        return None
    for name, pattern in _possible(line):
        if match := pattern.search(line):
            said = _said(name, match.groupdict())
            return _lasted(said, line) if name == _PLAIN else said
    return None


def _lasted(said: StepLine, line: str) -> StepLine:
    """`said` with how long the step took, as scripts write that in words of their own.

    Examples
    --------
    >>> step_line("step 12/100 | loss 7.1 (+nanz)| lr 1e-4 | 123.45 ms | 45.3% MFU | 1234567 tok/s").duration_s
    0.12345
    >>> step_line("step 3: loss=2.5 (1.50 sec/step)").duration_s, step_line("step 3: 2,048 tokens/s").rate
    (1.5, 2048.0)
    """
    for pattern in _LASTED:
        if (match := pattern.search(line)) and (number := float(match["number"])) > 0.0:
            unit = (match["unit"] or "s").lower()
            lasted_s = number / 1000.0 if unit == "ms" else number if unit in {"s", "sec"} else 1.0 / number
            return replace(said, duration_s=lasted_s)
    if match := _RATE.search(line):
        return replace(said, rate=float(match[1].replace(",", "")) * (1000.0 if match[2] else 1.0))
    return said


def _said(name: str, groups: dict[str, str | None]) -> StepLine:
    duration_s = rate = None
    if text := groups.get("s"):
        duration_s = float(text)
    elif text := groups.get("ms"):
        duration_s = float(text) / 1000.0
    elif (text := groups.get("hz")) and float(text) > 0.0:
        duration_s = 1.0 / float(text)
    elif text := groups.get("rate"):
        rate = float(text.replace(",", ""))
    step = groups.get("step")
    return StepLine(name, None if step is None else int(step), duration_s, rate)
