"""Files that are known and say nothing of a training run: what each is, and what to give in its place."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

PLAIN: Final = "plain text"  # what a text is read as of which no format is known
_LOOKED_AT: Final = 4_000  # characters
_PORTS: Final = "give `ethtool -S`, `ibstat` or `perfquery`, again and again"
_HOST: Final = "give node_exporter's text or telegraf's lines of the same host"
_STUCK: Final = "give flight-recorder dumps of all ranks, `ncclras -v` or the log"
_WHOLE: Final = ("a report of pytest", "the table of PyTorch's profiler", "results of nccl-tests")
_PODS: Final = "an answer of `kubectl get pods`"
_GPUS: Final = "give `dcgmi dmon`, dcgm-exporter's text or `nvidia-smi -q -l`"


class _Known(NamedTuple):
    pattern: re.Pattern[str]
    what: str
    remedy: str

    @property
    def is_answer(self) -> bool:
        """Whether it is a command's answer, behind which a terminal's text may go on: no whole file of its kind."""
        return r"\A" not in self.pattern.pattern and not self.what.startswith(_WHOLE)


# Each pattern is bounded and stands at the start of a line: linear time. Sources: the programs' own output.
_KNOWN: Final = tuple(
    _Known(re.compile(pattern, re.MULTILINE), what, remedy)
    for pattern, what, remedy in (
        (r"^#\s{1,40}size\s{1,40}count[ ()a-z]{0,40}\s{1,40}type\s",
         "results of nccl-tests, a benchmark: bandwidths and wrong values of test buffers",
         "give the training's own record"),
        (r"^\s{0,8}(?:\x1b\[[0-9;]{1,8}m)?\s{0,4}GPU0\s[^\n]{0,400}CPU Affinity",
         "the matrix of `nvidia-smi topo -m`, which holds no measurement", _GPUS),
        (r'\A\s{0,40}\{[\s\S]{0,3900}?"Health Monitor Report"', "the JSON of `dcgmi health`",
         "give its text: `dcgmi health -c` without `-j`"),
        (r"^\|? ?(?:GPU ID +\| Device Information|GROUPS +\||List Modules|Module ID +\||Field Groups)",
         "an answer of `dcgmi discovery`, `group` or `modules`, which holds no measurement", _GPUS),
        (r"^Linux [0-9]\S{1,80} \([^)\n]{1,100}\)\s{1,8}[0-9][0-9/.-]{5,9}\s{1,8}_\S{1,20}_",
         "a report of sar, iostat, mpstat or pidstat", _HOST),
        (r"^procs -{2,40}memory|^disk-? -{2,40}reads|^\s{0,4}r\s{1,4}b\s{1,8}swpd\s", "a report of vmstat", _HOST),
        (r"^ATOP - ", "a report of atop", _HOST),
        (r"^sdiag output at", "an answer of Slurm's `sdiag`, about its controller", "give `sacct -P` or `sinfo`"),
        (r"^Settings for [^\n:]{1,40}:$", "the settings of a port (`ethtool DEVICE`), cut short", _PORTS),
        (r"^\S{1,40}: flags=[0-9]{1,8}<|^[0-9]{1,5}: \S{1,60}: <[A-Z0-9_,-]{2,200}> mtu ",
         "an answer of `ifconfig` or `ip link`", _PORTS),
        (r"^(?:CA|SW|Switch)\s{1,8}[0-9]{1,6}\s{1,8}[0-9]{1,4} 0x[0-9a-f]{16}\s|^(?:CA|Switch): 0x[0-9a-f]{16} ",
         "a map of the fabric (`ibnetdiscover`)", "give `iblinkinfo`, `ibqueryerrors` or `ibdiagnet2.pm`"),
        (r"^GPU [0-9]{1,3}: [^\n]{1,80} \(UUID: ", "the list of `nvidia-smi -L`", _GPUS),
        (r"^pid, process_name, |^\S{0,20},? ?gpu_uuid, pid, ",
         "the processes of `nvidia-smi --query-compute-apps`", _GPUS),
        (r"\A(?![\s\S]{0,4000}?CUDA(?:_EXCEPTION_[0-9]| Exception: ))[\s\S]{0,4000}?"
         r"^(?:Thread [0-9]{1,6} \(Thread 0x[0-9a-f]{1,16}|\[New LWP [0-9]|#0  0x[0-9a-f]{8,16} in )",
         "stacks of one process (gdb)", _STUCK),
        (r'\A\s{0,40}\{\s{0,40}"runs?"\s{0,4}:\s{0,4}\[?\s{0,40}\{\s{0,40}"(?:info|data|inputs|outputs)"\s{0,4}:',
         "an answer of MLflow about runs, which has the last value of each metric alone",
         "give `metrics/get-history` of each metric, or mlflow.db"),
        (r"^={3,200} test session starts ={3,200}$",
         "a report of pytest, whose tests raise and log errors on purpose", "give the log of a training run"),
        (r"(?i)\A\s{0,40}<(?:!doctype html|html\b)", "a web page, most often the one that asks to sign in",
         "download the file itself"),
        (r"\APK\x03\x04", "a zip archive", "unpack it and name the folder"),
        (r"\A%PDF-|\A\x89PNG|\A\xff\xd8\xff", "a document or picture", "give the numbers behind it"),
        (r"^NAME\s{1,200}READY\s{1,20}STATUS\s", _PODS,
         "give `kubectl get events`, `kubectl describe pod` or the pods' logs"),
    )
)  # fmt: skip


def tells_of_failures(why: str) -> bool:
    """Whether a file that `recognised` names may hold lines that tell of a failure all the same."""
    return why.startswith(_PODS)


def recognised(head: str) -> str | None:
    """What a file is that begins with `head`, and what to give in its place; None where it is none of these.

    Examples
    --------
    >>> recognised("Settings for eth0:\\n\\tSpeed: 1000Mb/s\\n")[:39]
    'the settings of a port (`ethtool DEVICE'
    >>> recognised("step 1 loss 2.0\\n")
    """
    found = _known(head)
    return None if found is None else f"{found.what}; {found.remedy}"


def is_answer(head: str) -> bool:
    """Whether a text begins with a command's answer, as people paste it before the log that they mean.

    Examples
    --------
    >>> is_answer("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\\nstep 1 loss 2.0\\n"), is_answer("step 1 loss 2.0")
    (True, False)
    """
    found = _known(head)
    return found is not None and found.is_answer


def _known(head: str) -> _Known | None:
    start = head[:_LOOKED_AT].replace("\r\n", "\n")
    return next((one for one in _KNOWN if one.pattern.search(start)), None)
