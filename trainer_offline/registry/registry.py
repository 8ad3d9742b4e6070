"""Versions of models in MLflow: one registered model for each detector and one for the vote's calibration.

Written with `mlflow.pyfunc.log_model` and a loader module, never a pickled object: the UI shows signature, input
example and metrics, anybody with trainwarden installed can use it by `mlflow.pyfunc.load_model`, and an artifact is
arrays, JSON and checksums (`metrics.bundle.bundle`). We ourselves never load through MLflow: the files are fetched,
their manifest is compared with the checksum that the registry's database holds as a tag, the files with the manifest.

Aliases are the truth about who serves: ``champion`` serves, ``challenger`` is scored in its shadow. ``provisional``
serves with a smaller weight where there is no champion. A version without the tag ``gate`` = ``passed`` (or
``provisional``, under that alias) serves under no alias, whoever has set it.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from trainwarden.detectors.metrics.bundle.bundle import MANIFEST, ModelBundle
from trainwarden.errors import ConfigError, DetectorError
from trainwarden.trainer_offline.data.card import DataCard
from trainwarden.trainer_offline.registry.address import RegistryAway, asking, client_of, tracking_uri
from trainwarden.trainer_offline.registry.version import (
    CARD,
    CHALLENGER,
    CHAMPION,
    PREFIX,
    PROVISIONAL,
    RETRAIN,
    ROLLED_BACK,
    SINCE,
    Version,
    detector_of,
    registered_name,
    version_of,
)

LOST: Final = "its artifact is gone or cannot be fetched"
_ABSENT: Final = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")


@dataclass(slots=True)
class Registry:
    """What is asked of and told to one registry. Every method raises `RegistryAway` where it cannot be reached."""

    uri: str
    create: bool = False
    _client: Any = field(default=None, repr=False)

    @classmethod
    def at(cls, registry: str | None, *, create: bool = False) -> Registry:
        """The registry of a URI or folder (see `tracking_uri`)."""
        return cls(tracking_uri(registry), create)

    @property
    def client(self) -> Any:
        """MLflow's own client."""
        if self._client is None:
            self._client = client_of(self.uri, create=self.create)
        return self._client

    # -- asking ----------------------------------------------------------------------------------------------

    def models(self) -> dict[str, Any]:
        """MLflow's registered models of ours, by detector, with aliases and tags."""
        client = self.client
        with asking(self.uri):
            found: dict[str, Any] = {}
            token = None
            while True:
                page = client.search_registered_models(filter_string=f"name LIKE '{PREFIX}%'", page_token=token)
                for one in page:
                    # The search leaves aliases out on some servers.
                    found[detector_of(one.name)] = one if one.aliases else client.get_registered_model(one.name)
                token = page.token
                if not token:
                    return found

    def aliases(self, alias: str) -> dict[str, str]:
        """Version by detector of those that have `alias`."""
        return {name: str(one.aliases[alias]) for name, one in self.models().items() if alias in one.aliases}

    def versions(self, detector: str | None = None) -> list[Version]:
        """All versions, newest first within a detector.

        Raises
        ------
        ConfigError
            If the registry has no such detector.
        """
        found: list[Version] = []
        models = self.models()
        if detector is not None and detector not in models:
            raise ConfigError(self._unknown(detector, models))
        for name, model in sorted(models.items()):
            if detector in (None, name):
                found.extend(sorted(self._of(name, model), key=lambda one: -int(one.version)))
        return found

    def version(self, detector: str, version: str) -> Version:
        """One version.

        Raises
        ------
        ConfigError
            If there is none, or no such detector.
        """
        from mlflow.exceptions import MlflowException

        client, name = self.client, registered_name(detector)
        try:
            with asking(self.uri):
                model, one = client.get_registered_model(name), client.get_model_version(name, str(version))
        except RegistryAway as error:
            cause = error.__cause__
            if isinstance(cause, MlflowException) and cause.error_code in _ABSENT:
                if detector not in (models := self.models()):
                    raise ConfigError(self._unknown(detector, models)) from error
                raise ConfigError(f"there is no version {version} of {detector} in registry '{self.uri}'") from error
            raise
        return version_of(detector, model, one)

    def fetch(self, one: Version) -> ModelBundle:
        """A version's artifact, every checksum verified.

        Raises
        ------
        DetectorError
            If it has not passed the gate, or is not what was registered.
        """
        called = f"version {one.version} of {one.detector}"
        if not (one.passed or one.provisional):
            raise DetectorError(f"{called} is refused: it has not passed the gate")
        with tempfile.TemporaryDirectory(prefix="trainwarden-model-") as temporary:
            try:
                folder = self._downloaded(one, Path(temporary))
                manifests = sorted(folder.rglob(MANIFEST))
            except RegistryAway as error:
                self.models()  # raises by itself where the registry is away, and not the artifact alone
                raise DetectorError(f"{called} is refused: {LOST}") from error
            if not manifests:
                raise DetectorError(f"{called} is refused: {LOST}")
            if len(manifests) != 1:
                raise DetectorError(f"{called} is refused: its artifact holds {len(manifests)} manifests")
            if hashlib.sha256(manifests[0].read_bytes()).hexdigest() != one.tags.get("manifest_sha256"):
                raise DetectorError(f"{called} is refused: its manifest is not the one that was registered")
            try:
                return ModelBundle.load(manifests[0].parent)
            except DetectorError as error:
                said = str(error).replace(f"{folder}/", "")  # a temporary folder
                raise DetectorError(f"{called} is refused: {said}") from error

    def card(self, one: Version) -> DataCard | None:
        """The data card of a version's run; None where it is gone, or not the one that the version was made with."""
        if not one.run_id:
            return None
        with tempfile.TemporaryDirectory(prefix="trainwarden-card-") as temporary:
            try:
                with asking(self.uri):
                    path = self.client.download_artifacts(one.run_id, CARD, temporary)
                    found = msgspec.json.decode(Path(path).read_bytes(), type=DataCard)
            except (RegistryAway, msgspec.MsgspecError):
                return None
        return found if found.hash == one.tags.get("data_hash") else None

    # -- telling ---------------------------------------------------------------------------------------------

    def promote(self, detector: str, version: str) -> Version:
        """Make a version champion.

        Raises
        ------
        ConfigError
            If there is no such version, or it has not passed the gate.
        """
        one = self.version(detector, version)
        if not one.passed:
            why = " (provisional: there was too little to judge it by)" if one.provisional else ""
            raise ConfigError(f"version {version} of {detector} has not passed the gate{why} and cannot be promoted")
        self._crown(one)
        return self.version(detector, version)

    def rollback(self, detector: str) -> Version:
        """Make the champion before this one champion again.

        Raises
        ------
        ConfigError
            If there is no champion, or none before it.
        """
        versions = self.versions(detector)
        now = next((one for one in versions if CHAMPION in one.aliases), None)
        if now is None:
            raise ConfigError(f"{detector} has no champion to roll back from in registry '{self.uri}'")
        since_s = float(now.tags.get(SINCE, "inf"))
        before = [
            one for one in versions
            if one.version != now.version and one.passed and ROLLED_BACK not in one.tags
            and float(one.tags.get(SINCE, "inf")) < since_s
        ]  # fmt: skip
        if not before:
            raise ConfigError(f"{detector} has had no champion before version {now.version}")
        target = max(before, key=lambda one: float(one.tags[SINCE]))
        with asking(self.uri):
            self.client.set_model_version_tag(registered_name(detector), now.version, ROLLED_BACK, f"{time.time():.3f}")
            self.client.set_registered_model_alias(registered_name(detector), CHAMPION, target.version)
        return self.version(detector, target.version)

    def challenge(self, one: Version) -> None:
        """Make a version the challenger."""
        with asking(self.uri):
            self.client.set_registered_model_alias(registered_name(one.detector), CHALLENGER, one.version)

    def serve_provisionally(self, one: Version) -> None:
        """Have a version serve with a smaller weight for as long as there is no champion."""
        with asking(self.uri):
            self.client.set_registered_model_alias(registered_name(one.detector), PROVISIONAL, one.version)

    def settle(self, one: Version, passed: bool, reasons: str) -> None:
        """What more data have shown of a provisional version: it is champion from now on, or serves no more."""
        name = registered_name(one.detector)
        with asking(self.uri):
            if not passed:  # first: whoever asks in between would be refused all models for one that is rejected
                self.client.delete_registered_model_alias(name, PROVISIONAL)
            self.client.set_model_version_tag(name, one.version, "gate_reasons", reasons)
            self.client.set_model_version_tag(name, one.version, "gate", "passed" if passed else "rejected")
        if passed:
            self._crown(one)

    def note_champion(self, one: Version) -> None:
        """Remember since when a version that somebody made champion in the UI is one, for roll-backs."""
        if SINCE not in one.tags:
            with asking(self.uri):
                self.client.set_model_version_tag(
                    registered_name(one.detector), one.version, SINCE, f"{time.time():.3f}"
                )

    def asked_to_retrain(self, word: str = "requested") -> list[str]:
        """Detectors whose registered model carries the tag ``retrain`` = `word`."""
        return [name for name, one in self.models().items() if one.tags.get(RETRAIN) == word]

    def answer_retrain(self, detector: str, text: str) -> None:
        """Replace the request by what became of it."""
        with asking(self.uri):
            self.client.set_registered_model_tag(registered_name(detector), RETRAIN, text)

    # -- internals -------------------------------------------------------------------------------------------

    def _crown(self, one: Version) -> None:
        name = registered_name(one.detector)
        with asking(self.uri):
            client = self.client
            client.set_model_version_tag(name, one.version, SINCE, f"{time.time():.3f}")
            if ROLLED_BACK in one.tags:
                client.delete_model_version_tag(name, one.version, ROLLED_BACK)
            client.set_registered_model_alias(name, CHAMPION, one.version)
            client.delete_registered_model_alias(name, PROVISIONAL)  # no error where nobody has it
            if CHALLENGER in one.aliases:
                client.delete_registered_model_alias(name, CHALLENGER)

    def _unknown(self, detector: str, models: Mapping[str, Any]) -> str:
        have = f"it has {', '.join(sorted(models))}" if models else "it has none yet: run trainwarden train"
        return f"there is no detector '{detector}' in registry '{self.uri}'; {have}"

    def _of(self, detector: str, model: Any) -> Iterator[Version]:
        with asking(self.uri):
            token = None
            while True:
                page = self.client.search_model_versions(f"name='{model.name}'", page_token=token)
                for one in page:
                    yield version_of(detector, model, one)
                token = page.token
                if not token:
                    return

    def _downloaded(self, one: Version, to: Path) -> Path:
        with asking(self.uri):
            from mlflow.artifacts import download_artifacts

            # Not by models:/name/version, which MLflow would look up in its process-wide registry.
            uri = self.client.get_model_version_download_uri(registered_name(one.detector), one.version)
            return Path(download_artifacts(artifact_uri=uri, dst_path=str(to), tracking_uri=self.uri))
