"""The hook as `trainwarden watch` injects it, under real CUDA: what it records, what breaks, what it costs.

    python hook_check.py OUT TRAINWARDEN_SOURCE      Apache-2.0, the trainwarden project.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CASES: dict[str, tuple[int, list[str]]] = {
    "ddp_fast": (2, ["ddp", "--steps", "40"]), "ddp_slow_host": (2, ["ddp", "--steps", "40", "--late-host-ms", "20"]),
    "ddp_slow_gpu": (2, ["ddp", "--steps", "40", "--late-gpu-ms", "20"]), "fsdp": (2, ["fsdp", "--steps", "40"]),
    "amp": (1, ["ddp", "--amp"]), "compile_model": (1, ["ddp", "--compile-model", "--steps", "15"]),
    "compile_optimizer": (1, ["ddp", "--compile-optimizer", "--steps", "15"]), "graph": (2, ["graph", "--mixed"]),
}  # fmt: skip


def run(arguments: list[str], world: int, hook: Path | None, source: Path, limit: int = 90) -> tuple[list[int], list[str]]:
    ranks = []
    for rank in range(world):
        env = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                            "MASTER_PORT": "29688", "NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}  # fmt: skip
        env.pop("NCCL_PROFILER_PLUGIN", None)
        if hook is not None:
            env |= {"TRAINWARDEN_HOOK_DIR": str(hook), "TRAINWARDEN_RUN_DIR": str(hook.parent),
                    "PYTHONPATH": f"{source}/trainwarden/inject:{env.get('PYTHONPATH', '')}"}  # fmt: skip
        ranks.append(subprocess.Popen([sys.executable, str(HERE / "worker.py"), *arguments], env=env, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True))  # fmt: skip
    texts = []
    for rank in ranks:
        try:
            texts.append(rank.communicate(timeout=limit)[0])
        except subprocess.TimeoutExpired:
            rank.kill()
            texts.append(rank.communicate()[0])
    return [rank.returncode for rank in ranks], texts


def host_ms(texts: list[str]) -> float | None:
    taken = [json.loads(line)["host_ms"] for text in texts for line in text.splitlines() if line.startswith('{"rank"') and "host_ms" in line]
    return statistics.median(taken[len(taken) // 4 :]) if taken else None


def main() -> int:
    out, source = Path(sys.argv[1]), Path(sys.argv[2])
    sys.path.insert(0, str(source))
    from trainwarden import hook as reader

    out.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[3:]
    for name, (world, arguments) in CASES.items():
        if wanted and name not in wanted:
            continue
        folder = out / name / "hook"
        folder.mkdir(parents=True, exist_ok=True)
        codes, texts = run(arguments, world, folder, source)
        said: dict[str, Any] = {"case": name, "codes": codes, "host_ms": host_ms(texts), "ranks": {}}
        for path in sorted(folder.glob("*.hook")):
            header, steps = reader.read_header(path), reader.read_steps(path) or []
            if header is None or not steps:
                continue
            half = steps[len(steps) // 3 :]
            said["ranks"][header.rank] = {
                "steps": header.recorded, "source": header.source, "errors": header.errors, "calls": header.calls,
                **{part: round(statistics.median(getattr(step, part) for step in half) * 1e3, 3) for part in ("duration_s", "compute_s", "wait_s")},
            }  # fmt: skip
        if any(codes):
            said["tail"] = [text[-1500:] for text in texts]
        print(json.dumps(said), flush=True)
    if not wanted or "cost" in wanted:
        pairs = []
        for turn in range(4):
            for on in (turn % 2 == 0, turn % 2 == 1):
                folder = out / f"cost-{turn}-{on}" / "hook"
                folder.mkdir(parents=True, exist_ok=True)
                _, texts = run(["ddp", "--steps", "400", "--width", "256"], 1, folder if on else None, source)
                pairs.append((on, host_ms(texts)))
        print(json.dumps({"cost": pairs}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
