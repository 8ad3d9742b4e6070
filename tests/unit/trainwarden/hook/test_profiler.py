"""NCCL's profiler plug-in and the hook: when it is offered, and how it is told the steps."""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.hook_doubles import HandClock, backward, set_everywhere
from trainwarden.hook import Hook
from trainwarden.hook.layout import NCCL_ABI, NCCL_AT_STEP, NCCL_CONTROL_BYTES, NCCL_MAGIC
from trainwarden.hook.watches.profiler import watch_profiler
from trainwarden.hook.watches.training import watch_capture

OURS, NCCLS = "TRAINWARDEN_NCCL_PROFILER", "NCCL_PROFILER_PLUGIN"
Offer = Callable[[], str | None]


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All as it is where the plug-in is offered."""
    path = tmp_path / "plugin.so"
    path.touch()
    monkeypatch.setenv(OURS, str(path))
    for name in (NCCLS, "NCCL_CONF_FILE", "LD_LIBRARY_PATH", "NCCL_NET_PLUGIN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    set_everywhere(monkeypatch, "_FOLDERS", ())
    for name in ("_PASSWD", "_CACHE"):
        set_everywhere(monkeypatch, name, str(tmp_path / name))
    torch(monkeypatch)
    return path


def torch(monkeypatch: pytest.MonkeyPatch, version: str = "2.9.1+cu128", cuda: str | None = "12.8") -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version, version=SimpleNamespace(cuda=cuda)))


@pytest.fixture
def offer(make: Callable[..., Hook]) -> Offer:
    target = make()

    def offered() -> str | None:
        watch_profiler(target.memory, target.steps)
        return os.environ.get(NCCLS)

    return offered


def test_it_is_offered_where_all_is_there(library: Path, offer: Offer) -> None:
    assert offer() == str(library)


@pytest.mark.parametrize("version", ["2.6.0", "1.13.1", "2.5.1+cu121", "strange"])
def test_not_to_an_older_torch(library: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    torch(monkeypatch, version)
    assert offer() is None


@pytest.mark.parametrize("version", ["2.7.0", "2.13.0a0+git1234", "3.0.0"])
def test_to_newer_ones(library: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    torch(monkeypatch, version)
    assert offer() == str(library)


def test_not_without_cuda(library: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    torch(monkeypatch, cuda=None)
    assert offer() is None


@pytest.mark.parametrize("named", ["", "off", "plugin.so", "/not/there.so", "/" + "x" * 300])
def test_not_without_a_library(library: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.chdir(library.parent)  # which the program may leave before NCCL looks
    monkeypatch.setenv(OURS, named)
    assert offer() is None


def test_not_a_path_that_nccl_would_cut(tmp_path: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch) -> None:
    torch(monkeypatch)
    folder = tmp_path / ("x" * 200) / ("y" * 60)
    folder.mkdir(parents=True)
    (folder / "plugin.so").touch()
    monkeypatch.setenv(OURS, str(folder / "plugin.so"))
    monkeypatch.delenv(NCCLS, raising=False)
    assert offer() is None


@pytest.mark.parametrize("named", ["inspector", "none", "/opt/other.so"])
def test_never_in_place_of_another(library: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    monkeypatch.setenv(NCCLS, named)
    assert offer() == named


@pytest.mark.parametrize("name", ["NCCL_CONF_FILE", ""])
def test_nor_of_one_in_nccl_s_settings(
    library: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    conf = tmp_path / (".nccl.conf" if not name else "site.conf")
    conf.write_text("NCCL_DEBUG=WARN\nNCCL_PROFILER_PLUGIN=inspector\n")
    if name:
        monkeypatch.setenv(name, str(conf))
    assert offer() is None


def test_nor_of_one_under_the_default_name(
    library: Path, offer: Offer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libnccl-profiler.so").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere:{tmp_path}/lib")
    assert offer() is None


def test_nor_of_one_in_the_settings_of_a_home_that_is_not_named_by_home(
    library: Path, offer: Offer, tmp_path: Path
) -> None:
    """NCCL asks the list of users, as in containers that set HOME themselves."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".nccl.conf").write_text("NCCL_PROFILER_PLUGIN=inspector\n")
    (tmp_path / "_PASSWD").write_text(f"a:b\nsomebody:x:{os.getuid()}:0:Some Body:{tmp_path}/other:/bin/sh\n")
    assert offer() is None


def test_nor_of_one_that_the_loader_s_list_has(library: Path, offer: Offer, tmp_path: Path) -> None:
    found = tmp_path / "libnccl-profiler.so"
    found.touch()
    (tmp_path / "_CACHE").write_bytes(b"glibc-ld.so.cache1.1\0\1libnccl-profiler.so\0" + os.fsencode(found) + b"\0")
    assert offer() is None


@pytest.mark.parametrize(
    ("network", "name"), [("", "libnccl-net.so"), ("mine", "libnccl-net-mine.so"), ("PATH", "anything.so")]
)
@pytest.mark.parametrize("profiles", [False, True])
def test_nor_of_one_that_comes_with_the_network_s(
    library: Path,
    offer: Offer,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    network: str,
    name: str,
    *,
    profiles: bool,
) -> None:
    (tmp_path / name).write_bytes(b"\x7fELF ncclNet_v10\0" + b"ncclProfiler_v4\0" * profiles)
    monkeypatch.setenv("NCCL_NET_PLUGIN", str(tmp_path / name) if network == "PATH" else network)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    assert offer() == (None if profiles else str(library))


# -- the steps


def control_file(target: Hook, **said: Any) -> Path:
    words = {"magic": NCCL_MAGIC, "abi": NCCL_ABI, "pid": os.getpid(), "ticks": target.memory.ticks} | said
    path = Path(target.memory.folder) / f"rank-0-{os.getpid()}-{target.memory.ticks}.nccl"
    path.write_bytes(struct.pack("@4q", *words.values()).ljust(NCCL_CONTROL_BYTES, b"\0"))
    return path


def told(path: Path) -> int:
    return int(struct.unpack_from("@q", path.read_bytes(), 8 * NCCL_AT_STEP)[0])


def test_the_steps_are_told_from_when_its_file_is_there(
    library: Path, make: Callable[..., Hook], clock: HandClock
) -> None:
    target = make()
    assert not watch_profiler(target.memory, target.steps)
    target.marked(None)
    path = control_file(target)
    assert told(path) == 0
    assert watch_profiler(target.memory, target.steps)
    assert told(path) == 2  # step 1 is in progress
    for number in (2, 3):
        backward(target, clock, 5.0)
        target.marked(None)
        assert told(path) == number + 1
    target.number(500)
    assert told(path) == 501
    target.marked(700)
    assert told(path) == 702


def test_a_file_that_is_being_made_is_looked_at_again(library: Path, make: Callable[..., Hook]) -> None:
    target = make()
    path = control_file(target)
    whole = path.read_bytes()
    for part in (b"", whole[:64], whole):
        path.write_bytes(part)
        assert watch_profiler(target.memory, target.steps) == (part == whole)


@pytest.mark.parametrize("said", [{"magic": 1}, {"abi": 2}, {"pid": 1}, {"ticks": 1}])
def test_the_file_of_another_is_not_written(library: Path, make: Callable[..., Hook], said: dict[str, int]) -> None:
    target = make()
    path = control_file(target, **said)
    assert not watch_profiler(target.memory, target.steps)
    target.marked(None)
    assert told(path) == 0


def test_a_link_is_not_followed(library: Path, make: Callable[..., Hook], tmp_path: Path) -> None:
    target = make()
    path = control_file(target)
    path.symlink_to(path.rename(tmp_path / "of-another"))
    assert not watch_profiler(target.memory, target.steps)
    assert told(path) == 0


def test_it_is_looked_for_while_the_first_steps_settle(
    library: Path, make: Callable[..., Hook], clock: HandClock
) -> None:
    target = make()
    target.missing = [lambda: watch_profiler(target.memory, target.steps)]
    target.marked(None)
    path = control_file(target)
    target.marked(None)
    assert told(path) == 3
    assert target.missing == []


def test_a_process_whose_parent_was_offered_it_looks_for_its_own(
    library: Path, make: Callable[..., Hook], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = make()
    monkeypatch.setenv(NCCLS, str(library))
    path = control_file(target)
    assert watch_profiler(target.memory, target.steps)
    assert told(path) == 1


# -- captures


@pytest.fixture
def graph(library: Path, make: Callable[..., Hook], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A kind of graph that is watched, and a plug-in that writes down what it is told."""
    said: list[Any] = []

    class Graph:
        told = said

        def capture_begin(self, works: bool = True) -> None:
            said.append("begins")
            if not works:
                raise RuntimeError("no")

        def capture_end(self) -> None:
            said.append("ends")

    def loaded(path: str, mode: int) -> Any:
        assert (path, mode & os.RTLD_NOLOAD) == (str(library), os.RTLD_NOLOAD)
        return SimpleNamespace(trainwarden_nccl_capture=said.append)

    monkeypatch.setenv(NCCLS, str(library))
    monkeypatch.setattr(ctypes, "CDLL", loaded)
    monkeypatch.setitem(sys.modules, "torch.cuda.graphs", SimpleNamespace(CUDAGraph=Graph))  # type: ignore[arg-type]
    assert watch_capture(make().device)
    return Graph


def test_it_hears_of_a_capture_before_cuda_does(graph: Any) -> None:
    one, other = graph(), graph()
    one.capture_begin()
    other.capture_begin()
    one.capture_end()
    other.capture_end()
    with pytest.raises(RuntimeError):
        one.capture_begin(works=False)
    assert graph.told == [1, "begins", 1, "begins", "ends", 1, "ends", 0, 1, "begins", 0]


@pytest.mark.parametrize("trouble", [OSError("not loaded"), AttributeError("an older one")])
def test_a_capture_goes_on_where_the_plug_in_cannot_be_told(
    graph: Any, monkeypatch: pytest.MonkeyPatch, trouble: Exception
) -> None:
    def refused(path: str, mode: int) -> Any:
        raise trouble

    monkeypatch.setattr(ctypes, "CDLL", refused)
    graph().capture_begin()
    assert graph.told == ["begins"]


@pytest.mark.parametrize("named", [None, "inspector"])
def test_another_plug_in_is_told_nothing(graph: Any, monkeypatch: pytest.MonkeyPatch, named: str | None) -> None:
    monkeypatch.setenv(NCCLS, named) if named else monkeypatch.delenv(NCCLS)
    graph().capture_begin()
    assert graph.told == ["begins"]


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away takes root")
def test_a_file_of_somebody_else_is_not_written_to(library: Path, make: Callable[..., Hook]) -> None:
    """Its owner could cut it off, and the next step would end the rank by SIGBUS."""
    target = make()
    path = control_file(target)
    os.chown(path, 12345, 12345)
    before = path.read_bytes()
    assert not watch_profiler(target.memory, target.steps)
    os.truncate(path, 0)
    target.marked(None)
    target.marked(None)
    path.write_bytes(before)
    os.chown(path, target.memory.owner, -1)
    assert watch_profiler(target.memory, target.steps)
