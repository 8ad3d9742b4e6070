"""A loop by hand around accelerate: `accumulate`, `backward`, and `save_state`."""

import little
import torch
from accelerate import Accelerator


def main() -> None:
    args = little.options(__doc__)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.micro_batches)
    model = little.Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = little.Rows(args.steps * args.micro_batches * little.BATCH * accelerator.num_processes)
    loader = torch.utils.data.DataLoader(rows, batch_size=little.BATCH)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    made = 0
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            made += 1
            if made % args.pause_every == 0:
                accelerator.save_state(f"{args.folder}/step-{made}")
    accelerator.print(f"made {made} steps", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main()
