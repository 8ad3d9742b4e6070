"""What the columns of other tools' tables are: whose row it is, when it was, or which metric of the catalogue."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from trainwarden.catalogue import ALIASES, CATALOGUE, lookup
from trainwarden.formats.cells import UNITS
from trainwarden.formats.vocabulary import FIELDS, SPELLINGS

TIME: Final = ("time_s", "timestamp", "time", "ts", "datetime", "date_time", "date/time", "wall time", "wall_time",
               "@timestamp", "_timestamp", "epoch", "unix_time", "time_ms", "timestamp_ms", "time_ns", "timestamp_ns",
               "timestamp_us", "_time", "date", "created_at", "query_time", "relative time",
               "full label", "_runtime")  # fmt: skip
NODE: Final = ("node", "hostname", "host", "host_name", "nodename", "node_name", "instance", "server", "machine",
               "kubernetes_node", "exported_instance", "host.name", "agent.hostname")  # fmt: skip
DEVICE: Final = ("device", "gpu", "gpu_index", "gpu_id", "gpuid", "gpu_idx", "gpu_num", "index", "local_rank",
                 "minor_number", "card", "device_id", "device_index", "gpu_uuid", "uuid", "pci.bus_id", "pci_bus_id",
                 "bdf", "entity", "serial", "gpu_bus_id", "bus_id", "pci.bus", "gpu.index", "gpu.id",
                 "gpu_number", "gpu.uuid", "deviceid", "pod", "pod_name")  # fmt: skip
RANK: Final = ("rank", "global_rank", "process_rank", "world_rank", "rank_id", "rankid", "trainer_rank", "worker_rank")
MODEL: Final = ("model", "modelname", "gpu_name", "product_name", "card series", "card model", "device_name", "name",
                "gpu name")  # fmt: skip
_BLOCK: Final = re.compile(
    r"(?:amd_)?gpu_ecc_(un|)correct_([a-z0-9_]{2,24})|rocm_ras_([a-z0-9_]{2,24})_(un|)correctable_count"
)
# Words of a loss's name that make it another than the training's own.
OTHER_LOSSES: Final = frozenset({
    "val", "valid", "validation", "eval", "evaluation", "test", "testing", "dev", "aux", "auxiliary", "load", "balance",
    "balancing", "router", "z", "kl", "kld", "reg", "epoch", "last", "best", "min", "max", "prev", "previous",
    "initial", "packet", "packets", "frame", "data", "signal", "weight", "precision", "of", "without", "no", "stop",
    "scale", "scaler", "fn",
})  # fmt: skip
STEP: Final = ("step", "_step", "global_step", "iteration", "iter", "trainer/global_step", "train/global_step",
               "training_step", "consumed_steps", "current_steps")  # fmt: skip
EPOCH: Final = "epoch"  # a pass over the data where small numbers stand below it, else seconds since 1970
SERIES: Final = (
    "metric",
    "series",
    "__name__",
    "metric_name",
    "metricname",
    "metric.name",
    "field",
    "_field",
    "key",
    "tag",
    "measurement",
    "name",
)
VALUE: Final = ("value", "_value", "val", "metricvalue")
_DURATIONS: Final = frozenset({
    "duration_s", "duration", "step_time", "iteration_time", "iter_time", "time_per_step", "time_per_iteration",
    "elapsed_time_per_iteration", "step_duration", "iteration_duration", "seconds_per_step", "seconds_per_iteration",
    "step_seconds", "iteration_seconds", "train_step_time", "train_step_timing", "batch_time", "dt", "sec_per_iter",
    "s_per_it", "time_per_iter", "elapsed_time_per_iter", "step_time_s", "global_step_time", "step_time_sec",
    "time/step", "end_to_end", "iteration_time_s", "wall_time_per_step", "train_batch_time",
})  # fmt: skip
# What a step's time is made of, by the words that trainers have for it; `*_time` as well.
_PARTS: Final = {
    "compute": "compute_s", "computation": "compute_s", "forward_backward": "compute_s", "fwd_bwd": "compute_s",
    "wait": "wait_s", "comm": "wait_s", "communication": "wait_s", "allreduce": "wait_s", "all_reduce": "wait_s",
    "nccl": "wait_s", "sync": "wait_s", "barrier": "wait_s", "collective": "wait_s", "pause": "pause_s",
    "data": "data_s", "data_wait": "data_s", "dataloader": "data_s", "fetch": "data_s",
}  # fmt: skip
_OWN: Final = {
    "compute": "compute_s", "computation": "compute_s", "computing": "compute_s", "fwdbwd": "compute_s",
    "forward": "forward_s", "fwd": "forward_s", "backward": "backward_s", "bwd": "backward_s",
    "optimizer": "optimizer_s", "optim": "optimizer_s",
}  # fmt: skip
_OF_DATA: Final = dict.fromkeys(("data", "dataloader", "loader", "dataloading", "input", "batch", "fetch"), "data_s")
# Words beside these that say nothing else.
_BESIDE: Final = frozenset({
    "", "time", "times", "timing", "duration", "seconds", "sec", "secs", "s", "ms", "us", "ns", "msec", "milliseconds",
    "millis", "mean", "avg", "average", "median", "p50", "train", "training", "gpu", "device", "rank", "local", "pass",
    "step", "iter", "iteration", "per", "wait", "waiting", "waits", "load", "loading", "latency", "and", "kernel",
    "kernels", "of", "total", "next",
})  # fmt: skip
_RATES: Final = frozenset({
    "steps_per_second", "steps_per_sec", "iterations_per_second", "it_s", "it/s", "iter_per_sec", "steps/s",
    "train_steps_per_second", "batches_per_second", "batches_per_sec", "global_step/sec", "global_steps_per_sec",
    "tokens_per_second", "tokens_per_sec", "tps", "tokens/s", "tokens_per_sec_per_gpu", "tokens_per_gpu_per_second",
    "samples_per_second", "samples_per_sec", "samples/s", "throughput", "wps", "tgs", "train_samples_per_second",
    "device_tokens_per_sec", "tokens_per_device_per_second", "mfu", "hfu", "tflops", "tflops_per_gpu",
    "tflops_per_device", "per_device_tflops_per_sec", "per_device_tokens_per_sec", "examples_per_second",
    "examples_per_sec", "images_per_second", "images_per_sec", "interval_steps_per_second", "ups",
    "interval_samples_per_second", "seq_per_sec", "sequences_per_second",
})  # fmt: skip
_UNIT: Final = re.compile(  # in brackets, or as NeMo writes it: "train_step_timing in s"
    r"(?:\s{0,4}[\[(]\s{0,2}([A-Za-z°µ%/]{1,16}(?: Degree)?)\s{0,2}[\])]|[\s_]in[\s_](s|sec|seconds|ms|us))\s{0,4}$"
)
_SUFFIX: Final = re.compile(
    r"_(mhz|ghz|watts?|percent(?:age)?|pct|kb|kib|mb|mib|gb|gib|celsius|ms|milliseconds|us|ns|seconds|sec)$"
)
_WORD: Final = re.compile(r"[^a-z0-9]+")
_ONE_STEP: Final = frozenset({"step", "iter", "iteration", "batch"})
_LASTS: Final = frozenset({"time", "timing", "duration", "seconds", "sec", "secs", "latency", "ms", "millis"})
# Words of times that are no step's whole: parts, sums, other phases; and those of a rate, which `is_rate` knows.
_NO_STEP: Final = frozenset({
    *_PARTS, *OTHER_LOSSES, "forward", "backward", "fwd", "bwd", "optimizer", "optim", "data", "load", "loading",
    "loader", "dataloader", "fetch", "sync", "reduce", "save", "checkpoint", "total", "elapsed", "cumulative",
    "remaining", "eta", "start", "end", "last", "log", "logging", "io", "grad", "gpu", "cpu", "idle", "generation",
    "gen", "rollout", "reward", "old", "ref", "update", "size", "steps", "batches", "iterations", "stamp",
})  # fmt: skip
_DOTS: Final = re.compile(r"[./]")  # Elastic's and Datadog's names of what others write with underscores
_TIME: Final = re.compile(r"(_time)?(_s|_ms|_milliseconds|_us|_ns|_seconds|_sec)?$")


@dataclass(frozen=True, slots=True)
class Heading:
    """A metric that a column holds.

    Attributes
    ----------
    name : str
        As in the catalogue.
    factor : float
        What a value without a unit of its own is to be multiplied by.
    unit : str
        The catalogue's unit, so that units in cells can be checked.
    percent : bool
        Whether the name itself says percents, so that small values are no shares of one.
    """

    name: str
    factor: float
    unit: str
    percent: bool = field(default=False, repr=False, compare=False)


def plain(name: str) -> str:
    """A column's name without its unit and blanks, in lower case.

    Examples
    --------
    >>> plain(" clocks.current.sm [MHz]"), plain("Step Time (ms)"), plain("#Time")
    ('clocks.current.sm', 'step time', 'time')
    """
    return _UNIT.sub("", name.strip().strip('"')).strip().lstrip("#").strip().lower()


def unit_of(name: str) -> str:
    """The unit in a column's name, in lower case; "" for none.

    Examples
    --------
    >>> unit_of("clocks.current.sm [MHz]"), unit_of("step_time_ms"), unit_of("loss")
    ('mhz', 'ms', '')
    """
    match = _UNIT.search(name.strip().strip('"'))
    if match is not None and (unit := (match[1] or match[2]).lower()) in UNITS:
        return unit
    suffix = _SUFFIX.search(name.strip().lower())
    return suffix[1] if suffix is not None and suffix[1] in UNITS else ""


@cache
def _lower() -> dict[str, str]:
    return {alias.lower(): alias for alias in (*ALIASES, *CATALOGUE)}


@cache
def _of_smi() -> dict[str, str]:
    """Fields of nvidia-smi as nvidia_gpu_exporter spells them, without its prefix and unit."""
    return {field.replace(".", "_"): found for field, (found, _) in SPELLINGS.items() if "." in field}


def _exported(bare: str) -> Heading | None:
    """The metric of nvidia_gpu_exporter, whose values are in base units."""
    field = bare.removeprefix("nvidia_smi_")
    plainly = next((SPELLINGS[one] for one in SPELLINGS if "." in one and one.replace(".", "_") == field), None)
    if plainly is not None:  # without a unit: nvidia-smi's own, as the agents of CloudWatch and Telegraf write it
        return Heading(plainly[0], plainly[1], CATALOGUE[plainly[0]].unit)
    for ending in ("", "_clock_hz", "_watts", "_ratio", "_bytes"):
        found = _of_smi().get(field.removesuffix(ending)) if field.endswith(ending) else None
        if found is not None:
            return Heading(found, 1.0, CATALOGUE[found].unit)
    return Heading("gpu_performance_state", 1.0, CATALOGUE["gpu_performance_state"].unit) if field == "pstate" else None


@cache
def metric_of(name: str) -> Heading | None:
    """The metric that a column called `name` holds; None if the catalogue has none such.

    Examples
    --------
    >>> metric_of("dcgm_fi_dev_sm_clock")
    Heading(name='gpu_sm_clock_hertz', factor=1000000.0, unit='hertz')
    >>> metric_of("clocks.current.sm [MHz]").factor, metric_of("power.draw [mW]").factor, metric_of("loss")
    (1000000.0, 0.001, None)
    >>> metric_of("nvidia_smi_clocks_current_sm_clock_hz").name, metric_of("nvidia_smi_utilization_gpu_ratio").factor
    ('gpu_sm_clock_hertz', 1.0)
    """
    stripped = name.strip().strip('"')
    stripped = f"DCGM_FI_{FIELDS[stripped]}" if stripped in FIELDS else stripped
    exact = lookup(stripped)
    if exact is not None:
        return Heading(exact.name, exact.scale_of(stripped), exact.unit)
    bare = plain(stripped)
    alias = _lower().get(bare)
    said = UNITS.get(unit_of(stripped))
    if alias is not None and (metric := lookup(alias)) is not None:
        factor = said[1] if said is not None and said[0] == metric.unit else metric.scale_of(alias)
        return Heading(metric.name, factor, metric.unit)
    if bare.startswith("nvidia_smi_"):
        return _exported(bare)
    spelt = (bare, _SUFFIX.sub("", bare), _DOTS.sub("_", bare), bare.removeprefix("gpu."))
    found = next((SPELLINGS[one] for one in spelt if one in SPELLINGS), None)
    if found is None:
        return None
    metric = CATALOGUE[found[0]]
    factor = said[1] if said is not None and said[0] == metric.unit else found[1]
    return Heading(metric.name, factor, metric.unit, bare.startswith(("%", "system.cpu.", "system_cpu_")))


@cache
def block_of(name: str) -> Heading | None:
    """The metric that counts of one block of a GPU add up to; None if `name` is none of these.

    AMD's device-metrics-exporter and omnistat count the memory controller, SDMA, GFX and others apart.

    Examples
    --------
    >>> block_of("amd_gpu_ecc_uncorrect_sdma").name, block_of("rocm_ras_umc_correctable_count").name
    ('gpu_ecc_uncorrectable_volatile_count', 'gpu_ecc_correctable_volatile_count')
    >>> block_of("gpu_ecc_uncorrect_total") is None
    True
    """
    match = _BLOCK.fullmatch(name)
    if match is None or "total" in (match[2], match[3]):
        return None
    kind = "uncorrectable" if match[1] or match[4] else "correctable"
    return Heading(f"gpu_ecc_{kind}_volatile_count", 1.0, "count")


def known(name: str, words: tuple[str, ...]) -> bool:
    """Whether a column's name is one of `words`."""
    return any(form in words for form in forms(name))


def forms(name: str) -> tuple[str, ...]:
    """How a column's name may be listed: as it is, and with underscores for blanks.

    Examples
    --------
    >>> forms("GPU Index"), forms("Time (UTC+02:00)")
    (('gpu index', 'gpu_index'), ('time',))
    """
    bare = plain(name)
    if bare.startswith("time ("):  # Grafana names the zone
        return ("time",)
    return (bare, bare.replace(" ", "_")) if " " in bare else (bare,)


def duration_factor(name: str) -> float | None:
    """What a column's values are to be multiplied by to be seconds of a step; None if it holds none.

    Examples
    --------
    >>> duration_factor("train/step_time_ms"), duration_factor("perf/step_time"), duration_factor("loss")
    (0.001, 1.0, None)
    """
    bare = _last(name)
    unit = unit_of(name)
    if bare in _DURATIONS or _SUFFIX.sub("", bare) in _DURATIONS or _of_one_step(name):
        said = UNITS.get(unit)
        return said[1] if said is not None and said[0] == "seconds" else 1.0
    return None


def _of_one_step(name: str) -> bool:
    """Whether the words of a name say how long one step lasts, in whatever order: ``sec/step``, ``timing_s/step``."""
    bare = plain(name).split("|")[-1].rsplit(" - ", 1)[-1]
    words = set(_WORD.split(bare))
    if bare.startswith("time/") or "time_step" in bare or "time step" in bare:
        return False  # Composer's counts of batches; steps of an environment
    return bool(words & _ONE_STEP) and bool(words & _LASTS) and not words & _NO_STEP


def part_factor(name: str) -> tuple[str, float | None] | None:
    """Which part of a step a column holds, and what makes seconds of its values; None if it holds none.

    Without a unit in the name the factor is None: that of the step's whole duration.

    Examples
    --------
    >>> part_factor("compute_ms"), part_factor("timing/comm_time [us]"), part_factor("wait_s"), part_factor("compute")
    (('compute_s', 0.001), ('wait_s', 1e-06), ('wait_s', 1.0), None)
    >>> part_factor("Forward pass (ms)"), part_factor("dataloader_wait_s"), part_factor("GPU compute time")
    (('forward_s', 0.001), ('data_s', 1.0), ('compute_s', None))
    """
    bare = _last(name)
    match = _TIME.search(bare)
    unit = UNITS.get(unit_of(name)) or (("seconds", 1.0) if bare.endswith("_s") else None)
    part = _PARTS.get(bare[: match.start()]) if match is not None else None
    timed = bare.endswith("_time")
    if part is None:
        part, timed = _part_of_words(bare), bool(_LASTS.intersection(_WORD.split(bare)))
    if part is None or (unit is None and not timed) or (unit is not None and unit[0] != "seconds"):
        return None
    return part, None if unit is None else unit[1]


def _part_of_words(bare: str) -> str | None:
    """The part of a step that the words of a name tell, where none of them speaks of anything else."""
    words = set(_WORD.split(bare)) - _BESIDE
    both = bool(words & {"forward", "fwd"}) and bool(words & {"backward", "bwd"})
    found = "compute_s" if both and words <= _OWN.keys() else None
    for known in (_OWN, _OF_DATA):
        parts = {known[word] for word in words if word in known}
        found = found or (parts.pop() if len(parts) == 1 and words <= known.keys() else None)
    return found


def is_rate(name: str) -> bool:
    """Whether a column holds a throughput, which falls as steps become longer.

    Examples
    --------
    >>> is_rate("perf/tokens_per_second"), is_rate("throughput/device/batches_per_sec"), is_rate("loss")
    (True, True, False)
    """
    return _last(name) in _RATES


def _last(name: str) -> str:
    bare = plain(name).replace(" ", "_").replace("-", "_")
    if bare in _DURATIONS or bare in _RATES:
        return bare
    return bare.rsplit("/", 1)[-1].rsplit("_-_", 1)[-1].removeprefix("train_")


def nearest(names: list[str], most: int = 3) -> list[str]:
    """Names of the catalogue and of exporters that are spelled most like `names`."""
    from difflib import get_close_matches

    pool = [*CATALOGUE, *ALIASES, *SPELLINGS]
    found: list[str] = []
    for name in names[:20]:
        found += get_close_matches(plain(name), pool, n=1, cutoff=0.5)
    return list(dict.fromkeys(found))[:most]
