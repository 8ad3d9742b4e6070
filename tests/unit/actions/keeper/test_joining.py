"""The folder in which a keeper and its launcher meet: what others plant there is neither waited for nor believed."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from trainwarden.actions.keeper.joining import Joining
from trainwarden.errors import ConfigError

pytestmark = pytest.mark.timeout(20)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    made = tmp_path / "meeting"
    made.mkdir(mode=0o700)
    return made


@pytest.fixture(name="joining")
def _joining(folder: Path):
    made = Joining(folder, "127.0.0.1", "a")
    yield made
    made.server.close()


def test_a_ring_that_is_no_plain_file_is_refused_at_once(folder, joining):
    assert joining.news() is None
    os.mkfifo(folder / "ring.json")
    with pytest.raises(OSError, match="no file of ours"):
        joining.news()
    (folder / "ring.json").unlink()
    (folder.parent / "elsewhere").write_text("{}")
    (folder / "ring.json").symlink_to(folder.parent / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        joining.news()


def test_no_more_of_a_ring_is_read_than_a_launcher_writes(folder, joining):
    (folder / "ring.json").write_bytes(
        b" " * 1024 * 1024 + b'{"round":1,"nodes":[["a","h",1]],"ca":"","certificate":""}'
    )
    with pytest.raises(ConfigError, match="is not what a launcher writes"):
        joining.news()


def test_what_lies_in_the_place_of_the_request_is_not_written_to(folder):
    victim = folder.parent / "victim"
    victim.write_text("kept")
    for name in ("request.json.new", "request.json"):
        (folder / name).symlink_to(victim)
    Joining(folder, "127.0.0.1", "a").server.close()
    assert victim.read_text() == "kept"
    assert stat.S_ISREG((folder / "request.json").lstat().st_mode)


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_a_folder_into_which_others_write_is_refused(folder, mode):
    folder.chmod(mode)
    with pytest.raises(ConfigError, match="nobody else may write into it"):
        Joining(folder, "127.0.0.1", "a")


def test_a_folder_of_somebody_else_or_behind_a_link_is_refused(folder, monkeypatch):
    (folder.parent / "link").symlink_to(folder)
    with pytest.raises(ConfigError, match="cannot be used"):
        Joining(folder.parent / "link", "127.0.0.1", "a")
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    with pytest.raises(ConfigError, match="must belong to this user"):
        Joining(folder, "127.0.0.1", "a")


def test_a_folder_that_is_put_in_the_place_of_the_first_one_tells_no_ring(folder, joining):
    folder.rename(folder.parent / "away")
    folder.mkdir(mode=0o777)
    (folder / "ring.json").write_text("{}")
    assert joining.news() is None
