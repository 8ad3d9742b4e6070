"""Words from the command line: signed by a key, told where they would not count, shown where they did not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.cli.ask.actions import actions
from trainwarden.cli.ask.fleet.cordon import cordon
from trainwarden.cli.ask.fleet.nodes import nodes
from trainwarden.cli.ask.fleet.set_healthy import set_healthy
from trainwarden.cli.ask.fleet.uncordon import uncordon
from trainwarden.cli.ask.silences import silences
from trainwarden.cli.setup.check_config import check_config
from trainwarden.cli.setup.key import key
from trainwarden.commands.trust import Trust
from trainwarden.errors import ConfigError
from trainwarden.records import CommandRecord, EventRecord
from trainwarden.topics import COMMANDS, EVENTS

UNSIGNED = CommandRecord(id="c", job="*", at_s=1.0, kind="stop", by="eve\x1b[2J")


class World:
    """An embedded bus, keys of ann (stop) and bob (act), and settings that trust both."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bus = folder, f"embedded:{folder / 'bus.db'}"
        self.config = folder / "t.toml"
        EmbeddedBus(str(folder / "bus.db")).close()
        for name, may in (("ann", "stop"), ("bob", "act")):
            key("make", name, file=folder / name, may=may, json=str(folder / f"{name}.json"))
        lines = [json.loads((folder / f"{name}.json").read_text())["line"] for name in ("ann", "bob")]
        (folder / "trusted").write_text("\n".join(lines))
        self.config.write_text(f'bus = "{self.bus}"\n[commands]\ntrusted = "{folder / "trusted"}"\n')

    def put(self, *records: CommandRecord) -> None:
        bus = EmbeddedBus(self.bus.partition(":")[2])
        for record in records:
            bus.publish(COMMANDS, record.job, record)
        bus.close()

    def on_bus(self) -> list[tuple[str, bool]]:
        """What was said by whom, and whether it counts."""
        bus, trust = EmbeddedBus(self.bus.partition(":")[2]), Trust.of(str(self.folder / "trusted"))
        told: list[tuple[str, bool]] = []
        for message in bus.read(COMMANDS):
            assert isinstance(message.record, CommandRecord)
            told.append((message.record.by, trust.refusal(message) is None))
        bus.close()
        return told


@pytest.fixture
def world(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> World:
    made = World(tmp_path)
    capsys.readouterr()
    return made


def listed(world: World, capsys: pytest.CaptureFixture[str], config: Path | None) -> tuple[str, Any]:
    capsys.readouterr()
    assert actions("list", bus=world.bus, config=config, json=str(world.folder / "said.json")) == 0
    return capsys.readouterr().out, json.loads((world.folder / "said.json").read_text())["words"]


def test_each_says_what_the_key_may_and_is_told_before_what_it_may_not(world: World) -> None:
    config, ann, bob = world.config, world.folder / "ann", world.folder / "bob"
    assert actions("stop", config=config, key=ann) == 0
    assert silences("add", node="n7", lasts="1h", config=config, key=bob) == 0
    assert set_healthy("n7", config=config, key=bob) == 0
    for word in (cordon, uncordon):
        assert word("n7", job="j", wait=0.0, config=config, key=bob) == 0
        with pytest.raises(ConfigError, match=r"'ann' may not say (un)?cordon: it takes the right 'act'"):
            word("n7", job="j", wait=0.0, config=config, key=ann)
    told = [("ann", True), *[("bob", True)] * 4]
    assert world.on_bus() == told
    for word in ("stop", "resume"):
        with pytest.raises(ConfigError, match=f"{word}: the engine would not hear it: 'bob' may not say {word}"):
            actions(word, config=config, key=bob)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="'ann' may not say set_healthy: it takes the right 'act'"):
        set_healthy("n7", config=config, key=ann)
    with pytest.raises(ConfigError, match="stop: the engine would not hear it: it is not signed; sign with --key"):
        actions("stop", config=config)
    assert world.on_bus() == told


def test_settings_may_name_the_key(world: World) -> None:
    world.config.write_text(f'{world.config.read_text()}key = "{world.folder / "ann"}"\n')
    assert actions("stop", config=world.config) == 0
    assert world.on_bus() == [("ann", True)]


def test_the_log_shows_what_does_not_count_and_why(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    actions("resume", config=world.config, key=world.folder / "ann")
    world.put(UNSIGNED)
    said, words = listed(world, capsys, world.config)
    assert "eve [2J said stop of all jobs (refused: it is not signed)" in said
    assert [(one["by"], one["signed_by"], one["refused"]) for one in words] == [
        ("eve\x1b[2J", None, "it is not signed"), ("ann", "ann", None)
    ]  # fmt: skip
    _, words = listed(world, capsys, None)
    assert [one["refused"] for one in words] == [None, None]


def test_a_flood_of_refused_words_leaves_the_log_readable(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.put(*[UNSIGNED] * 500)
    assert len(listed(world, capsys, world.config)[1]) == 100


def test_what_does_not_count_silences_nobody_and_makes_no_node_well(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.put(
        CommandRecord(id="a", job="*", at_s=1.0, kind="silence", by="eve", until_s=9e9, node="n7"),
        CommandRecord(id="b", job="*", at_s=1.0, kind="set_healthy", by="eve", node="n7"),
    )
    silences("list", config=world.config)
    nodes("n7", config=world.config)
    said = capsys.readouterr().out
    assert "no silence" in said
    assert "nothing was heard of node n7" in said


def test_check_config_says_what_is_wrong_with_keys_and_that_kafka_would_be_unsigned(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check_config(world.config) == 0
    assert capsys.readouterr().err == ""
    world.config.write_text('bus = "kafka://b:9092"\n')
    assert check_config(world.config) == 0
    assert "note: commands are unsigned: whoever may write to trainwarden.commands can" in capsys.readouterr().err
    world.config.write_text('[commands]\nkey = "/nowhere/k"\ntrusted = "/nowhere/t"\n')
    assert check_config(world.config) == 2
    said = capsys.readouterr().err
    assert "t.toml:2: commands.key: /nowhere/k cannot be read (No such file or directory)" in said
    assert "t.toml:3: commands.trusted: /nowhere/t cannot be read" in said


def test_the_log_says_who_asked_a_launcher_past_the_engine(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    fields = {"operation": "o", "stage": "accepted", "verb": "pause", "by": "bob (act)", "why": "hot"}
    event = EventRecord(
        id="operation/o/accepted", job="j", node="n1", time_s=1.0, kind="operation", fields=dict(fields)
    )
    bus = EmbeddedBus(world.bus.partition(":")[2])
    bus.publish(EVENTS, "j", event)
    bus.close()
    out, words = listed(world, capsys, None)
    assert "bob (act) asked the launcher of job j to pause: hot (not seen done)" in out
    assert words == []
    (asked,) = json.loads((world.folder / "said.json").read_text())["asked"]
    assert (asked["by"], asked["kind"], asked["why"], asked["done_at_s"]) == ("bob (act)", "pause", "hot", None)
