"""Hugging Face Accelerate, unchanged, on two workers: gradient accumulation in bfloat16.

Either line runs the same ``train`` on two ranks; the first one on a Spark cluster where a session is active:

    python examples/distributed/accelerated.py
    torchrun --nproc-per-node 2 examples/distributed/accelerated.py
"""

from __future__ import annotations

import os

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import maggy_like


def train() -> float:
    """Train a network on handwritten digits; returns the held-out accuracy."""
    cuda = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])  # one device each
    accelerator = Accelerator(gradient_accumulation_steps=2, mixed_precision="bf16", cpu=not cuda)

    set_seed(0)
    images, labels = load_digits(return_X_y=True)
    digits = TensorDataset(torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels))
    train_set, test_set = random_split(digits, [0.75, 0.25])
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    model, optimizer, train_loader, test_loader = accelerator.prepare(
        model,
        torch.optim.AdamW(model.parameters(), lr=3e-3),
        DataLoader(train_set, batch_size=8, shuffle=True),
        DataLoader(test_set, batch_size=128),
    )

    accuracy = 0.0
    for epoch in range(1, 11):
        model.train()
        for x, y in train_loader:
            with accelerator.accumulate(model):
                accelerator.backward(nn.functional.cross_entropy(model(x), y))
                optimizer.step()
                optimizer.zero_grad()

        model.eval()
        right = 0
        with torch.no_grad():
            for x, y in test_loader:
                right += int(accelerator.gather_for_metrics(model(x).argmax(1) == y).sum())
        accuracy = right / len(test_set)
        accelerator.print(f"epoch {epoch}: accuracy {accuracy:.3f}")

    model, optimizer, train_loader, test_loader = accelerator.free_memory(model, optimizer, train_loader, test_loader)
    accelerator.end_training()
    return accuracy


if __name__ == "__main__":
    if "RANK" in os.environ:  # torchrun started this process as one of its ranks
        train()
    else:
        accuracy = maggy_like.run(train, workers=2)
        print(f"held-out accuracy {accuracy:.3f}")
