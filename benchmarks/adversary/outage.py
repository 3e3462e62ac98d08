"""A store that refuses in mid-search, beside the same search over one that does not.

Where the store's folder was, there is a file for a while: what is saved or restored then is refused by the kernel.
"""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path
from typing import Any

from maggy_like import Float, Reporter, Result, lagom

TRIALS, STEPS = 60, 9
SECONDS, QUICK = 25.0, 8.0


def train(x: float, reporter: Reporter) -> None:
    """Save and report each step."""
    for step in range((reporter.restore() or 0) + 1, reporter.budget + 1):
        reporter.checkpoint(step)
        reporter.report(score=x * step, step=step)


class Store:
    """A store that a link points to, or, while it refuses, does not.

    Args:
        folder: Where to make it.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "store"
        self._targets = folder / "disk", folder / "full"
        self._targets[0].mkdir()
        self._targets[1].touch()
        self.serve(True)

    def serve(self, serves: bool) -> None:
        """Begin or cease to refuse, from one moment to the next."""
        link = self.path.with_name("link")
        link.symlink_to(self._targets[not serves])
        os.replace(link, self.path)


def measure(quick: bool) -> dict[str, float]:
    """How many trials a store cost that refused for a while, and how much of the best value."""
    seconds = QUICK if quick else SECONDS
    with tempfile.TemporaryDirectory() as folder:
        plain = search(Path(folder), "plain", 0.0)
        cut = search(Path(folder), "cut", seconds)
    return {
        "outage.seconds": seconds,
        "outage.failed": sum(trial.state == "failed" for trial in cut.trials),
        "outage.completed": sum(trial.state == "completed" for trial in cut.trials),
        "outage.best_ratio": (cut.best_value or 0.0) / (plain.best_value or 1.0),
        "outage.late_s": cut.seconds - seconds - plain.seconds,
    }


def search(folder: Path, name: str, seconds: float) -> Result:
    """A search; once a third of its trials are through, the store refuses for some seconds."""
    (folder / name).mkdir()
    store = Store(folder / name)
    ended = 0

    def refuse_in_the_middle(event: Any) -> None:
        nonlocal ended
        ended += type(event).__name__ == "AttemptEnded"
        if ended == TRIALS // 3 and seconds:
            ended += 1  # once
            store.serve(False)
            threading.Timer(seconds, store.serve, [True]).start()

    return lagom(
        train, {"x": Float(0, 1)}, optimizer="random", n_trials=TRIALS, max_budget=STEPS, workers=2, engine="local",
        directory=folder / name, name=name, store=store.path, callbacks=[refuse_in_the_middle], progress=False, seed=0,
        direction="max",
    )  # fmt: skip
