"""ASHA over a small torch network on scikit-learn's handwritten digits: ``make demo``.

The training function saves and restores its state, so ASHA pauses trials at each rung and continues
only the best of them. The search runs in processes of this machine and takes about a minute.

For your own training, change ``train`` and ``SPACE``.
"""

from __future__ import annotations

import argparse
from typing import Any

from maggy_like import Float, Integer, Reporter, lagom


def train(lr: float, units: int, dropout: float, weight_decay: float, batch_size: int, reporter: Reporter) -> None:
    """Train a network on digits; one step is one pass over the data."""
    import torch
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    split = train_test_split(images / 16.0, labels, test_size=0.25, random_state=0, stratify=labels)
    x_train, x_test = (torch.tensor(part, dtype=torch.float32) for part in split[:2])
    y_train, y_test = (torch.tensor(part, dtype=torch.long) for part in split[2:])

    model = torch.nn.Sequential(
        torch.nn.Linear(64, units),
        torch.nn.ReLU(),
        torch.nn.Dropout(dropout),
        torch.nn.Linear(units, units),
        torch.nn.ReLU(),
        torch.nn.Linear(units, 10),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
    start = 1
    state: dict[str, Any] | None = reporter.restore()
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start = state["step"] + 1

    for step in range(start, reporter.budget + 1):
        model.train()
        for batch in torch.randperm(len(x_train)).split(batch_size):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x_train[batch]), y_train[batch]).backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = (model(x_test).argmax(1) == y_test).float().mean().item()
        reporter.checkpoint({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step})
        reporter.report(accuracy=accuracy, step=step)
    print(f"accuracy {accuracy:.4f} after {reporter.budget} passes with lr={lr:.4g}, units={units}")


SPACE = {
    "lr": Float(3e-4, 3e-2, log=True),
    "units": Integer(32, 512, log=True),
    "dropout": Float(0.0, 0.6),
    "weight_decay": Float(1e-6, 1e-1, log=True),
    "batch_size": [16, 32, 64],
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Search for a good network on handwritten digits.")
    parser.add_argument("--trials", type=int, default=40, help="how many configurations to try (default: %(default)s)")
    n_trials = parser.parse_args().trials
    print(
        f"Searching {n_trials} configurations of a network on handwritten digits; ASHA continues only the best of them."
    )
    result = lagom(train, SPACE, optimizer="asha", metric="accuracy", n_trials=n_trials, max_budget=27, seed=1)
    best = result.best_trial
    assert best is not None
    print(f"best configuration: {result.best_config}")
    print(f"accuracy on held-out digits: {result.best_value:.4f} (trial {best.id}, after {result.best_step} passes)")
    print(f"journal, logs and checkpoints: {result.directory}")
