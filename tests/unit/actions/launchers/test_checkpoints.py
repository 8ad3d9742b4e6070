"""Which checkpoint is the newest whole one, by each trainer's own mark, in whatever folder there may be."""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path

import pytest

from trainwarden.checkpoints import newest as places
from trainwarden.checkpoints.newest import Entry, Search, newest, words


def saved(path: Path) -> None:
    """A file as `torch.save` leaves it: a zip archive."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", b"\x80\x02cos\nsystem\n")


def cut(path: Path) -> None:
    saved(path)
    path.write_bytes(path.read_bytes()[:-30])


def found(folder: Path) -> tuple[str, int] | None:
    checkpoint = newest(folder)
    return None if checkpoint is None else (checkpoint.path.name, checkpoint.step)


def test_our_examples_files_count_when_they_have_their_end(tmp_path: Path) -> None:
    saved(tmp_path / "step-00000020.pt")
    saved(tmp_path / "step-00000100.pt")
    cut(tmp_path / "step-00000120.pt")
    saved(tmp_path / ".step-00000140.part")
    (tmp_path / "step-00000160.pt").touch()
    assert found(tmp_path) == ("step-00000100.pt", 100)
    checkpoint = newest(tmp_path)
    assert checkpoint is not None
    assert checkpoint.beside == (
        "step-00000160.pt and step-00000120.pt are newer than step-00000100.pt and not whole, so they are passed over"
    )
    saved(tmp_path / "step-00000160.pt")
    newer = newest(tmp_path)
    assert newer is not None
    assert newer.beside == ""


def test_a_distributed_checkpoint_counts_when_it_has_its_metadata(tmp_path: Path) -> None:
    for name, metadata in (("step-9", b"x"), ("step-10", b"x"), ("step-11", b""), ("step-12", None)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__0_0.distcp").write_bytes(b"x")
        if metadata is not None:
            (tmp_path / name / ".metadata").write_bytes(metadata)
    assert found(tmp_path) == ("step-10", 10)


def test_deepspeeds_latest_alone_says_what_is_whole(tmp_path: Path) -> None:
    for step in (100, 200):
        (tmp_path / f"global_step{step}").mkdir()
    assert found(tmp_path) is None
    (tmp_path / "latest").write_text("global_step100\n")
    assert found(tmp_path) == ("global_step100", 100)
    (tmp_path / "latest").write_text("global_step300")
    assert found(tmp_path) is None


def test_megatrons_tracker_alone_says_what_is_whole(tmp_path: Path) -> None:
    for step in (100, 200):
        (tmp_path / f"iter_{step:07d}").mkdir()
        (tmp_path / f"iter_{step:07d}" / ".metadata").write_bytes(b"x")
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("100")
    assert found(tmp_path) == ("iter_0000100", 100)
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release")
    assert found(tmp_path) is None


def test_hugging_faces_state_must_say_the_same_step(tmp_path: Path) -> None:
    for step, state in ((500, '{"global_step": 500}'), (1000, '{"global_step": 500}'), (1500, "{"), (2000, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if state is not None:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    assert found(tmp_path) == ("checkpoint-500", 500)


def test_lightnings_files_tell_the_step_by_their_name(tmp_path: Path) -> None:
    for name in ("epoch=0-step=90.ckpt", "epoch=1-step=180-v1.ckpt", "last.ckpt", "epoch=7.ckpt"):
        saved(tmp_path / name)
    cut(tmp_path / "epoch=2-step=270.ckpt")
    assert found(tmp_path) == ("epoch=1-step=180-v1.ckpt", 180)


def test_nothing_hostile_raises_or_hangs(tmp_path: Path) -> None:
    (tmp_path / "step-7").symlink_to("step-7")
    (tmp_path / "step-8.pt").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "step-9.pt")
    (tmp_path / "checkpoint-10").mkdir()
    (tmp_path / "checkpoint-10" / "trainer_state.json").write_text("[" * 100_000)
    (tmp_path / "11").mkdir()
    os.mkfifo(tmp_path / "11" / ".metadata")
    (tmp_path / "latest").symlink_to("latest")
    assert newest(tmp_path) is None
    odd = os.fsencode(tmp_path) + b"/odd-\xff\n12"
    os.mkdir(odd)
    Path(os.fsdecode(odd), ".metadata").write_bytes(b"x")
    checkpoint = newest(tmp_path)
    assert checkpoint is not None
    assert checkpoint.step == 12
    assert words(checkpoint.path).encode().endswith(b"?12")  # can be shown and sent


@pytest.mark.parametrize("text", ["../other/step-5", "/etc/5", "a\0b5", "5" * 5000, "..5", "\udcff"])
def test_a_pointer_leads_nowhere_else(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "ckpt"
    folder.mkdir()
    (tmp_path / "other" / "step-5").mkdir(parents=True)
    (folder / "latest").write_bytes(text.encode("utf-8", "surrogateescape"))
    assert newest(folder) is None


@pytest.mark.thorough
def test_a_folder_of_many_half_written_ones_is_searched_within_seconds(tmp_path: Path) -> None:
    for number in range(20_000):
        os.mknod(tmp_path / f"step-{number}.pt")
    search = Search(tmp_path)
    assert search.wait(20.0)
    assert search.found is None


def test_folders_that_are_not_there_or_go_away_hold_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert newest(tmp_path / "none") is None
    (tmp_path / "file").touch()
    assert newest(tmp_path / "file") is None
    folder = tmp_path / "gone"
    folder.mkdir()
    saved(folder / "step-5.pt")
    looked_into = places._whole

    def gone_by_then(path: Path, step: int, entry: Entry) -> bool:
        shutil.rmtree(folder)
        return looked_into(path, step, entry)

    monkeypatch.setattr(places, "_whole", gone_by_then)
    assert newest(folder) is None
