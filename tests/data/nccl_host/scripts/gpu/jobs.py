"""Runs the recording jobs one after another, each with its own time limit. Apache-2.0, the trainwarden project.

    python jobs.py PLAN OUT            PLAN is traces, hangs, links or cost; see PLANS
    python jobs.py --list

Two or four ranks share one GPU: every rank gets its own NCCL_HOSTID (NCCL before 2.30), so NCCL takes them for
different nodes and uses sockets; with MULTI=1 NCCL_MULTI_RANK_GPU_ENABLE=1 instead (2.30 and newer).
Writes OUT/NAME.log.gz (all ranks), OUT/NAME.rows.gz (packed recordings), OUT/summary.json, as it goes.
"""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import ras_ask  # noqa: E402
import twrec_read  # noqa: E402

PLUGIN = os.environ.get("TWREC_PLUGIN", str(HERE.parent / "libnccl-profiler-twrec5.so"))
API, COLL, P2P, KERNEL, PROXY = 256 | 512 | 1024, 2, 4, 64, 8 | 16
HOST_ONLY = COLL | P2P | API
FULL = HOST_ONLY | KERNEL
Job = dict[str, Any]


def job(name: str, *arguments: str, world: int = 2, limit: int = 60, mask: int | None = FULL, env: dict[str, str] | None = None,
        act: str = "") -> Job:  # fmt: skip
    return {"name": name, "arguments": list(arguments), "world": world, "limit": limit, "mask": mask, "env": env or {}, "act": act}


FR = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
PLANS: dict[str, list[Job]] = {
    "traces": [
        job("ddp2", "ddp"), job("ddp4", "ddp", world=4, limit=90),
        job("ddp2_proxy", "ddp", "--steps", "8", mask=FULL | PROXY),
        job("slow_host2", "ddp", "--late-host-ms", "20"), job("slow_gpu2", "ddp", "--late-gpu-ms", "20"),
        job("slow_host4", "ddp", "--late-host-ms", "20", world=4, limit=90),
        job("fsdp2", "fsdp"), job("pipeline2", "pipeline"), job("pipeline4", "pipeline", world=4, limit=90),
        job("toggle2", "ddp", "--toggle", "4", "--steps", "40"),
        # Expected from the source: rows of a graph captured with KernelCh freeze after the first eager operation
        job("graph_on", "graph", "--steps", "40"), job("graph_on_mixed", "graph", "--steps", "40", "--mixed"),
        job("graph_off", "graph", "--mask-capture", str(HOST_ONLY), "--mask-replay", str(HOST_ONLY), "--mixed"),
        # and this one ends only by its limit: eager KernelCh after a capture without it (its proxy work never completes)
        job("graph_off_then_on", "graph", "--mask-capture", str(HOST_ONLY), "--mixed", limit=40),
    ],
    "hangs": [
        job("skip4", "ddp", "--skip-at", "12", "--steps", "30", world=4, limit=45, env=FR, act="look:20"),
        job("stop_cont2", "ddp", "--steps", "60", "--late-host-ms", "50", limit=60, act="stop:12:4"),
        job("stop_kill2", "ddp", "--steps", "600", "--late-host-ms", "50", limit=60, env=FR, act="stop:12:6:kill"),
        job("kill2", "ddp", "--steps", "600", "--late-host-ms", "50", limit=60, env=FR, act="kill:12"),
        job("watchdog2", "ddp", "--skip-at", "8", "--timeout", "10", limit=60, env=FR),
        job("fr_alive2", "ddp", "--steps", "150", "--late-host-ms", "50", limit=60, env=FR, act="dump:15"),
        job("fr_unwritable2", "ddp", "--steps", "10", limit=40, env={**FR, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/proc/none/fr"}),
    ],
    "links": [
        job("ctas1", "ddp", env={"NCCL_MAX_CTAS": "1"}), job("ctas8", "ddp", env={"NCCL_MAX_CTAS": "8"}),
        job("small_buffers", "ddp", env={"NCCL_BUFFSIZE": "65536"}),
        job("threads1", "ddp", env={"NCCL_SOCKET_NTHREADS": "1", "NCCL_NSOCKS_PERTHREAD": "1"}),
        job("threads4", "ddp", env={"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "4"}),
    ],
    "cost": [job(f"cost_{label}_{turn}", "ddp", "--steps", "300", "--width", "256", mask=mask)
             for turn in range(3) for label, mask in (("none", None), ("zero", 0), ("host", HOST_ONLY), ("full", FULL))],
}  # fmt: skip


def run(one: Job, out: Path, port: int) -> dict[str, Any]:
    folder = out / f"tmp-{one['name']}"
    folder.mkdir(parents=True)
    ranks = []
    for rank in range(one["world"]):
        env = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(one["world"]), "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1",
                            "MASTER_PORT": str(port), "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,RAS,NET",
                            "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "PYTHONUNBUFFERED": "1"}  # fmt: skip
        env |= {"NCCL_MULTI_RANK_GPU_ENABLE": "1"} if os.environ.get("MULTI") else {"NCCL_HOSTID": f"host{rank}"}
        if one["mask"] is not None:
            env |= {"NCCL_PROFILER_PLUGIN": PLUGIN, "TWREC_DIR": str(folder), "TWREC_MASK": str(one["mask"]), "TWREC_ROWS": "150000"}
        env |= {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": str(folder / "fr"), "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(folder / "dump")}
        env |= one["env"]
        log = (folder / f"rank-{rank}.log").open("wb")
        ranks.append(subprocess.Popen([sys.executable, str(HERE / "worker.py"), *one["arguments"]], env=env, stdout=log,
                                      stderr=subprocess.STDOUT, start_new_session=True))  # fmt: skip
    begun = time.monotonic()
    seen: list[str] = []
    try:
        act(one, ranks, folder, out, seen)
        while any(rank.poll() is None for rank in ranks) and time.monotonic() - begun < one["limit"]:
            time.sleep(0.1)
    finally:
        for rank in ranks:
            if rank.poll() is None:
                os.killpg(rank.pid, signal.SIGKILL)
    codes = [rank.wait() for rank in ranks]
    result = {"name": one["name"], "codes": codes, "seconds": round(time.monotonic() - begun, 1), "act": seen}
    result["recorded"] = keep(one["name"], folder, out)
    shutil.rmtree(folder, ignore_errors=True)
    return result


def act(one: Job, ranks: list[subprocess.Popen[bytes]], folder: Path, out: Path, seen: list[str]) -> None:
    """What is done to the job from outside: `look` asks RAS and the flight recorders, `stop` and `kill` hit the last rank."""
    what, *rest = one["act"].split(":") if one["act"] else [""]
    if not what:
        return
    wait_for_steps(folder, len(ranks), float(rest[0]))
    last = ranks[-1]
    if what == "kill":
        os.kill(last.pid, signal.SIGKILL)
        time.sleep(3)
    if what == "stop":
        os.kill(last.pid, signal.SIGSTOP)
        time.sleep(float(rest[1]))
    if what in ("look", "dump") or (what == "stop" and "kill" in rest) or what == "kill":
        ras(out, one["name"], seen)
        dumps(folder, out, one["name"], len(ranks), seen)
        if what == "look":
            time.sleep(5)
            ras(out, one["name"] + "-later", seen)
    if what == "stop":
        os.kill(last.pid, signal.SIGKILL if "kill" in rest else signal.SIGCONT)


def wait_for_steps(folder: Path, world: int, most_s: float) -> None:
    """Until every rank has told of five steps, and a little more; `most_s` at the latest."""
    until = time.monotonic() + max(most_s, 5.0)
    while time.monotonic() < until:
        logs = [folder / f"rank-{rank}.log" for rank in range(world)]
        if all(log.exists() and log.read_bytes().count(b'"host_ms"') >= 5 for log in logs):
            time.sleep(3)
            return
        time.sleep(0.2)


def ras(out: Path, name: str, seen: list[str]) -> None:
    for kind, lines in ras_ask.ASKED.items():
        try:
            _, report, took_s = ras_ask.ask("127.0.0.1", 28028, lines, 15.0)
        except OSError as error:
            seen.append(f"RAS {kind}: {error}")
            return
        (out / f"ras-{name}.{kind}").write_bytes(report)
        seen.append(f"RAS {kind}: {len(report)} bytes in {took_s:.2f} s")


def dumps(folder: Path, out: Path, name: str, world: int, seen: list[str]) -> None:
    """One byte into each rank's pipe, then the dumps."""
    for rank in range(world):
        try:
            pipe = os.open(f"{folder}/fr{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, b"1")
            os.close(pipe)
        except OSError as error:
            seen.append(f"flight recorder of rank {rank}: {error}")
    time.sleep(4)
    for rank in range(world):
        path = folder / f"dump{rank}"
        if not path.exists():
            seen.append(f"flight recorder of rank {rank}: no dump")
            continue
        raw = path.read_bytes()
        with gzip.open(out / f"fr-{name}-rank{rank}.pickle.gz", "wb") as file:
            file.write(raw)
        found = pickle.loads(raw)  # noqa: S301 - our own job's
        states = [entry.get("state") for entry in found.get("entries", [])]
        seen.append(f"flight recorder of rank {rank}: {len(raw)} bytes, {len(states)} entries, last states {states[-4:]}")


def keep(name: str, folder: Path, out: Path) -> dict[str, Any]:
    with gzip.open(out / f"{name}.log.gz", "wb") as file:
        for log in sorted(folder.glob("rank-*.log")):
            raw = log.read_bytes()
            file.write(f"==== {log.name}\n".encode() + (raw if len(raw) < 400_000 else raw[:200_000] + b"\n...\n" + raw[-200_000:]))
    files = [str(path) for path in sorted(folder.glob("*.twrec"))]
    if not files:
        return {}
    with gzip.open(out / f"{name}.rows.gz", "wt") as file:
        file.writelines(line + "\n" for line in twrec_read.packed(files))
    found = twrec_read.sums(files)
    joined = found.pop("joined")
    return {"files": found, "joined": joined[:400]}


def main() -> int:
    if "--list" in sys.argv or len(sys.argv) < 3:
        for plan, jobs in PLANS.items():
            print(plan, sum(one["limit"] for one in jobs), "s at most:", " ".join(one["name"] for one in jobs))
        return 0
    out = Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    wanted = set(sys.argv[3:])
    results = []
    for number, one in enumerate(PLANS[sys.argv[1]]):
        if wanted and one["name"] not in wanted:
            continue
        try:
            result = run(one, out, 29510 + number)
        except Exception as error:  # noqa: BLE001 - the next experiment must run
            result = {"name": one["name"], "failed": f"{type(error).__name__}: {error}"}
        results.append(result)
        print(json.dumps({key: value for key, value in result.items() if key != "recorded"}), flush=True)
        (out / "summary.json").write_text(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
