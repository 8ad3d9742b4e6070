"""All trained votes of a cluster, by family of entities, and how they are kept: arrays, JSON and checksums."""

from __future__ import annotations

import hashlib
import io
import re
import zipfile
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Self

import msgspec
import numpy as np
import numpy.typing as npt

from trainwarden.detectors.job.samples import Entity
from trainwarden.detectors.metrics.bundle.members import VoteConfig, by_name
from trainwarden.detectors.metrics.bundle.metric_vote import MetricVote
from trainwarden.detectors.metrics.bundle.sampling_interval import SamplingInterval, smallest_steps
from trainwarden.detectors.metrics.models.rows import Floats
from trainwarden.errors import DetectorError
from trainwarden.state import save_json

Series = tuple[Entity, Floats, Floats]

MANIFEST: Final = "bundle.json"
FORMAT: Final = 2
READ: Final = (1, 2)  # 1 knows no scales of an entity's own: all share that of training
MAX_FILE_BYTES: Final = 1 << 30
MAX_ARRAYS: Final = 1_000  # of one vote; eight members need about sixty
_FILE_NAME: Final = re.compile(r"family-[0-9]{1,4}\.npz")


class _File(msgspec.Struct, forbid_unknown_fields=True):
    family: str
    file: str
    bytes: int
    sha256: str


class _Manifest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    format: int
    versions: dict[str, str]
    files: list[_File]
    provisional: list[str] = []
    weights: dict[str, dict[str, Annotated[float, msgspec.Meta(ge=0.0, le=10.0)]]] = {}


@dataclass(frozen=True, slots=True)
class ModelBundle:
    """Votes by family, and the version of each detector's models; those that are `provisional` weigh less.

    `weights` has what the votes of a detector weigh about a family of entities (detector, then family), as the gate has
    measured it; what is not in it weighs what the detector's role says.

    Examples
    --------
    >>> import tempfile
    >>> values = np.random.default_rng(0).normal(size=(300, 2))
    >>> config = VoteConfig(members={"pca": 1.0, "kmeans": 1.0})
    >>> series = {"gpu": [(Entity("n0", "GPU-0"), np.arange(300.0), values)]}
    >>> bundle = ModelBundle.fit(series, {"gpu": ("power", "clock")}, config, seed=0)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bundle.save(Path(folder))
    ...     ModelBundle.load(Path(folder)).versions == bundle.versions
    True
    """

    votes: Mapping[str, MetricVote]
    versions: Mapping[str, str] = field(default_factory=dict)
    provisional: frozenset[str] = frozenset()
    weights: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def fit(
        cls,
        series_by_family: Mapping[str, Sequence[Series]],
        names_by_family: Mapping[str, Sequence[str]],
        config: VoteConfig,
        seed: int,
        owners_by_family: Mapping[str, Sequence[Hashable]] | None = None,
    ) -> Self:
        """Learn from normal series: for each family a list of (entity, times ``[t]``, values ``[t, d]``), by time.

        Entities that share all their times are taken for peers, where there are enough of them. `owners_by_family` says
        which series are of one entity of one job; by default each is of another. A family from which nothing can be
        learnt is left out if another can be.

        Raises
        ------
        DetectorError
            If there is no family to learn from; the message says why of each.
        """
        votes: dict[str, MetricVote] = {}
        why: list[str] = []
        for family, series in series_by_family.items():
            peers = _peers([times for _, times, _ in series], config.dtw.least_ranks)
            arrays = [values for _, _, values in series]
            pace = SamplingInterval.of(one[~np.isnan(values).all(axis=1)] for _, one, values in series)
            try:
                owners = None if owners_by_family is None else owners_by_family[family]
                names = names_by_family[family]
                votes[family] = MetricVote.fit(
                    arrays, names, config, seed, peers=peers, owners=owners, smallest=smallest_steps(names, pace)
                )
            except DetectorError as error:
                why.append(f"{family or 'rows without device'}: {error}")
                continue
            votes[family].pace = pace
        if not votes:
            raise DetectorError(f"nothing to learn from: {'; '.join(why) or 'there are no metrics'}")
        return cls(votes, versions_of(votes))

    def with_versions(self, versions: Mapping[str, str]) -> Self:
        """The same models under the versions that a registry has given them."""
        return replace(self, versions={**self.versions, **versions})

    @property
    def members(self) -> dict[str, float]:
        """What each model weighs in the mean of all, in the family where that is most."""
        found: dict[str, float] = {}
        for vote in self.votes.values():
            for name in vote.models:
                found[name] = max(found.get(name, 0.0), by_name(vote.config.members).get(name, 0.0))
        return found

    def save(self, folder: Path) -> None:
        """Write one npz for each family, then the manifest, which makes them valid."""
        folder.mkdir(parents=True, exist_ok=True)
        files: list[_File] = []
        for number, (family, vote) in enumerate(sorted(self.votes.items())):
            file = io.BytesIO()
            np.savez_compressed(file, allow_pickle=False, **vote.to_arrays())
            content, name = file.getvalue(), f"family-{number}.npz"
            (folder / name).write_bytes(content)
            files.append(_File(family, name, len(content), hashlib.sha256(content).hexdigest()))
        weights = {name: dict(by_family) for name, by_family in self.weights.items()}
        manifest = _Manifest(FORMAT, dict(self.versions), files, sorted(self.provisional), weights)
        save_json(folder / MANIFEST, manifest)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """What `save` wrote. Nothing in it is executed, and nothing is used that the manifest's checksums do not cover.

        Raises
        ------
        DetectorError
            If a file is missing, damaged, cut short or not what was saved.
        """
        try:
            manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=_Manifest)
        except OSError as error:
            raise DetectorError(f"{folder} holds no models: {error.strerror} ({MANIFEST})") from error
        except msgspec.MsgspecError as error:
            raise DetectorError(f"{folder / MANIFEST} is damaged: {error}") from error
        if manifest.format not in READ:
            raise DetectorError(
                f"{folder / MANIFEST} has format {manifest.format}, only {READ[0]} to {READ[-1]} are understood"
            )
        votes = {one.family: _read(folder, one) for one in manifest.files}
        return cls(votes, manifest.versions, frozenset(manifest.provisional), manifest.weights)


def versions_of(votes: Mapping[str, MetricVote]) -> dict[str, str]:
    """A version for each detector that is the same whenever its models are: the start of a hash of their arrays."""
    digests: dict[str, Any] = {}
    for family, vote in sorted(votes.items()):
        shared = _digest({f"preparation/{key}": value for key, value in vote.preparation.to_arrays().items()})
        for name, model in vote.models.items():
            digest = digests.setdefault(name, hashlib.sha256())
            state = _digest({**model.to_arrays(), **vote.calibrations[name].to_arrays()})
            digest.update(f"{family}\n{shared}\n{state}\n".encode())
    return {name: digest.hexdigest()[:12] for name, digest in digests.items()}


def _digest(arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for key, value in sorted(arrays.items()):
        digest.update(f"{key} {value.dtype.str} {value.shape}\n".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def _peers(times: Sequence[Floats], least: int) -> list[int]:
    """Places of the largest set of series with the same times, if it has `least` of them."""
    alike: dict[bytes, list[int]] = {}
    for place, one in enumerate(times):
        alike.setdefault(np.ascontiguousarray(one, dtype=np.float64).tobytes(), []).append(place)
    largest = max(alike.values(), key=len, default=[])
    return largest if len(largest) >= least else []


def _read(folder: Path, one: _File) -> MetricVote:
    path = folder / one.file
    if not _FILE_NAME.fullmatch(one.file) or not 0 < one.bytes <= MAX_FILE_BYTES:
        raise DetectorError(f"{folder / MANIFEST} is damaged: {one.file!r} is no file of a bundle")
    try:
        with path.open("rb") as file:
            content = file.read(one.bytes + 1)
    except OSError as error:
        raise DetectorError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) != one.bytes or hashlib.sha256(content).hexdigest() != one.sha256:
        raise DetectorError(f"{path} is damaged: its checksum is not that of the manifest")
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as packed:
            sizes = [entry.file_size for entry in packed.infolist()]
        if len(sizes) > MAX_ARRAYS or sum(sizes) > MAX_FILE_BYTES:
            raise DetectorError(f"{path} is damaged: {len(sizes)} arrays of {sum(sizes)} bytes")
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (zipfile.BadZipFile, ValueError, OSError, EOFError, KeyError) as error:
        raise DetectorError(f"{path} is damaged: {error}") from error
    vote = MetricVote.from_arrays(arrays)
    _tried(path, vote)
    return vote


def _tried(path: Path, vote: MetricVote) -> None:
    """Score one sample, so that models of other metrics than the preparation's are refused now, not in service."""
    ranks = vote.config.dtw.least_ranks
    zeros = np.zeros((ranks, len(vote.preparation.names), vote.window_samples))
    try:
        vote.score(zeros)
    except (ValueError, IndexError, TypeError) as error:
        raise DetectorError(f"{path} is damaged: its models do not fit its metrics ({error})") from error
