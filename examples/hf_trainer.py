"""Hugging Face's Trainer in a job that trainwarden rebalances and pauses: `SharingTrainer` in the place of `Trainer`.

    torchrun --nproc-per-node 2 examples/hf_trainer.py --steps 40
    trainwarden launch --nproc 2 --checkpoints ckpt -- python examples/hf_trainer.py --steps 40 --folder ckpt

The Trainer counts micro-batches in the same way on every rank, so unequal numbers would shift its optimizer steps.
Here one of its batches is a whole optimizer step: the places in the data set of all micro-batches of all ranks, of
which each rank reads and computes its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler
from transformers import Trainer, TrainingArguments

from trainwarden import hook

WIDTH = 32


class SharingTrainer(Trainer):  # type: ignore[misc]  # transformers is not installed where types are checked
    """A Trainer whose ranks may run unequal numbers of micro-batches, with the loss and the weights of equal ones.

    Parameters
    ----------
    micro_batches : int
        Of one optimizer step, over all ranks; each has ``per_device_train_batch_size`` rows. The plain Trainer makes
        ranks times ``gradient_accumulation_steps``; that setting stays 1 here.

    Notes
    -----
    A loss must be a mean over its micro-batch. Rows are read as they are needed, not ahead by workers. Rows that do not
    fill an optimizer step are left out at the end of an epoch.
    """

    def __init__(self, *args: Any, micro_batches: int, **settings: Any) -> None:
        super().__init__(*args, **settings)
        if self.args.gradient_accumulation_steps != 1:
            raise ValueError("micro_batches counts all of a step's: gradient_accumulation_steps has to stay 1")
        self.micro_batches = micro_batches
        self.share: hook.TrainingShare | None = None

    def get_train_dataloader(self) -> DataLoader[Any]:
        """For every optimizer step the places of its rows, the same on all ranks."""
        drawn = RandomSampler(self.train_dataset, generator=torch.Generator().manual_seed(self.args.seed))
        steps = BatchSampler(drawn, self.micro_batches * self.args.per_device_train_batch_size, drop_last=True)
        return DataLoader(range(len(self.train_dataset)), batch_sampler=steps, collate_fn=list)  # type: ignore[arg-type]

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> tuple[list[Any], None]:
        """One optimizer step's places; nothing in them is counted, as losses are means."""
        return [next(epoch_iterator)], None

    def training_step(self, model: nn.Module, inputs: list[int], num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward pass of this rank's micro-batches; its part of the mean loss."""
        if self.share is None:
            self.share = hook.TrainingShare(self.micro_batches, model)
        model.train()
        size = self.args.per_device_train_batch_size
        total = torch.zeros((), device=self.args.device)
        for micro in self.share.step(self.state.global_step):
            rows = [self.train_dataset[place] for place in inputs[micro.index * size : (micro.index + 1) * size]]
            batch = self._prepare_inputs(self.data_collator(rows))
            with micro.sync():
                with self.compute_loss_context_manager():
                    loss = self.compute_loss(model, batch) * micro.weight
                self.accelerator.backward(loss)
            total += loss.detach()
        return total

    def train(self, *args: Any, **settings: Any) -> Any:
        """As the Trainer's; what goes on between ranks is over when it ends."""
        try:
            return super().train(*args, **settings)
        finally:
            if self.share is not None:
                self.share.close()


class Rows(Dataset[dict[str, Tensor]]):
    """Random inputs with the sum of each as its label."""

    def __init__(self, count: int) -> None:
        self.inputs = torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"inputs": self.inputs[place], "labels": self.inputs[place].sum(0, keepdim=True)}


class Model(nn.Module):
    """A perceptron that returns its loss, as the models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        outputs = self.layers(inputs)
        return {"loss": (outputs - labels).square().mean(), "outputs": outputs}


def main() -> None:
    """Train the little model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps")
    parser.add_argument("--micro-batches", type=int, default=8, help="of a step, over all ranks")
    parser.add_argument("--folder", default="hf-trainer", help="where checkpoints go")
    args = parser.parse_args()
    torch.manual_seed(0)
    settings = TrainingArguments(
        output_dir=args.folder, max_steps=args.steps, per_device_train_batch_size=8, save_steps=10, logging_steps=10,
        optim="sgd", learning_rate=1e-2, use_cpu=not torch.cuda.is_available(), report_to=[], disable_tqdm=True,
    )  # fmt: skip
    rows = Rows(8 * args.micro_batches * (args.steps // 2))
    trainer = SharingTrainer(Model(), settings, train_dataset=rows, micro_batches=args.micro_batches)
    trainer.train()
    trainer.save_model(args.folder)
    print(f"made {trainer.state.global_step} steps", flush=True)


if __name__ == "__main__":
    main()
