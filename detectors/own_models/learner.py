"""Learns models from a few minutes of one job, in a process of its own with little priority, time and memory.

It reads samples from its standard input and writes models to its output; nothing is left on a disk.
"""

from __future__ import annotations

import atexit
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final

import numpy as np

from trainwarden.detectors.job.packed import pack, unpack
from trainwarden.detectors.job.samples import Entity, FamilySamples, Floats
from trainwarden.detectors.metrics.bundle.bundle import ModelBundle, versions_of
from trainwarden.detectors.metrics.bundle.members import View, VoteConfig
from trainwarden.detectors.metrics.bundle.metric_vote import MetricVote
from trainwarden.detectors.metrics.bundle.preparation import PreparationConfig
from trainwarden.detectors.metrics.models.dtw import DtwConfig
from trainwarden.detectors.metrics.models.forecast import ForecastConfig
from trainwarden.detectors.metrics.models.kmeans import KMeansConfig
from trainwarden.detectors.metrics.models.lof import LofConfig
from trainwarden.detectors.metrics.models.nearest import NearestConfig
from trainwarden.detectors.metrics.models.neighbor_profile import NeighborProfileConfig
from trainwarden.detectors.metrics.vote import ENSEMBLE
from trainwarden.errors import DetectorError

Learn = Callable[[Sequence[FamilySamples]], "Future[ModelBundle]"]
CPU_S: Final = 60
MEMORY_BYTES: Final = 1 << 30
WALL_S: Final = 600.0  # on a machine without spare time it comes late or not at all
NICE: Final = 10
OWN: Final = "own-"
"""What versions of such models begin with."""
CONFIG: Final = VoteConfig(
    # Views, folds and lengths for half a minute of samples; references that 16,384 ranks are scored against in time.
    views={
        "zlength": View(), "metric_change": View(mean_rows=3, less_rows=12), "kmeans": View(mean_rows=5),
        "nearest": View(mean_rows=3), "pca": View(mean_rows=5), "lof": View(mean_rows=3),
    },
    # What entities of one job differ in stays in the references: there is no time for scales of their own.
    preparation=PreparationConfig(own_scale="never"),
    folds=2, dtw_samples=24, dtw=DtwConfig(least_ranks=3), lof=LofConfig(neighbors=10, reference_rows=256),
    nearest=NearestConfig(reference_rows=256), kmeans=KMeansConfig(clusters=8),
    neighbor_profile=NeighborProfileConfig(length=8, bags=5), forecast=ForecastConfig(mean_samples=3, lags=2),
)  # fmt: skip
_KIND: Final = "own_models"
# Imports, too, are for a core's spare time.
_CHILD: Final = f"import os; os.nice({NICE}); from trainwarden.detectors.own_models import learner; learner.main()"
_ALONE: Final[Mapping[str, str]] = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def learnt(samples: Sequence[FamilySamples]) -> ModelBundle:
    """Models of all families that have something to learn from.

    Raises
    ------
    DetectorError
        If there is none.
    """
    series: dict[str, list[tuple[Entity, Floats, Floats]]] = {}
    names: dict[str, tuple[str, ...]] = {}
    for one in samples:
        every_s = float(np.median(np.diff(one.times_s, axis=1)))
        # One time axis for all, so that entities of one family count as peers though their nodes' clocks are apart.
        times_s: Floats = max(every_s, 1e-3) * np.arange(one.times_s.shape[1], dtype=np.float64)
        series[one.family] = [(Entity(), times_s, values.T) for values in one.values]
        names[one.family] = one.names
    found = ModelBundle.fit(series, names, CONFIG, seed=0)
    return _own(found.votes, found.versions)


def to_bytes(bundle: ModelBundle) -> bytes:
    """Models as data: nothing that executes when it is read."""
    arrays = {
        f"{number}/{key}": array
        for number, vote in enumerate(bundle.votes.values())
        for key, array in vote.to_arrays().items()
    }
    return pack(_KIND, {"families": list(bundle.votes)}, arrays)


def from_bytes(kept: bytes) -> ModelBundle:
    """What `to_bytes` gave.

    Raises
    ------
    DetectorError
        If it is something else.
    """
    plain, arrays = unpack(_KIND, kept)
    votes: dict[str, MetricVote] = {}
    try:
        for number, family in enumerate(plain["families"]):
            prefix = f"{number}/"
            mine = {key[len(prefix) :]: array for key, array in arrays.items() if key.startswith(prefix)}
            votes[str(family)] = vote = MetricVote.from_arrays(mine)
            vote.score(np.zeros((vote.config.dtw.least_ranks, len(vote.preparation.names), vote.window_samples)))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DetectorError(f"a job's own models are damaged: {error}") from error
    return _own(votes, versions_of(votes))


def _own(votes: Mapping[str, MetricVote], versions: Mapping[str, str]) -> ModelBundle:
    """Half a minute is too little to judge them by, so all of them are provisional."""
    return ModelBundle(votes, {name: OWN + one for name, one in versions.items()}, frozenset({*versions, ENSEMBLE}))


class Learner:
    """Learns one job after the other beside the service."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._closed = False
        atexit.register(self.close)

    def learn(self, samples: Sequence[FamilySamples]) -> Future[ModelBundle]:
        """Begin to learn from `samples`; what comes of it, or a `DetectorError`, is in the future."""
        found: Future[ModelBundle] = Future()
        threading.Thread(target=self._carry_out, args=(packed(samples), found), name="own-models", daemon=True).start()
        return found

    def close(self) -> None:
        """Learn no more; whatever learns now is ended."""
        self._closed, child = True, self._child
        if child is not None:
            child.kill()

    def _carry_out(self, work: bytes, found: Future[ModelBundle]) -> None:
        try:
            with self._turn:
                answer = self._answer(work)
            found.set_result(from_bytes(answer))
        except (DetectorError, OSError, subprocess.SubprocessError) as error:
            found.set_exception(error if isinstance(error, DetectorError) else DetectorError(str(error)))

    def _answer(self, work: bytes) -> bytes:
        if self._closed:
            raise DetectorError("the service ends")
        command = [sys.executable, "-P", "-c", _CHILD]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env={**os.environ, **_ALONE}, stdin=pipe, stdout=pipe, stderr=pipe) as child:
            self._child = child
            try:
                answer, said = child.communicate(work, timeout=WALL_S)
            except subprocess.TimeoutExpired:
                child.kill()
                raise
            finally:
                self._child = None
        if child.returncode:
            words = said.decode("utf-8", "replace").strip().rpartition("\n")[2][:300]
            raise DetectorError(words or f"learning took too long, or was ended ({child.returncode})")
        return answer


def packed(samples: Sequence[FamilySamples]) -> bytes:
    """Samples for the learning process."""
    arrays = {f"{number}/values": one.values for number, one in enumerate(samples)}
    arrays |= {f"{number}/times_s": one.times_s for number, one in enumerate(samples)}
    return pack("samples", {"families": [[one.family, list(one.names)] for one in samples]}, arrays)


def unpacked(work: bytes) -> list[FamilySamples]:
    """What `packed` was given, but for who it is of."""
    plain, arrays = unpack("samples", work)
    out = []
    for number, (family, names) in enumerate(plain["families"]):
        values, times_s = arrays[f"{number}/values"], arrays[f"{number}/times_s"]
        rows = np.arange(len(values))
        out.append(FamilySamples(family, tuple(names), rows, (Entity(),) * len(values), (), values, times_s))
    return out


def main() -> None:
    """The process: bounded first, then at work."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S + 5))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        sys.stdout.buffer.write(to_bytes(learnt(unpacked(sys.stdin.buffer.read()))))
    except (DetectorError, MemoryError) as error:
        sys.exit(str(error) or "out of memory")
