"""Step lines of trainers: which step, how long it took, and that training goes on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MAX_CHARS: Final = 2_000  # of a line; no trainer's are longer
_N: Final = r"([0-9]{1,12}(?:\.[0-9]{1,9})?(?:[eE][-+]?[0-9]{1,3})?)"


@dataclass(frozen=True, slots=True)
class Trainer:
    """How one trainer prints its steps.

    Attributes
    ----------
    word : str
        Stands in every such line; looked for first, as that is cheap.
    pattern : str
        Groups ``step`` and, if the line says it, ``s`` or ``ms`` (time of a step), ``hz`` (steps a second) or ``rate``
        (samples or tokens a second). Repeats are bounded and none stands inside another: linear time.
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
    Trainer("composer", "[batch=", r"\[batch=(?P<step>[0-9]{1,12})/[0-9]{1,12}\]", "[batch=12/100]:"),
    Trainer("mlperf", ":::MLLOG", r'"key": "(?:train_loss|tracked_stats|train_step)".{0,400}?"(?:step|samples_count|step_num)": (?P<step>[0-9]{1,15})',  # noqa: E501
            ':::MLLOG {"namespace": "", "time_ms": 1700000000000, "event_type": "POINT_IN_TIME", "key": "train_loss", "value": 3.2, "metadata": {"file": "x.py", "lineno": 1, "samples_count": 512}}'),  # noqa: E501
    Trainer("bar", "it]", r"(?P<step>[0-9]{1,12})/[0-9]{1,12} \[[0-9:]{4,12}<[0-9:?]{1,12}, {1,4}" + _n("s") + r"s/it\]",  # noqa: E501
            " 12%|#2        | 123/1000 [10:23<1:14:06,  5.07s/it]"),
    Trainer("bar_loss", "s/it", r"(?P<step>[0-9]{1,12})/[0-9]{1,12} \[[0-9:]{4,12}<[0-9:?]{1,12}, {1,4}" + _n("s") + "s/it",  # noqa: E501
            "Epoch 0:  12%|#2        | 123/1000 [10:23<1:14:06,  5.07s/it, v_num=0, train_loss=2.3]"),
    Trainer("bar_rate", "it/s", r"(?P<step>[0-9]{1,12})/[0-9]{1,12} \[[0-9:]{4,12}<[0-9:?]{1,12}, {1,4}" + _n("hz") + "it/s",  # noqa: E501
            "Epoch 0:  12%|#2        | 123/1000 [00:23<01:14,  5.07it/s, v_num=0, train_loss=2.3]"),
    Trainer("plain", "step", r"(?i:^|[\[\s|])(?:global_)?step[\s:=]{1,4}(?P<step>[0-9]{1,12})\b(?:.{0,200}?\b(?:step|iter)_?time[\s:=]{1,4}" + _n("s") + " ?s?\\b)?",  # noqa: E501
            "step 12 | loss 3.21 | step_time 1.2s"),
)  # fmt: skip
_COMPILED: Final = tuple((row.name, row.word, re.compile(row.pattern)) for row in TRAINERS)


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
    for name, word, pattern in _COMPILED:
        if word in line and (match := pattern.search(line)):
            return _said(name, match.groupdict())
    return None


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
