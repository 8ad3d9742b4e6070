"""DeepSpeed's engine on gloo: ZeRO in the stage asked for by --stage, gradient accumulation, `save_checkpoint`."""

import deepspeed
import little
import torch


def main() -> None:
    args = little.options(__doc__, stage=("1", "2", "3"))
    deepspeed.init_distributed("gloo", verbose=False)
    model = little.Model()
    engine, *_others = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        config={
            "train_micro_batch_size_per_gpu": little.BATCH,
            "gradient_accumulation_steps": args.micro_batches,
            "zero_optimization": {"stage": int(args.stage)},
            "zero_allow_untested_optimizer": True,
        },
    )
    rows = little.Rows(args.steps * args.micro_batches * little.BATCH)
    for batch in torch.utils.data.DataLoader(rows, batch_size=little.BATCH):
        engine.backward(engine(**batch)["loss"])
        engine.step()
        if engine.is_gradient_accumulation_boundary() and engine.global_steps % args.pause_every == 0:
            engine.save_checkpoint(args.folder)
    if engine.global_rank == 0:
        print(f"made {engine.global_steps} steps", flush=True)


if __name__ == "__main__":
    main()
