"""Megatron-core's own schedules on two ranks and gloo, with freed outputs and its own call of the engine.

Two stages of a pipeline, or --shape tensor: one model of identical layers, each in two halves (tensor parallelism).

Schedule and point-to-point code make their tensors on CUDA; without CUDA they are made on the CPU instead.
"""

from collections.abc import Iterator
from typing import Any

import little
import torch
from megatron.core import parallel_state, tensor_parallel
from megatron.core.enums import ModelType
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from torch import nn
from torch.overrides import TorchFunctionMode

LAYERS = 48


class OnCpu(TorchFunctionMode):
    """What is to be made on CUDA is made on the CPU."""

    def __torch_function__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


class Halves(nn.Module):
    """A layer of which each rank has one half, as in a transformer's perceptron."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        common = {"config": config, "init_method": nn.init.xavier_normal_, "bias": False, "skip_bias_add": False}
        self.into = tensor_parallel.ColumnParallelLinear(little.WIDTH, 64, gather_output=False, **common)
        self.out_of = tensor_parallel.RowParallelLinear(64, little.WIDTH, input_is_parallel=True, **common)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs + self.out_of(torch.tanh(self.into(inputs)[0]))[0]


class Stage(nn.Module):
    """The layers of this rank; a second stage takes its inputs from the first, all others from the data."""

    def __init__(self, config: TransformerConfig, layers: list[nn.Module]) -> None:
        super().__init__()
        self.config = config
        self.model_type = ModelType.encoder_or_decoder
        self.layers = nn.Sequential(*layers)
        self.received: torch.Tensor | None = None

    def set_input_tensor(self, received: list[torch.Tensor | None] | torch.Tensor | None) -> None:
        self.received = received[0] if isinstance(received, list) else received

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs if self.received is None else self.received)


def forward_step(batches: Iterator[torch.Tensor], stage: Stage) -> tuple[torch.Tensor, Any]:
    outputs = stage(next(batches))
    return outputs, lambda tensor: (tensor.square().mean(), {"loss": tensor.detach().mean()})


def main() -> None:
    args = little.options(__doc__, shape=("pipeline", "tensor"))
    stages, halves = (2, 1) if args.shape == "pipeline" else (1, 2)
    torch.cuda.current_device = lambda: "cpu"
    torch.distributed.init_process_group("gloo")
    parallel_state.initialize_model_parallel(halves, stages)
    config = TransformerConfig(
        num_layers=LAYERS,
        hidden_size=little.WIDTH,
        num_attention_heads=halves,
        pipeline_model_parallel_size=stages,
        tensor_model_parallel_size=halves,
        use_cpu_initialization=True,
        pipeline_dtype=torch.float32,
        deallocate_pipeline_outputs=True,
        batch_p2p_sync=False,
    )

    def layer() -> nn.Module:
        return Halves(config) if halves > 1 else nn.Sequential(nn.Linear(little.WIDTH, little.WIDTH), nn.Tanh())

    stage = Stage(config, [layer() for _ in range(LAYERS // stages)])
    optimizer = torch.optim.AdamW(stage.parameters(), lr=1e-3)
    run = get_forward_backward_func()
    for step in range(args.steps):
        batches = (torch.randn(1, little.BATCH, little.WIDTH) for _ in range(args.micro_batches))
        with OnCpu():
            run(
                forward_step_func=forward_step,
                data_iterator=batches,
                model=stage,
                num_microbatches=args.micro_batches,
                seq_length=1,
                micro_batch_size=little.BATCH,
                forward_only=False,
            )
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % args.pause_every == 0:
            torch.save(stage.state_dict(), f"{args.folder}/{torch.distributed.get_rank()}-{step}.pt")
    if torch.distributed.get_rank() == 0:
        print(f"made {args.steps} steps", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
