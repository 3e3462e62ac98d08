"""Fine-tune a language model with LoRA: transformers' Trainer and adapters of peft.

The model is small and initialized at random, and the sentences are synthetic, so nothing is downloaded. Each is a row
of tokens whose class is the parity of a token. Only the adapters and the classifier are trained and saved.

    pip install "maggy_like[transformers]" peft
    python examples/lora.py

For your own model, change ``make_model`` (``AutoModelForSequenceClassification.from_pretrained``) and ``load``.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from typing import Any

import torch
from peft import LoraConfig, TaskType, get_peft_model
from transformers import GPT2Config, GPT2ForSequenceClassification, Trainer, TrainingArguments, set_seed

from maggy_like import Choice, Float, Reporter, lagom
from maggy_like.callbacks import TransformersReport

warnings.filterwarnings("ignore", message=".*is_gradient_checkpointing")  # of peft 0.21 with transformers 5

TOKENS, LENGTH = 32, 12
SPACE = {"learning_rate": Float(1e-4, 3e-2, log=True), "rank": Choice([2, 4, 8, 16]), "lora_dropout": Float(0.0, 0.3)}


def make_model(rank: int, lora_dropout: float) -> Any:
    """Return the model with adapters."""
    set_seed(0)  # stands for the weights of a trained model
    config = GPT2Config(
        vocab_size=TOKENS,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=2,
        num_labels=2,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
    )
    adapters = LoraConfig(
        task_type=TaskType.SEQ_CLS,
        r=rank,
        lora_alpha=2 * rank,
        lora_dropout=lora_dropout,
        target_modules=["c_attn"],
        fan_in_fan_out=True,  # as GPT-2 stores its weights
    )
    return get_peft_model(GPT2ForSequenceClassification(config), adapters)


def load(rows: int, seed: int) -> list[dict[str, Any]]:
    """Return sentences with their classes."""
    tokens = torch.randint(1, TOKENS, (rows, LENGTH), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": row, "labels": row[-1] % 2} for row in tokens]


def accuracy(predicted: Any) -> dict[str, float]:
    """Return the share of right classes."""
    return {"accuracy": float((predicted.predictions.argmax(-1) == predicted.label_ids).mean())}


def train(reporter: Reporter, learning_rate: float, **config: Any) -> None:
    """Fine-tune the adapters. One step is an epoch and its evaluation."""
    report = TransformersReport(reporter)
    with tempfile.TemporaryDirectory() as directory:
        arguments = TrainingArguments(
            directory,
            num_train_epochs=reporter.budget,
            learning_rate=learning_rate,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=256,
            eval_strategy="epoch",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=torch.cuda.is_available(),
        )
        trainer = Trainer(
            make_model(**config),
            arguments,
            train_dataset=load(512, 0),
            eval_dataset=load(256, 1),
            compute_metrics=accuracy,
            callbacks=[report],
        )
        trainer.train(resume_from_checkpoint=report.resume_from_checkpoint)


def main() -> None:
    """Search for the rank of the adapters and the learning rate."""
    parser = argparse.ArgumentParser(description="Tune a fine-tuning with LoRA.")
    parser.add_argument("--trials", type=int, default=12, help="configurations to try (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=9, help="epochs at most (default: %(default)s)")
    given = parser.parse_args()
    result = lagom(
        train, SPACE, optimizer="asha", metric="eval_accuracy", n_trials=given.trials, max_budget=given.epochs, seed=1
    )
    print(result)
    config = {name: value for name, value in (result.best_config or {}).items() if name != "learning_rate"}
    model = make_model(**config)
    trained = sum(weights.numel() for weights in model.parameters() if weights.requires_grad)
    whole = sum(weights.numel() for weights in model.parameters())
    print(f"best accuracy: {result.best_value:.3f}, with {trained:,} trained weights of {whole:,}")


if __name__ == "__main__":
    main()
