"""Keys in files: made, shown, trusted, and refused in one sentence each."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path

import msgspec
import pytest

from trainwarden.cli.setup.key import key
from trainwarden.commands.keys import Signer, is_signed_by, new_signer, trusted_of
from trainwarden.errors import ConfigError
from trainwarden.records import CommandRecord
from trainwarden.topics import COMMANDS

STOP = CommandRecord(id="c1", job="j", at_s=7, kind="stop", by="ann", why="\u00e9 'tis late", until_s=8)
LINE = Signer("ann", bytes(32)).public_line("approve,stop")


def test_a_key_is_made_for_its_owner_alone_and_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, before = tmp_path / "ann.key", os.umask(0)
    try:
        assert key("make", "ann", file=path, may="approve,stop") == 0
    finally:
        os.umask(before)
    made = capsys.readouterr().out
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key("show", file=path, may="approve,stop") == 0
    assert capsys.readouterr().out == made
    assert "private" not in made
    (tmp_path / "trusted").write_text(made)
    (one,) = trusted_of(tmp_path / "trusted")
    assert is_signed_by(Signer.of_file(path).sign(STOP, 1.0), one.public)
    with pytest.raises(ConfigError, match=r"ann.key cannot be made \(File exists\)"):
        key("make", "ann", file=path)


def test_a_key_that_finds_no_room_is_one_sentence_and_leaves_no_file(tmp_path: Path) -> None:
    signer, limits = new_signer("ann"), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(ConfigError, match=r"ann.key cannot be made \(File too large\)"):
            signer.write(tmp_path / "ann.key")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signer.write(tmp_path / "ann.key")


def test_what_is_signed_is_every_field_as_a_reader_decodes_it() -> None:
    """Numbers without a fraction, texts beyond ASCII, and each field changed by itself."""
    ann = new_signer("ann")
    said = COMMANDS.decode(COMMANDS.encode(ann.sign(STOP, 100.0)))
    assert is_signed_by(said, ann.public)
    assert not is_signed_by(said, new_signer("ann").public)
    other = {"job": "k", "kind": "resume", "by": "bob", "at_s": 8.0, "id": "c2", "action": "a", "plan_digest": "d",
             "until_s": 9.0, "incident_kind": "hang", "node": "n", "why": "", "schema_version": 2}  # fmt: skip
    assert set(other) == set(CommandRecord.__struct_fields__) - {"signature"}
    for name, value in other.items():
        assert not is_signed_by(msgspec.structs.replace(said, **{name: value}), ann.public), name
    assert said.signature is not None
    for name, value in {"by": "bob", "at_s": 101.0, "nonce": "0", "value": "not hex"}.items():
        changed = msgspec.structs.replace(said.signature, **{name: value})
        assert not is_signed_by(msgspec.structs.replace(said, signature=changed), ann.public), name


@pytest.mark.parametrize(
    ("text", "mode", "sentence"),
    [
        ("", 0o644, "holds no key; a line is NAME RIGHTS"),
        ("# ann\n", 0o644, "holds no key; a line is NAME RIGHTS"),
        (LINE, 0o666, "others may write to"),
        (LINE, 0o664, "others may write to"),
        ("ann stop", 0o644, "line 1: a line is NAME RIGHTS ed25519:KEY"),
        ("ann stop rsa:AAAA", 0o644, "line 1: a line is NAME RIGHTS ed25519:KEY"),
        ("../ann stop ed25519:AAAA", 0o644, "line 1: a line is NAME RIGHTS ed25519:KEY"),
        ("# x\nann stop ed25519:AAAA", 0o644, "line 2: a key is 32 bytes in base64"),
        ("ann stop ed25519:!!", 0o644, "line 1: a key is 32 bytes in base64"),
        (LINE.replace("stop", "evict"), 0o644, "line 1: rights are approve, act, stop, latch, relay"),
        (f"{LINE} until:tomorrow", 0o644, "line 1: 'until:tomorrow' is not like until:2027"),
        ("\udcff".encode("utf-8", "surrogateescape").decode("latin-1"), 0o644, "a line is NAME"),
    ],
)
def test_a_mistake_in_a_file_of_trusted_keys_is_one_sentence(
    tmp_path: Path, text: str, mode: int, sentence: str
) -> None:
    path = tmp_path / "trusted"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=r"^commands\.trusted: ") as raised:
        trusted_of(path)
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    ("text", "mode", "sentence"),
    [
        ("ann ed25519-private:" + "A" * 43 + "=", 0o640, "others may read"),
        ("ann ed25519-private:AAAA", 0o600, "a key is 32 bytes in base64"),
        (LINE, 0o600, "holds no key; `trainwarden key make"),
        ("", 0o600, "holds no key"),
    ],
)
def test_a_mistake_in_a_key_file_is_one_sentence_and_shows_no_key(
    tmp_path: Path, text: str, mode: int, sentence: str
) -> None:
    path = tmp_path / "ann.key"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=r"^commands\.key: ") as raised:
        Signer.of_file(path)
    assert sentence in str(raised.value)
    assert "AAAA" not in str(raised.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"commands.trusted: .*/gone cannot be read \(No such file or directory\)"):
        trusted_of(tmp_path / "gone")


def test_a_key_has_a_name_that_can_be_told_apart() -> None:
    for name in ("", "a b", "-ann", "a" * 65, "ann\n"):
        with pytest.raises(ConfigError, match="is no name"):
            new_signer(name)
