"""The training that follows a search, or stands alone, in all displays."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from rich.console import Console

from maggy_like.display import Snapshot, progress
from maggy_like.display import notebook as html
from maggy_like.display.base import LogLine, TrainingLine, _draw_training
from maggy_like.display.plain import PlainDisplay
from maggy_like.display.terminal import TerminalDisplay
from maggy_like.protocol.endings import Ending
from optimizers.core.events import AttemptEnded, AttemptStarted, Measured, TrialCreated
from optimizers.core.study import Study
from optimizers.core.trial import Failure, FailureKind, TrialState
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.space.domains import Float

Snap = Callable[..., Snapshot]
RUNNING = TrainingLine(TrialState.RUNNING, workers=2, step=5, budget=20, value=0.97, seconds=10.0)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (None, ""),
        (TrainingLine(TrialState.PENDING, 0, 0, 20, None, 0.0), "training: waiting for workers"),
        (TrainingLine(TrialState.RUNNING, 1, 0, 20, None, 1.0), "training on 1 worker"),
        (RUNNING, "training on 2 workers: step 5/20, accuracy 0.97"),
        (TrainingLine(TrialState.RUNNING, 2, 5, 0, None, 1.0), "training on 2 workers: step 5"),
        (TrainingLine(TrialState.COMPLETED, 2, 20, 20, 0.98, 9.0), "trained on 2 workers: step 20/20, accuracy 0.98"),
        (
            TrainingLine(TrialState.RUNNING, 1, 2, 0, 0.5, 1.0, (("loss", 0.25), ("a\nb", 3.0))),
            "training on 1 worker: step 2, accuracy 0.5, loss 0.25, a b 3",
        ),
        (TrainingLine(TrialState.FAILED, 2, 5, 20, None, 9.0), "training failed on 2 workers: step 5/20"),
    ],
)
def test_the_training_in_words(snap: Snap, line: TrainingLine | None, words: str) -> None:
    assert progress.training(snap(objective="accuracy", training=line)) == words


def test_the_time_left_is_that_of_the_training(snap: Snap) -> None:
    now = snap(training=RUNNING)
    assert progress.remaining(now, now) == 30.0
    unbounded = snap(training=TrainingLine(TrialState.RUNNING, 2, 5, 0, None, 10.0))
    assert progress.remaining(unbounded, unbounded) is None
    waiting = snap(training=TrainingLine(TrialState.PENDING, 2, 5, 20, None, 10.0))  # its attempt was lost
    assert progress.remaining(waiting, waiting) is None


def test_a_training_alone_says_nothing_of_a_search(snap: Snap, capsys: pytest.CaptureFixture[str]) -> None:
    alone = snap(name="fit", optimizer="training", n_trials=0, counts={}, best_trial=None, training=RUNNING)
    display = PlainDisplay()
    display.start(alone)
    display.finish(alone, [LogLine(0, "hello", rank=1)])
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].startswith("fit: training, files in ")
    assert "[trial 0 rank 1] hello" in shown
    assert "trials" not in shown
    assert "no result yet" not in progress.status(alone, alone)
    page = html.page(alone, alone, [], [], 0)
    assert "training on 2 workers: step 5/20" in page
    assert "trials" not in page


@pytest.mark.parametrize("n_trials", [0, 16])
def test_the_terminal_has_a_line_and_a_bar_for_it(snap: Snap, n_trials: int) -> None:
    console = Console(width=80, height=30, file=io.StringIO())
    display = TerminalDisplay(console)
    display.start(snap(n_trials=n_trials, training=RUNNING))
    console.print(display._region(snap(n_trials=n_trials, training=RUNNING)))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "training on 2 workers: step 5/20" in shown
    assert ("━" * 20 + "─" * 60) in shown


@pytest.mark.parametrize("ending", [Ending.COMPLETED, Ending.ERROR])
def test_a_run_whose_training_failed_is_not_said_to_be_completed(snap: Snap, ending: Ending) -> None:
    failed = TrainingLine(TrialState.FAILED, 2, 5, 20, None, 9.0)
    over = snap(phase=ending, training=failed)
    words = "training failed" if ending is Ending.COMPLETED else "error"
    assert progress.summary(over)[0].startswith(f"digits: {words} after 0:30")
    assert f"<b>{words}</b>" in html.page(over, over, [], [], 0)


def test_the_seconds_are_those_of_all_attempts() -> None:
    study = Study({"x": Float(0, 1)}, RandomSearch(), n_trials=0)
    study.apply(TrialCreated(0, {"x": 0.5}, None, training=20))
    study.apply(AttemptStarted(0, 1, 0, 20, 100.0, {"x": 0.5}, training=20))
    study.apply(Measured(0, 1, "loss", {"loss": ([8], [0.5])}))
    study.apply(AttemptEnded(0, 1, TrialState.PENDING, 108.0, failure=Failure(FailureKind.SIGNAL, "killed")))
    line = _draw_training(study, 150.0)
    assert line is not None
    assert (line.state, line.step, line.seconds) == (TrialState.PENDING, 8, 8.0)
    study.apply(AttemptStarted(0, 2, 0, 20, 200.0, {"x": 0.5}, training=20))
    line = _draw_training(study, 202.0)
    assert line is not None
    assert (line.state, line.seconds) == (TrialState.RUNNING, 10.0)
