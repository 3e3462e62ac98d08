"""Training functions and studies of the tests of whole ablations, in a module that the workers can import."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from torch import nn

from maggy_like import AblationStudy, Reporter, Variant

COLUMNS = ["A", "B", "C", "D", "y"]


class Network(nn.Module):
    """Two layers that may be replaced."""

    def __init__(self, n_features: int, dropout: float = 0.2, units: int = 4) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(n_features)
        self.entry = nn.Linear(n_features, units)
        self.inner = nn.Sequential(nn.Linear(units, units), nn.Dropout(dropout))
        self.spare = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All but the spare one."""
        entered: torch.Tensor = self.entry(self.norm(x))
        added: torch.Tensor = entered + self.inner(entered)
        return added


def table_study() -> AblationStudy:
    """Four columns and a label, no model."""
    return AblationStudy(data=COLUMNS, label="y").features("A", "B", "C", "D")


def network_study() -> AblationStudy:
    """Components of all kinds."""
    return (
        AblationStudy(model=Network, data=COLUMNS, label="y", sample=torch.zeros(2, 4), config={"augment": True})
        .features(pair=["C", "D"])
        .modules("norm")
        .modules(residual="inner", replace="zero")
        .config(dropout=0.0, augment=False)
        .custom("bias", lambda variant: variant.changed(model=without_bias))
    )


def without_bias(model: Network) -> Network:
    """The change of a custom component."""
    model.entry.bias = None
    return model


def tell(
    variant: Variant,
    model: Any,
    features: list[str],
    n_features: int,
    seed: int,
    augment: bool,
    config: dict[str, Any],
    reporter: Reporter,
) -> float:
    """Print all that was given; the value is the seed and the number of features."""
    shown = {
        "variant": variant.name,
        "dropout": variant.config["dropout"],
        "modules": {name: type(module).__name__ for name, module in model.named_children()},
        "bias": model.entry.bias is not None,
        "weight": model.entry.weight[0, 0].item(),
        "width": [model.entry.in_features, *model(torch.zeros(2, n_features)).shape],
        "dropout_used": [m.p for m in model.modules() if isinstance(m, nn.Dropout)],
        "features": features,
        "seed": seed,
        "augment": augment,
        "config": config,
        "budget": reporter.budget,
    }
    print(json.dumps(shown))
    reporter.report(score=0.0, step=1)
    return float(seed + n_features)


def worth(features: list[str], seed: int) -> float:
    """A is worth 1, B nothing, and C and D the same 1, either of which will do; the seed moves all alike by a lot."""
    kept = set(features)
    own = np.random.default_rng([seed, *map(ord, features)]).normal(0.0, 0.05)
    shared = np.random.default_rng(seed).normal(0.0, 10.0)
    return float(("A" in kept) + bool({"C", "D"} & kept) + shared + own)


def cost(features: list[str], seed: int) -> float:
    """The same as a loss."""
    return -worth(features, seed)


def fail_without_b(features: list[str], seed: int, every_seed: bool) -> float:
    """Fails without B, with seed 1 or with any."""
    if "B" not in features and (every_seed or seed == 1):
        raise ValueError("B is missed")
    return worth(features, seed)


def tuned(features: list[str], seed: int, x: float) -> float:
    """The best x is 0.2 with A and 0.8 without it, where the value is the same but for a little."""
    best, least = (0.2, 0.0) if "A" in features else (0.8, 0.01)
    own = np.random.default_rng([seed, len(features)]).normal(0.0, 0.001)
    return float(1.0 - least - (x - best) ** 2 + own)


def tuned_model(model: Any, seed: int, units: int) -> float:
    """What is searched reaches the factory."""
    return float(model.entry.out_features == units) + 0.0 * seed


def together(model: Any, seed: int, reporter: Reporter) -> float:
    """Whether all ranks have the same weights of the same variant, and train as one."""
    first = model.entry.weight.detach().sum().item()
    same = abs(reporter.average(weight=first)["weight"] - first) < 1e-9
    (model,) = [reporter.prepare(model)]
    model(torch.ones(4, 4)).sum().backward()
    return float(same and reporter.world_size == 2) + seed


def from_parquet(features: list[str], n_features: int, seed: int, source: str) -> float:
    """Reads the columns of its variant, which Spark wrote: A is 1 in each row, B is 2."""
    import pandas

    table = pandas.read_parquet(source, columns=features)
    assert list(table.columns) == features
    assert table.shape == (10, n_features)
    return float(table.sum(axis=1).mean() + 0.01 * np.random.default_rng([seed, n_features]).normal())


def weights_are_of_the_seed(model: Any, seed: int) -> bool:
    """Whether a model is what the factory makes with the seed."""
    torch.manual_seed(seed)
    return bool(torch.equal(Network(4).entry.weight, model.entry.weight))
