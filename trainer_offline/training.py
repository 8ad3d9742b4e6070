"""A whole training run: prepare, fit, judge, register; what `trainwarden train` and the trainer service do."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from detectors.models.bundle import ModelBundle
from detectors.models.members import VoteConfig
from trainer_offline.archive_files import TOPIC_FOLDERS
from trainer_offline.gate import GateConfig, gate
from trainer_offline.grids import PrepareConfig
from trainer_offline.prepare import prepare
from trainer_offline.register import register
from trainer_offline.registry import CHAMPION, Registry
from trainer_offline.serving import assemble
from trainer_offline.train import fit
from trainwarden.errors import DataError, DetectorError
from trainwarden.settings import Config

_PLAIN_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class TrainConfig(Config, frozen=True, kw_only=True):
    """Everything that decides what a training run makes of its data."""

    prepare: PrepareConfig = PrepareConfig()
    models: VoteConfig = msgspec.field(default_factory=VoteConfig)
    gate: GateConfig = GateConfig()


def train(
    data: Path,
    registry: Registry,
    config: TrainConfig,
    *,
    normal_until_s: float | None = None,
    keep_start: bool = False,
    seed: int = 0,
    promote: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Train on `data` (a recorded folder, a batch or an archive); the object of contracts 7.

    Raises
    ------
    DataError
        If nothing can be learnt, or the registry is away (before anything is worked out).
    """
    began_s = time.monotonic()
    champion, known = _champion(registry, tell)
    with recorded(data, tell) as folder:
        ready = prepare(
            folder, config.prepare, normal_until_s=normal_until_s, keep_start=keep_start, seed=seed, tell=tell
        )
    bundle = fit(ready, config.models, seed, lambda text, done, of: tell(f"[{done}/{of}] {text}"))
    tell(f"judging on {', '.join(ready.card.test_jobs)} ({ready.card.split})")
    results, tallies = gate(bundle, champion, ready.test, config.gate, seed, known)
    settings = {"seed": seed, "data": data.name, "normal_until_s": normal_until_s}
    run_id, made = register(registry, bundle, results, tallies, ready.card, settings, promote=promote, tell=tell)
    answers = []
    for one in made:
        result = results[one.detector]
        shown = {"passed": result.passed, "reasons": result.reasons, "metrics": result.metrics}
        answers.append({"detector": one.detector, "version": one.version, "aliases": list(one.aliases), "gate": shown})
    return {
        "run_id": run_id,
        "registry": registry.uri,
        "data": msgspec.to_builtins(ready.card),
        "models": answers,
        "wall_s": round(time.monotonic() - began_s, 3),
    }


@contextmanager
def recorded(data: Path, tell: Callable[[str], None] = lambda text: None) -> Iterator[Path]:
    """`data` as recorded folders; the jobs of an archive are exported first, with its annotations.

    Raises
    ------
    DataError
        If an archive holds no job with metrics.
    """
    if not any((data / topic).is_dir() for topic in TOPIC_FOLDERS):
        yield data
        return
    from trainer_offline import annotations
    from trainer_offline.archive_reader import export, jobs

    with tempfile.TemporaryDirectory(prefix="trainwarden-export-") as temporary:
        to = Path(temporary)
        names = [one.job for one in jobs(data)]
        if not names:
            raise DataError(f"archive '{data}' holds no job")
        for place, name in enumerate(names):
            tell(f"exporting {name}")
            export(data, name, to / (name if _PLAIN_NAME.fullmatch(name) else f"job-{place}"))
        said = data / annotations.FILE
        if said.is_file():
            (to / annotations.FILE).write_bytes(said.read_bytes())
        yield to


def _champion(registry: Registry, tell: Callable[[str], None]) -> tuple[ModelBundle | None, list[str]]:
    """Today's champions and the jobs they were trained on; None where there are none that can be compared with."""
    try:
        serving = registry.aliases(CHAMPION)
        if not serving:
            return None, []
        versions, bundle = assemble(registry, CHAMPION)
    except DetectorError as error:
        tell(f"no comparison with the champion: {error}")
        return None, []
    known = [
        one.tags.get("data_train_jobs", "") for one in registry.versions() if versions.get(one.detector) == one.version
    ]
    return bundle, [job for text in known for job in text.split(", ") if job]
