"""Lightning's Trainer with DDP: gradient accumulation, validation and checkpoints as it does them."""

import lightning
import little
import torch
from lightning.pytorch.callbacks import ModelCheckpoint


class Module(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = little.Model()

    def training_step(self, batch: dict[str, torch.Tensor], _place: int) -> torch.Tensor:
        return self.model(**batch)["loss"]

    def validation_step(self, batch: dict[str, torch.Tensor], _place: int) -> None:
        self.log("loss", self.model(**batch)["loss"], sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    args = little.options(__doc__)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_steps=args.steps,
        accumulate_grad_batches=args.micro_batches,
        val_check_interval=args.pause_every * args.micro_batches,
        callbacks=[ModelCheckpoint(args.folder, every_n_train_steps=args.pause_every, save_top_k=-1)],
        enable_progress_bar=False,
        logger=False,
    )
    count = args.steps * args.micro_batches * little.BATCH * 2
    rows, others = (torch.utils.data.DataLoader(little.Rows(size), batch_size=little.BATCH) for size in (count, 256))
    trainer.fit(Module(), rows, others)
    if trainer.is_global_zero:
        print(f"made {trainer.global_step} steps", flush=True)


if __name__ == "__main__":
    main()
