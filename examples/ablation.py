"""What is each part of a network worth? An ablation study on the breast cancer table, ten seeds per variant.

The study names the parts, and each variant is the training without one of them. With ``--spark``, the table is a Spark
DataFrame, and the variants run on Spark. Otherwise the table is one of pandas, and they run in local processes:

    pip install "maggy_like[java,examples]"
    python examples/ablation.py [--spark] [--repeats 10]

For your own model and data, change ``Network``, ``train``, and the parts of the study in ``main``.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

from maggy_like import AblationStudy, ablate, spark_session


class Residual(nn.Module):
    """x + inner(x); where ``inner`` gives zeros, it is x."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Add what the inner part says to what is there."""
        added: torch.Tensor = x + self.inner(x)
        return added


class Network(nn.Module):
    """A normalised input, a residual block, two classes."""

    def __init__(self, n_features: int, width: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(n_features)
        self.entry = nn.Linear(n_features, width)
        self.block = Residual(width, dropout)
        self.exit = nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Score the two classes."""
        scores: torch.Tensor = self.exit(self.block(self.entry(self.norm(x))))
        return scores


def train(model: nn.Module, features: list[str], source: str, seed: int, weight_decay: float = 1e-2) -> float:
    """Train the model of a variant on its features; returns the accuracy on held-out rows."""
    import pandas
    from sklearn.model_selection import train_test_split

    # Workers read only the columns of their variant, from the Parquet files that pandas or Spark wrote.
    table = pandas.read_parquet(source, columns=[*features, "target"]).sort_values([*features, "target"])
    x = torch.tensor(table[features].to_numpy(), dtype=torch.float32)
    y = torch.tensor(table["target"].to_numpy(), dtype=torch.long)
    # The same split for all seeds: what is found holds for these held-out rows. To split by `seed` asks for data like
    # these, and the splits overlap: then pass ablate(..., resampled=0.3 / 0.7), and more rows help, not more seeds.
    fit, held_out = train_test_split(range(len(y)), test_size=0.3, random_state=0, stratify=y)
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=weight_decay)
    for _ in range(20):
        for batch in torch.randperm(len(fit)).split(64):
            rows = torch.tensor(fit)[batch]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy: float = (model(x[held_out]).argmax(1) == y[held_out]).float().mean().item()
    return accuracy


def main(on_spark: bool, repeats: int) -> None:
    """Declare the study, run it, and show what it found."""
    table: Any = load_breast_cancer(as_frame=True).frame
    with tempfile.TemporaryDirectory() as directory:
        source = str(Path(directory) / "table.parquet")
        if on_spark:
            table = spark_session("local[2]").createDataFrame(table)
            table.write.parquet(source)
        else:
            table.to_parquet(source)
        study = (
            AblationStudy(
                model=Network,
                data=table,  # only its columns; no row travels with the study
                label="target",
                sample=torch.zeros(2, 30),  # all variants are run on it before anything starts
                config={"width": 32, "dropout": 0.2, "source": source},
            )
            .features(size=["*radius*", "*perimeter*", "*area*"], texture="*texture*")
            .modules("norm")
            .modules(residual="block.inner", replace="zero")
            .config(dropout=0.0, weight_decay=0.0)
        )
        engine = "spark" if on_spark else "local"
        # Chosen before any result: 0.02 is three of the 171 held-out rows.
        answer = ablate(train, study, metric="accuracy", repeats=repeats, negligible=0.02, workers=2, engine=engine)
    print(answer)
    report = Path(answer.result.directory, "ablation.html")
    answer.report(report)
    print(f"report: {report}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What is each part of a network worth?")
    parser.add_argument("--spark", action="store_true", help="keep the table in Spark, and run the variants there")
    parser.add_argument("--repeats", type=int, default=10, help="seeds of each variant (default: %(default)s)")
    options = parser.parse_args()
    main(options.spark, options.repeats)
