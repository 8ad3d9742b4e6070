"""Makes a GPU job fail in the usual ways and keeps all it says; each in its own short process.

    python failures.py OUT        writes OUT/NAME.txt: exit code, stdout and stderr, whole

Apache-2.0, the trainwarden project.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HEAD = "import torch\nx = torch.zeros(1024, device='cuda')\n"
BODIES = {
    "oom": HEAD + "keep = []\nwhile True:\n    keep.append(torch.empty(1 << 34, dtype=torch.uint8, device='cuda'))\n",
    "assert": HEAD + "index = torch.tensor([5000], device='cuda')\nprint(x[index])\ntorch.cuda.synchronize()\n",
    "illegal_access": HEAD + """
import ctypes
from torch.utils import _triton  # noqa
import triton, triton.language as tl
@triton.jit
def store(pointer, offset):
    tl.store(pointer + offset, 1.0)
store[(1,)](x, 1 << 40)
torch.cuda.synchronize()
""",
    "linalg": HEAD + "print(torch.linalg.cholesky(torch.zeros(4, 4, device='cuda')))\n",
}
RANKED = """
import os, torch, torch.distributed as dist
rank = int(os.environ['RANK']); os.environ['NCCL_HOSTID'] = f'host{rank}'
torch.cuda.set_device(0); dist.init_process_group('nccl', device_id=torch.device('cuda', 0))
t = torch.ones(1024, device='cuda'); dist.all_reduce(t); torch.cuda.synchronize()
if rank == 1:
    exec(open(os.environ['BODY']).read())
dist.all_reduce(t); torch.cuda.synchronize()
"""


def main() -> int:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    ranked = out / "ranked.py"
    ranked.write_text(RANKED)
    for name, body in BODIES.items():
        script = out / f"{name}.py"
        script.write_text(body)
        keep(out / f"{name}.txt", [sys.executable, str(script)], {}, 60)
        keep(out / f"torchrun_{name}.txt",
             [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--master-port=29733", str(ranked)],
             {"BODY": str(script), "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}, 60)  # fmt: skip
    return 0


def keep(path: Path, command: list[str], env: dict[str, str], limit: int) -> None:
    import os

    try:
        done = subprocess.run(command, env=os.environ | env, capture_output=True, timeout=limit, check=False)
        code, text = done.returncode, done.stdout + b"\n---- stderr\n" + done.stderr
    except subprocess.TimeoutExpired as error:
        code, text = -999, (error.stdout or b"") + b"\n---- stderr\n" + (error.stderr or b"")
    path.write_bytes(f"exit {code}\n---- stdout\n".encode() + text)
    print(path.name, code, len(text), flush=True)


if __name__ == "__main__":
    sys.exit(main())
