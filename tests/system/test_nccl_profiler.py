"""NCCL's profiler plug-in in real processes: killed, without room, beside the real libnccl, in a job without NCCL."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import trainwarden
from tests import nccl_player
from tests.hook_doubles import write_header
from tests.servers.agent import AgentProcess
from tests.torch_forks import TorchForks
from trainwarden.collectors.nccl_profiler import build, read
from trainwarden.collectors.nccl_profiler.layout import CALLS
from trainwarden.records import CollectivesRecord
from trainwarden.topics import COLLECTIVES

pytestmark = pytest.mark.system

Built = tuple[Path, Path]
PATIENCE_S = 180.0


def contents(path: Path) -> tuple[read.Header | None, list[read.Comm], dict[int, read.Call]]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        header = read.read_header(descriptor)
        return header, read.read_comms(descriptor), read.read_calls(descriptor, 0, header) if header else {}
    finally:
        os.close(descriptor)


def whole(calls: dict[int, read.Call]) -> bool:
    """Whether each is as one call of the player's, not of two."""
    return all(call.size_bytes == 4 * (1024 + call.seq) for call in calls.values() if call.function == "AllReduce")


def test_a_rank_that_is_killed_in_the_midst_leaves_a_readable_file(built: Built, tmp_path: Path) -> None:
    plugin, player = built
    for number in range(5):
        folder = tmp_path / str(number)
        folder.mkdir()
        process = subprocess.Popen(
            [str(player), str(plugin), "5", "storm", "4", "1000000000"],
            env=nccl_player.environ(folder, TRAINWARDEN_NCCL_EVERY="1"), stdout=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + PATIENCE_S
            while True:
                assert time.monotonic() < deadline, "it made no calls"
                paths = list(folder.glob("*.nccl"))
                header, _, calls = contents(paths[0]) if paths else (None, [], {})
                assert whole(calls)  # readable while it is written, too
                if header is not None and header.calls > 20_000:
                    break
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        header, comms, calls = contents(paths[0])
        assert header is not None
        assert len(comms) == 4
        assert len(calls) > CALLS - 100
        assert whole(calls)


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounts need root and unshare")
@pytest.mark.parametrize("size", ["64k", "400k"])
def test_without_room_it_is_off_and_nobody_is_killed(built: Built, tmp_path: Path, size: str) -> None:
    plugin, player = built
    shell = f'mount -t tmpfs -o size={size} tmpfs "$1" && shift && exec "$@"'
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", shell, "-", str(tmp_path), str(player), str(plugin), "5", "script"],
        input="init 0 ab dp 1 8 0\ncoll 0 AllReduce 0 1 ncclInt8 1\nmask\n", text=True, capture_output=True,
        timeout=60, check=False, env=nccl_player.environ(tmp_path),
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 0\n0 0\n0\n", "")


def test_an_agent_that_is_killed_misses_no_stamped_call(built: Built, tmp_path: Path) -> None:
    agent = AgentProcess(tmp_path, "{nccl_calls = {interval_s = 0.1, still_s = 1.0}}")
    told: list[CollectivesRecord] = []

    def heard() -> set[int]:
        records = [message.record for message in agent.messages(COLLECTIVES)]
        told[:] = [record for record in records if isinstance(record, CollectivesRecord)]
        assert len(told) == len(records)
        return {seq for record in told for seq, took in zip(record.seqs, record.device_s, strict=True) if took}

    def wait_for(calls: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while len(heard()) < calls:
            assert time.monotonic() < deadline, agent.tail()
            time.sleep(0.1)

    with nccl_player.Player(built, agent.run_dir / "hook") as player:
        try:
            agent.start()
            player.init(0)
            write_header(agent.run_dir / "hook" / f"rank-3-{player.process.pid}.hook", player.process.pid)
            player.ask("step", 64)
            for seq in range(300):
                if seq == 150:
                    wait_for(100)
                    agent.kill()
                    agent.start()
                call, now = player.coll(seq=seq), player.now()
                player.kernel(call, now, now + 5_000)
            wait_for(300)
            assert heard() == set(range(300))
            deadline = time.monotonic() + PATIENCE_S
            while told[-1].enqueued != (300,) or told[-1].of:  # it stands still
                assert time.monotonic() < deadline, agent.tail()
                time.sleep(0.1)
                heard()
            assert (told[-1].started, told[-1].finished, told[-1].rank) == ((300,), (300,), 3)
        finally:
            agent.kill()


_BESIDE_NCCL = """
import ctypes, sys
nccl, plugin = ctypes.CDLL(sys.argv[1]), ctypes.CDLL(sys.argv[2])
version, mask, context = ctypes.c_int(), ctypes.c_int(), ctypes.c_void_p()
nccl.ncclGetVersion(ctypes.byref(version))
# Of NCCL's own library, as its logger is, and harmless to call.
logger = ctypes.cast(nccl.ncclGetErrorString, ctypes.c_void_p)
init = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int,
    ctypes.c_int, ctypes.c_void_p,
)((ctypes.c_void_p * 2).in_dll(plugin, "ncclProfiler_v5")[1])
assert init(ctypes.byref(context), 7, ctypes.byref(mask), b"dp", 1, 8, 0, logger) == 0
print(version.value)
"""


def test_it_learns_nccl_s_version_from_the_real_library(built: Built, tmp_path: Path) -> None:
    nvidia = pytest.importorskip("nvidia.nccl", reason="nvidia-nccl is not installed")
    library = Path(next(iter(nvidia.__path__))) / "lib" / "libnccl.so.2"
    done = subprocess.run(
        [sys.executable, "-c", _BESIDE_NCCL, str(library), str(built[0])],
        capture_output=True, text=True, timeout=120, check=False, env=nccl_player.environ(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("*.nccl")
    header = contents(path)[0]
    assert header is not None
    assert header.nccl_version == int(done.stdout)


_JOB = """
import json, os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(80):
    model(torch.full((4, 8), step / 80 + dist.get_rank())).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
maps = open("/proc/self/maps").read()
said = json.dumps({
    "named": os.environ.get("NCCL_PROFILER_PLUGIN"), "loaded": "libnccl-profiler" in maps,
    "sum": [float(part.double().sum()) for part in model.parameters()],
})
open(f"said-{dist.get_rank()}.json", "w").write(said)
dist.destroy_process_group()
"""


def ranks(forks: TorchForks, folder: Path, **environ: str) -> list[dict[str, object]]:
    """Two ranks of a job on gloo; what each said at its end."""
    (folder / "hook").mkdir(parents=True)
    (folder / "job.py").write_text(_JOB)
    base = nccl_player.environ(folder / "hook", OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    base |= {"PYTHONPATH": str(Path(trainwarden.__file__).parents[1]), **environ}
    log = folder / "log"
    job = forks.start([str(folder / "job.py")], base, folder=folder, log=log, ranks=2)
    assert job.wait(PATIENCE_S * 2) == 0, log.read_text()[-3000:]
    return [json.loads((folder / f"said-{rank}.json").read_text()) for rank in range(2)]


def test_a_job_without_nccl_does_not_notice(built: Built, torch_forks: TorchForks, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    offered = str(built[0]) if torch.version.cuda is not None else None
    plain = ranks(torch_forks, tmp_path / "plain")
    hooked = ranks(torch_forks, tmp_path / "hooked", **{build.VARIABLE: str(built[0])})
    assert [one["named"] for one in plain + hooked] == [None, None, offered, offered]
    assert not any(one["loaded"] for one in hooked)
    assert [one["sum"] for one in plain] == [one["sum"] for one in hooked]
    files = [
        {path.name.rsplit(".")[-1] for path in (tmp_path / name / "hook").iterdir()} for name in ("plain", "hooked")
    ]
    assert files[0] == files[1]
    assert "hook" in files[1]
    assert "nccl" not in files[1]
