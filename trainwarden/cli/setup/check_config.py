"""`trainwarden check-config`: are the words of a settings file right, its plug-ins' parts included?"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from trainwarden import plugins
from trainwarden.bus.address import place_of
from trainwarden.cli.setup import named_files
from trainwarden.cli.setup.mistakes import Mistake, Path_, line_of, mistakes
from trainwarden.cli.setup.named_files import file_at, said_by
from trainwarden.cli.shared.output import Voice
from trainwarden.commands.keys import signer_of
from trainwarden.commands.trust import Trust, unsigned_text
from trainwarden.errors import ConfigError
from trainwarden.network.host_port import host_and_port
from trainwarden.settings import Settings, parse, read

MISTAKEN: Final = 2


def check_config(path: Annotated[Path, typer.Argument(metavar="FILE")]) -> int:
    """One clear sentence per mistake in a settings file.

    Every mistake is named with its line; exit code 2 if there is one.

    Example: trainwarden check-config trainwarden.toml
    """
    raw, text = read(path)
    found, left = mistakes(Settings, raw)
    settings = parse(Settings, left, str(path))
    for table in _tables(settings):
        found += table
    voice = Voice(stream=sys.stderr)
    for one in found:
        line = line_of(text, one.place)
        where = f"{path}:{line}" if line else str(path)
        voice.say(f"trainwarden: {where}: {one.sentence}")
    if not found:
        Voice().say(f"{path}: fine")
    if (unsigned := unsigned_text(settings)) is not None:
        voice.say(f"trainwarden: {path}: note: commands are {unsigned}")
    return MISTAKEN if found else 0


def _tables(settings: Settings) -> Iterator[list[Mistake]]:
    """Mistakes in the tables whose keys only plug-ins and single rooms know."""
    from trainwarden.actions.remedies.policy import PolicyConfig, Rules
    from trainwarden.dashboards.notices.targets import NoticeSettings, targets_of
    from trainwarden.detectors.configured_detectors import rule
    from trainwarden.detectors.verdict.rule import EnsembleConfig
    from trainwarden.trainer_offline.service.train import TrainConfig

    yield said_by(("bus",), lambda: place_of(settings.bus))
    yield said_by(("serve", "listen"), lambda: host_and_port(settings.serve.listen, "serve.listen", least_port=0))
    yield from _plugins(settings)
    for raw in settings.serve.notices:
        yield _table(NoticeSettings, raw, ("serve", "notices"), partial(targets_of, [raw]))
    engine, detection, trainer = settings.engine, settings.detection, settings.trainer
    how = {"prepare": trainer.prepare, "models": trainer.models, "gate": trainer.gate}
    yield _kafka(settings.kafka)
    yield _table(TrainConfig, how, ("trainer",))
    yield _table(EnsembleConfig, detection.ensemble, ("detection", "ensemble"), lambda: rule(detection))
    yield _table(PolicyConfig, engine.policy, ("engine", "policy"), lambda: Rules.of(engine))
    yield from _files(settings)


def _files(settings: Settings) -> Iterator[list[Mistake]]:
    """Mistakes in the files that settings name."""
    commands, web = settings.commands, settings.metrics_web_config
    yield list(named_files.of_serve(settings.serve))
    yield list(named_files.of_peers(msgspec.structs.asdict(settings.launch), ("launch",)))
    yield file_at(("metrics_web_config",), web, lambda: named_files.check_web_config(Path(web or "")))
    yield file_at(("commands", "key"), commands.key, lambda: signer_of(commands))
    yield file_at(("commands", "trusted"), commands.trusted, lambda: Trust.of(commands.trusted))


def _kafka(raw: dict[str, Any]) -> list[Mistake]:
    from trainwarden.bus.kafka.client import KafkaConfig, check

    found = _table(KafkaConfig, raw, ("kafka",)) or list(named_files.of_kafka(raw, ("kafka",)))
    return found or _table(KafkaConfig, raw, ("kafka",), lambda: check(parse(KafkaConfig, raw, "kafka")))


def _plugins(settings: Settings) -> Iterator[list[Mistake]]:
    """Mistakes in what is said of single plug-ins."""
    from trainwarden import collectors, detectors
    from trainwarden.actions import launchers

    said: tuple[tuple[Any, dict[str, Any], Path_, bool], ...] = (
        (collectors, dict(settings.agent.collectors), ("agent", "collectors"), True),
        (detectors, dict(settings.detection.detectors), ("detection", "detectors"), True),
        (launchers, {settings.engine.launcher: settings.engine.launcher_settings}, ("engine", "launcher"), False),
    )
    for package, raws, at, named in said:
        for name, raw in raws.items():
            place = (*at, name) if named else at
            try:
                plugin = plugins.load(package.CATALOG, package.ENTRY_POINTS, name)
            except ConfigError as error:
                yield [Mistake(place, str(error))]
                continue
            words = {} if isinstance(raw, bool) else raw
            # A detector is made of its settings alone, and reads the files that they name.
            whole = partial(_made, plugin, words, ".".join(place)) if package is detectors else None
            found = _table(plugin.Config, words, place if named else _LAUNCHER_SETTINGS, whole)
            yield found
            if package is launchers and not found:
                yield list(named_files.of_launcher(words, _LAUNCHER_SETTINGS))


def _made(plugin: type[Any], words: dict[str, Any], where: str) -> object:
    return plugin(plugins.configure(plugin, words, where))


_LAUNCHER_SETTINGS: Final = ("engine", "launcher_settings")


def _table(kind: type[Any], raw: dict[str, Any], at: Path_, whole: Callable[[], object] | None = None) -> list[Mistake]:
    """Mistakes of one table; once its keys are right, what `whole` says of all of it."""
    found = [Mistake(one.place, f"{'.'.join(at)}: {one.sentence}") for one in mistakes(kind, raw, at)[0]]
    if not found and whole is not None:
        try:
            whole()
        except ConfigError as error:
            found = [Mistake(_named(str(error), at), str(error))]
    return found


def _named(sentence: str, at: Path_) -> Path_:
    """The place that a sentence begins with, as ours do; else that of the table."""
    words = tuple(sentence.partition(":")[0].split("."))
    return words if words[:1] == at[:1] else at
