"""Hugging Face Trainer: gradient accumulation, evaluation and checkpoints as it does them."""

import little
from transformers import Trainer, TrainingArguments


def main() -> None:
    args = little.options(__doc__)
    settings = TrainingArguments(
        output_dir=args.folder,
        max_steps=args.steps,
        per_device_train_batch_size=little.BATCH,
        gradient_accumulation_steps=args.micro_batches,
        eval_strategy="steps",
        eval_steps=args.pause_every,
        save_steps=args.pause_every,
        logging_steps=args.pause_every,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    rows = little.Rows(args.steps * args.micro_batches * little.BATCH * 2)
    trainer = Trainer(little.Model(), settings, train_dataset=rows, eval_dataset=little.Rows(256))
    trainer.train()
    print(f"made {trainer.state.global_step} steps", flush=True)


if __name__ == "__main__":
    main()
