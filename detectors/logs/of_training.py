"""Whether logs tell of a training or of a machine at all: of any other text rules say nothing, neither well nor ill."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from trainwarden.detectors.logs.ends.endings import shipped_endings
from trainwarden.detectors.logs.loss_lines import goes_on
from trainwarden.log_shapes import by_shape, unmasked
from trainwarden.recorded.job import LogTable

# Progress bars and epochs, what kernels, daemons and schedulers write of a machine, and the lines that reports of
# devices become (`trainwarden.formats.verdicts`). Bounded: linear time.
_SAYS: Final = re.compile(
    r"^health check: |"
    r"(?:s/it|it/s)\b|(?i:\b(?:epoch|iteration|iter|global[_ ]step|step|batch)\b[^A-Za-z]{0,4}[0-9])|"
    r"\bkernel: |^\[ {0,8}[0-9]{1,9}\.[0-9]{6}\]|^\[[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}[0-9]{1,2} [0-9:]{8} [0-9]{4}\] |"
    r"\b(?:systemd|slurm(?:d|ctld|stepd)|kubelet|dockerd|containerd|nvidia-fabricmanager|nhc|raylet|gcs_server)\b|"
    r"\bNVRM: |^(?:Name|Events|Node|LAST SEEN|NAMESPACE|NAME): {0,40}|\b(?:Normal|Warning) {1,20}[A-Z][A-Za-z]{2,40} "
)
# Docker counts what it builds in the same word.
_BUILDS: Final = re.compile(r"^(?:#[0-9]{1,4} )?(?:[0-9.]{1,9} )?Step [0-9]{1,4}/[0-9]{1,4} : [A-Z]{3,12} ")
_MOST_CHARS: Final = 400


def tells_of_training(logs: Iterable[LogTable]) -> bool:
    """Whether any line shows a step, a loss, an end of a rank, or what a machine says of itself.

    Examples
    --------
    >>> import numpy as np
    >>> def log(line): return [LogTable("a.log", np.zeros(1), (None,), (None,), (line,))]
    >>> tells_of_training(log("step 7 loss 2.1")), tells_of_training(log("#15 exporting to image"))
    (True, False)
    """
    return any(_tells(line[:_MOST_CHARS]) for log in logs for line in log.lines)


def _find(line: str) -> bool:
    if _BUILDS.match(line):
        return False
    return bool(_SAYS.search(line)) or goes_on(line) or shipped_endings().read(line) is not None


_tells = by_shape(lambda shape: _find(unmasked(shape)))
