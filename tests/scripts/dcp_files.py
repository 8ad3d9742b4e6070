"""One rank that saves a sharded tensor with torch.distributed.checkpoint, or loads it over any number of ranks."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

what, step, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.distributed.init_process_group("gloo")
mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
whole = torch.arange(600_000, dtype=torch.float32).reshape(6000, 100) + step
state = {"w": distribute_tensor(whole if what != "load" else torch.zeros_like(whole), mesh, [Shard(0)]), "step": step}
if what == "save":
    dcp.save(state, checkpoint_id=path)
elif what == "async":
    dcp.async_save(state, checkpoint_id=path).result()
else:
    state["step"] = 0
    dcp.load(state, checkpoint_id=path)
    assert torch.equal(state["w"].full_tensor(), whole)
    assert state["step"] == step
torch.distributed.barrier()
os._exit(0)
