"""ParquetLoader in a gang of real processes: a rank is killed in mid-epoch, and the next attempt goes on."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from maggy_like import run
from maggy_like.ml import ParquetLoader

ROWS, BATCH, EPOCHS = 21, 4, 2
"""The last batch has one row, of which the second rank has none."""
KILLED = 8
"""Step, over both epochs, in which the second rank is killed, once."""


def train(data: str, seen: Path, *, reporter: Any) -> None:
    """Adds up the rows by a linear model's gradients, and writes down which rows this rank has got."""
    model, loader = nn.Linear(1, 1), ParquetLoader(data, ["row"], batch_size=BATCH, buffer_rows=4)
    model, loader = reporter.prepare(model, loader)
    if (state := reporter.restore()) is not None:
        loader.load_state_dict(state)
    rank, killed = os.environ["RANK"], seen / "killed"
    for epoch in range(loader.epoch, EPOCHS):
        loader.set_epoch(epoch)
        for batch in loader:
            state = loader.state_dict()
            step = state["epoch"] * len(loader) + state["step"]
            if step == KILLED and rank == "1" and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            model(batch["row"].float()[:, None]).sum().backward()
            rows = [] if reporter.is_stand_in else batch["row"].tolist()
            (seen / f"{step}-{rank}").write_text(json.dumps(rows))
            reporter.checkpoint(state)
            reporter.report(len(rows), step=step)


@pytest.mark.e2e
def test_a_rank_is_killed_in_mid_epoch_and_no_row_is_lost_or_repeated(tmp_path: Path) -> None:
    pq.write_table(pa.table({"row": torch.arange(ROWS).numpy()}), tmp_path / "rows.parquet")  # one row group
    seen = tmp_path / "seen"
    seen.mkdir()
    run(partial(train, str(tmp_path / "rows.parquet"), seen), workers=2, directory=tmp_path / "runs", progress=False)
    assert (seen / "killed").exists()
    steps = -(-ROWS // BATCH)
    for first in (1, 1 + steps):
        shares = {
            (step, rank): json.loads((seen / f"{step}-{rank}").read_text())
            for step in range(first, first + steps)
            for rank in range(2)
        }
        assert sorted(row for rows in shares.values() for row in rows) == list(range(ROWS))
        assert shares[first + steps - 1, 1] == []
