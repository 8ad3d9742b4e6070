"""Records what a real agent sends for `trainwarden simulate`: eight ranks that train, eight GPUs of the fake driver.

    python -m tests.record_agent      # about two minutes, on a quiet machine: writes the recording into the package

Ranks train by DDP over gloo under the hook; a sleep stands for the device's time. The fake driver's readings wander as
those of GPUs under load do. All collectors run at their defaults.
"""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
import tempfile
import time
from importlib.resources import files
from pathlib import Path

import msgspec

from tests.rank_environment import environment
from tests.servers.agent import AgentProcess
from tests.servers.fake_nvml import FakeNvml
from trainwarden.bus.embedded.engine import EmbeddedBus
from trainwarden.collectors import CATALOG
from trainwarden.plugins import OptIn
from trainwarden.records import EventRecord
from trainwarden.simulation.recording import NAME, RANKS, Sent
from trainwarden.topics import COLLECTIVES, EVENTS, HEARTBEATS, ITERATIONS, LOGS, METRICS

WARM_UP_S, SECONDS = 20.0, 64.0
TRAINING = """
import random, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("gloo")
rank, chance = dist.get_rank(), random.Random(dist.get_rank())
model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(1000):
    begun = time.time()
    loss = model(torch.randn(8, 64)).square().mean()
    time.sleep(0.8 * chance.lognormvariate(0.0, 0.02))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.15)
    print(f"[rank {rank}] step {step} | loss {2.0 + 8.0 / (step + 1):.4f} | lr 1.50e-04 | "
          f"{8192 / (time.time() - begun):.0f} tokens/s", flush=True)
"""


def wander(nvml: FakeNvml, chance: random.Random, second: int) -> None:
    """Readings of a GPU under load, a second later; counters run on."""
    for gpu in range(RANKS):
        temperature = 58 + gpu % 4 + chance.randint(0, 2)
        nvml.set(
            gpu, temperature=temperature, util_gpu=chance.randint(94, 100), util_mem=chance.randint(41, 48),
            clock_1=chance.choice((1740, 1755, 1755, 1770)), power_mw=int(chance.gauss(620_000, 15_000)),
            energy_mj=5_000_000 + 620_000 * second, field_82=temperature + 9,
            pcie_kb_0=int(chance.gauss(2_000_000, 60_000)), pcie_kb_1=int(chance.gauss(1_000_000, 40_000)),
            field_138=1_000 + 9_000_000 * second, field_139=2_000 + 9_000_000 * second,
        )  # fmt: skip


def recorded(folder: Path) -> list[Sent]:
    """Everything that one agent sent in `SECONDS`, after its start, by when it arrived."""
    nvml, chance = FakeNvml(folder, RANKS), random.Random(0)
    every = ", ".join(f"{name} = {{}}" for name, found in CATALOG.items() if not isinstance(found, OptIn))
    agent = AgentProcess(folder, f"{{{every}}}", nvml.environ())
    ranks = []
    environ = {**environment(agent.run_dir), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29431"}
    environ |= {"WORLD_SIZE": str(RANKS), "LOCAL_WORLD_SIZE": str(RANKS)}
    agent.start()
    try:
        for rank in range(RANKS):
            with (agent.run_dir / "logs" / f"rank-{rank}.log").open("ab") as log:
                mine = {**environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "CUDA_VISIBLE_DEVICES": str(rank)}
                ranks.append(subprocess.Popen([sys.executable, "-c", TRAINING], env=mine, stdout=log, stderr=log))
            nvml.set(rank, pid_0=ranks[-1].pid)
        agent.wait_for("the first steps", ITERATIONS, 1, timeout_s=300.0)
        begun_s = time.time()
        for second in range(int(WARM_UP_S + SECONDS)):
            wander(nvml, chance, second)
            time.sleep(max(0.0, begun_s + second + 1 - time.time()))
    finally:
        for one in ranks:
            one.kill()
            one.wait()
        agent.stop()
    bus = EmbeddedBus(str(agent.bus_path))
    try:
        topics = (METRICS, ITERATIONS, HEARTBEATS, COLLECTIVES, LOGS, EVENTS)
        found = [(message.time_s, message.record) for topic in topics for message in bus.read(topic)]
    finally:
        bus.close()
    return sorted(((at_s - begun_s, record) for at_s, record in found), key=lambda one: one[0])


def main() -> None:
    """Write it where `trainwarden.simulation` reads it."""
    with tempfile.TemporaryDirectory() as folder:
        sent = [one for one in recorded(Path(folder)) if not isinstance(one[1], EventRecord)]
    steady = [(at_s - WARM_UP_S, record) for at_s, record in sent if WARM_UP_S <= at_s < WARM_UP_S + SECONDS]
    lines = b"".join(msgspec.json.encode([round(at_s, 3), record]) + b"\n" for at_s, record in steady)
    path = Path(str(files("trainwarden.simulation").joinpath(NAME)))
    path.write_bytes(gzip.compress(lines, 9, mtime=0))
    print(f"{len(steady) / SECONDS:.1f} records and {len(lines) / SECONDS:.0f} bytes a second in {path}")


if __name__ == "__main__":
    main()
