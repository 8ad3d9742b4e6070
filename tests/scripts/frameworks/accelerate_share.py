"""A loop around what `Accelerator.prepare` returns that takes part in rebalancing, as docs/training_loops.md says."""

import little
import torch
from accelerate import Accelerator
from safetensors.torch import save_file

from trainwarden import hook


def main() -> None:
    args = little.options(__doc__)
    accelerator = Accelerator(cpu=True)
    model = little.Model()
    rows = little.Rows(args.steps * args.micro_batches * little.BATCH)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-2))
    share = hook.TrainingShare(args.micro_batches, model)
    for step in range(args.steps):
        for micro in share.step(step):
            first = (step * args.micro_batches + micro.index) * little.BATCH
            batch = {
                "inputs": rows.inputs[first : first + little.BATCH],
                "labels": rows.inputs[first : first + little.BATCH].sum(1, keepdim=True),
            }
            with micro.sync():
                accelerator.backward(model(**batch)["loss"] * micro.weight)
        optimizer.step()
        optimizer.zero_grad()
    if accelerator.is_main_process:
        save_file(accelerator.unwrap_model(model).state_dict(), f"{args.folder}/model.safetensors")
    share.close()
    accelerator.print(f"made {args.steps} steps", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
