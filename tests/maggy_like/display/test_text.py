from __future__ import annotations

import io
import math
import unicodedata
from collections.abc import Callable
from html import unescape
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_profiles import examples
from rich.console import Console

from maggy_like.display import LogLine, SilentDisplay, Snapshot, WorkerLine, progress, text
from maggy_like.display import notebook as html
from maggy_like.display.base import TrainingLine, _draw_training
from maggy_like.display.plain import PlainDisplay
from maggy_like.display.progress import MAX_BESTS, Bests
from maggy_like.display.terminal import TerminalDisplay
from maggy_like.protocol.endings import Ending, Phase
from optimizers.core.events import AttemptEnded, AttemptStarted, Measured, TrialCreated
from optimizers.core.study import Study
from optimizers.core.trial import Failure, FailureKind, TrialState
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.space.domains import Float

Snap = Callable[..., Snapshot]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (math.nan, "-"),
        (math.inf, "-"),
        (-3.0, "0:00"),
        (0.999, "0:00"),
        (31.9, "0:31"),
        (3599, "59:59"),
        (3723, "1:02:03"),
        (2 * 86400 + 3 * 3600 + 5, "2d 03:00:05"),
    ],
)
def test_duration(seconds: float | None, shown: str) -> None:
    assert text.duration(seconds) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (0.0, "0"),
        (0.973, "0.973"),
        (0.97312345, "0.97312"),
        (1e-300, "1e-300"),
        (123456.7, "123457"),
        (-1e12, "-1e+12"),
        (1e308, "1e+308"),
    ],
)
def test_number(value: float | None, shown: str) -> None:
    assert text.number(value) == shown


@given(st.floats(-1e308, 1e308))
@settings(max_examples=examples(50))
def test_number_keeps_the_size(value: float) -> None:
    assert float(text.number(value)) == pytest.approx(value, rel=1e-4, abs=1e-320)


def test_config_text() -> None:
    config = {"lr": 0.0123456789, "units": 64, "act": "re\nlu", "bias": True, "decay": None}
    assert text.config_text(config) == "lr=0.012346, units=64, act=re lu, bias=True, decay=None"
    assert text.config_text({}) == ""


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("  indented  ", "  indented"),
        ("\x1b[1;32mgreen\x1b[0m \x1b]8;;http://x\x1b\\link\x1b]8;;\x07", "green link"),
        ("\x1b[2J\x1b[H\x1b(Btop\x1b", "top"),
        ("  0%|  |\r 50%|# |\r100%|##|\r", "100%|##|"),
        ("100%|##|\r        \r", "100%|##|"),
        ("\r\r", ""),
        ("a\x00b\x07c\x9b", "abc"),
        ("a\tb", "a   b"),
        ("abc\u202edef", "abcdef"),
        ("half \ud83d", "half ?"),
        ("[red]stays[/red] <b>", "[red]stays[/red] <b>"),
    ],
)
def test_clean(raw: str, shown: str) -> None:
    assert text.clean(raw) == shown


def test_lines_of_a_program_keep_their_tabs() -> None:
    assert text.readable([LogLine(7, "epoch\tloss\t\x1b[1m0.1")]) == [LogLine(7, "epoch\tloss\t0.1")]


def test_clean_cuts_long_lines() -> None:
    assert text.clean("x" * text.LINE_LIMIT) == "x" * text.LINE_LIMIT
    cut = text.clean("x" * 10 * text.LINE_LIMIT)
    assert len(cut) == text.LINE_LIMIT
    assert cut.endswith("…")


@given(st.text(st.characters(), max_size=60))
@settings(max_examples=examples(100))
def test_clean_leaves_nothing_that_a_terminal_obeys(raw: str) -> None:
    shown = text.clean(raw)
    assert not [character for character in shown if unicodedata.category(character) in ("Cc", "Cs")]
    assert text.clean(shown) == shown


def test_readable_gives_physical_lines() -> None:
    lines = [LogLine(7, "one\n\n  two\n"), LogLine(None, " \x1b[0m"), LogLine(None, "three")]
    shown = text.readable(lines)
    assert shown == [LogLine(7, "one"), LogLine(7, "  two"), LogLine(None, "three")]
    assert [text.prefix(line) for line in shown] == ["[trial 7] ", "[trial 7] ", ""]


def test_status(snap: Snap) -> None:
    first = snap(elapsed=0.0, counts={})
    assert progress.status(first, snap()) == (
        "[12/30] best 0.973 (trial 4) | 4 completed, 1 stopped, 6 paused, 1 failed, 3 running | 0:30, about 0:45 left"
    )
    begun = snap(elapsed=1.0, counts={}, phase=Phase.STARTING, best_trial=None, best_value=None, workers=())
    assert progress.status(first, begun) == "[0/30] starting workers | starting | 0:01"


def test_more_trials_than_are_asked_for_are_no_part_of_them(snap: Snap) -> None:
    assert progress.fraction(snap(n_trials=12)) == "12/12"
    assert progress.fraction(snap(n_trials=11)) == "15 trials"


def test_remaining(snap: Snap) -> None:
    none, all_ = {TrialState.RUNNING: 3}, {TrialState.COMPLETED: 30}
    first = snap(elapsed=10.0, counts=none)
    assert progress.remaining(first, first) is None
    assert progress.remaining(first, snap(elapsed=40.0)) == pytest.approx(30 * 18 / 12)
    assert progress.remaining(first, snap(elapsed=40.0, timeout=50.0)) == 10.0
    assert progress.remaining(first, snap(elapsed=60.0, timeout=50.0)) == 0.0
    assert progress.remaining(first, snap(n_trials=None)) is None
    assert progress.remaining(first, snap(n_trials=None, timeout=31.0)) == 1.0
    assert progress.remaining(first, snap(counts=all_)) is None


def test_a_pace_is_known_after_five_trials(snap: Snap) -> None:
    first = snap(elapsed=0.0, counts={})
    clocks = [
        progress.clock(first, snap(elapsed=9.0, timeout=timeout, counts={TrialState.PAUSED: n_ended}))
        for n_ended, timeout in ((4, None), (5, None), (4, 60.0), (5, 60.0), (5, 30.0))
    ]
    assert clocks == ["0:09", "0:09, about 0:45 left", "0:09, at most 0:51 left", "0:09, about 0:45 left",
                      "0:09, at most 0:21 left"]  # fmt: skip


def test_there_is_no_estimate_if_paused_trials_continue(snap: Snap) -> None:
    first, counts = snap(elapsed=0.0, counts={}, resumes_all=True), {TrialState.PAUSED: 8}
    assert progress.clock(first, snap(elapsed=9.0, counts=counts, resumes_all=True)) == "0:09"
    assert progress.clock(first, snap(elapsed=9.0, counts=counts, resumes_all=True, timeout=60.0)) == (
        "0:09, at most 0:51 left"
    )


def test_the_time_before_the_first_trial_is_no_part_of_the_pace(snap: Snap) -> None:
    start, slow = snap(elapsed=0.0, counts={}), snap(elapsed=30.0, counts={})
    running, later = snap(elapsed=31.0, counts={TrialState.RUNNING: 2}), snap(elapsed=40.0)
    first = start
    for now in (slow, running, later):
        first = progress.pace_from(first, now)
    assert first is slow
    assert progress.remaining(first, later) == pytest.approx(10 * 18 / 12)
    resumed = snap(elapsed=0.0, counts={TrialState.COMPLETED: 10})
    waited = snap(elapsed=5.0, counts={TrialState.COMPLETED: 10})
    assert progress.pace_from(resumed, waited) is waited


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        ("starting 2 workers, which import torch and sklearn first", {}),
        ("starting 1 worker, which imports torch and sklearn first", {"n_workers": 1}),
        ("starting 2 workers", {"imports": ()}),
        ("starting workers, which import a, b, c and 2 more first", {"n_workers": 0, "imports": tuple("abcde")}),
        ("waiting for Spark to start 2 workers, which import torch and sklearn first", {"engine": "spark"}),
        ("workers are importing torch and sklearn", {"workers": (WorkerLine(0, "a", "joining"),)}),
        ("workers are starting", {"workers": (WorkerLine(0, "a", "joining"),), "imports": ()}),
        ("waiting for the first configuration", {"workers": (WorkerLine(0, "a", "idle"),)}),
        ("waiting for the first report of a trial", {"counts": {TrialState.RUNNING: 1}}),
        ("no result yet", {"counts": {TrialState.FAILED: 1}}),
        ("no result yet", {"phase": Ending.TIMEOUT}),
    ],
)
def test_a_search_without_a_result_says_what_it_waits_for(snap: Snap, said: str, fields: Any) -> None:
    start = {"counts": {}, "best_trial": None, "workers": (), "engine": "local", "n_workers": 2}
    now = snap(**{**start, "imports": ("torch", "sklearn"), **fields})
    assert progress.best(now) == said
    assert f">{said}<" in html.page(now, now, [], [], 0)


def test_a_resumed_search_is_timed_by_its_new_trials_alone(snap: Snap) -> None:
    found = snap(elapsed=0.0, counts={TrialState.COMPLETED: 10})
    assert progress.remaining(found, snap(elapsed=20.0, counts={TrialState.COMPLETED: 20})) == 20.0


def test_summary(snap: Snap) -> None:
    assert progress.summary(snap(phase=Ending.COMPLETED, counts={TrialState.COMPLETED: 1})) == [
        "digits: completed after 0:30, 1 trial (1 completed)",
        "best accuracy 0.973 (trial 4): lr=0.01, act=<relu>",
        "files in runs/digits-1",
    ]
    nothing = snap(phase=Ending.INTERRUPTED, counts={}, best_trial=None, best_value=None, best_config=None)
    assert progress.summary(nothing) == [
        "digits: interrupted after 0:30, 0 trials",
        "files in runs/digits-1",
        "pass name='digits', resume=True to continue it",
    ]


@pytest.mark.parametrize("phase", [*Ending, Phase.SEARCHING])
@pytest.mark.parametrize("trained", [None, TrialState.PENDING, TrialState.COMPLETED])
def test_how_to_go_on_with_what_was_cut_off(snap: Snap, phase: Phase | Ending, trained: TrialState | None) -> None:
    line = None if trained is None else TrainingLine(trained, 2, 5, 9, 0.5, 1.0)
    told = progress.how_to_resume(snap(phase=phase, training=line))
    cut_short = ("interrupted", "cancelled", "stopped", "timeout", "killed")
    is_due = phase in cut_short and trained is not TrialState.COMPLETED
    assert bool(told) == is_due
    now = snap(phase=phase, training=line)
    assert ("resume=True" in html.page(now, now, [], [], 0)) == is_due


@pytest.mark.parametrize("phase", [ending for ending in Ending if ending.is_over])
def test_nothing_is_left_of_a_search_that_is_over(snap: Snap, phase: Ending) -> None:
    """Though workers are still leaving, and the last frame stays on the screen."""
    first = snap(elapsed=0.0, counts={})
    assert progress.clock(first, snap(phase=phase, timeout=60.0)) == "0:30"
    assert "left" in progress.clock(first, snap(timeout=60.0))


def test_busiest() -> None:
    idle = [WorkerLine(index, "a", "idle") for index in range(3)]
    busy = [WorkerLine(index, "a", "busy", index, seconds=float(index)) for index in range(3, 8)]
    assert progress.busiest(idle + busy, 8) == (idle + busy, "")
    assert progress.busiest(idle + busy, 2) == (busy[-2:], "and 6 more (3 busy, 3 idle)")
    assert progress.busiest(idle + busy, 6) == (idle[:1] + busy, "and 2 more (2 idle)")


def test_several_objectives_have_a_set_in_place_of_a_best(snap: Snap) -> None:
    found = {"best_trial": None, "best_value": None, "best_config": None, "others": (("min", "latency"),)}
    now = snap(pareto=3, **found)
    assert progress.goal(now) == "asha, max accuracy, min latency"
    assert progress.best(now) == "3 trials in the Pareto set"
    assert "3 trials in the Pareto set" in progress.summary(now)
    assert "3 trials in the Pareto set" in html.page(now, now, [], [], 0)
    assert progress.best(snap(pareto=1, **found)) == "1 trial in the Pareto set"
    assert progress.best(snap(pareto=0, **found)) == "no result yet"


GUESSED = "'wobble' is maximized: its name does not say whether larger or smaller is better; pass direction='min' to"


def test_a_direction_that_nobody_said_is_repeated_beside_the_best_value(
    snap: Snap, caplog: pytest.LogCaptureFixture
) -> None:
    guessed = snap(objective="wobble", guessed=True, phase=Ending.COMPLETED)
    assert [line.startswith(GUESSED) for line in progress.summary(guessed)].index(True) == 2
    assert GUESSED.split(":")[1] in unescape(html.page(guessed, guessed, [], [], 0))
    SilentDisplay().finish(guessed, [])
    assert caplog.messages == [f"digits: {text.guess(guessed)}"]


def test_without_a_display_only_warnings_are_logged(snap: Snap, caplog: pytest.LogCaptureFixture) -> None:
    display = SilentDisplay()
    display.update(snap(), [LogLine(3, "epoch 1"), LogLine(3, "reported step 28", is_warning=True)])
    display.finish(snap(), [LogLine(None, "worker 0 was lost"), LogLine(None, "FILLED stays empty", is_warning=True)])
    assert caplog.messages == ["digits: [trial 3] reported step 28", "digits: FILLED stays empty"]


@pytest.mark.parametrize(
    "fields",
    [
        {"objective": "wobble"},
        {"guessed": True},
        {"objective": "wobble", "guessed": True, "n_trials": 0},
        {"objective": None, "direction": None, "guessed": True},
    ],
    ids=["it was given", "the name says it", "nothing is searched", "nothing was measured"],
)
def test_a_known_direction_is_not_repeated(snap: Snap, fields: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert text.guess(snap(**fields)) == ""
    SilentDisplay().finish(snap(**fields), [])
    assert caplog.messages == []


def test_each_objective_whose_direction_nobody_said_is_named(snap: Snap) -> None:
    said = text.guess(snap(objective="loss", direction="min", others=(("max", "wobble"),), guessed=True))
    assert said.startswith("'wobble' is maximized")


# -- the best values over time ----------------------------------------------------------------------


VALUES = st.floats(allow_nan=False)


def test_a_long_search_keeps_its_first_and_its_newest_value(snap: Callable[..., Snapshot]) -> None:
    bests = Bests()
    for seconds in range(1, 1000):
        bests.take(snap(elapsed=float(seconds), best_value=seconds / 1000))
        assert bests.points[-1] == (seconds, seconds / 1000)
    assert bests.points[0] == (1.0, 0.001)
    assert len(bests.points) <= MAX_BESTS


def test_there_is_no_line_before_two_values(snap: Callable[..., Snapshot]) -> None:
    bests = Bests()
    bests.take(snap(best_value=None))
    bests.take(snap(best_value=1.0))
    bests.take(snap(best_value=1.0))
    assert bests.line(30.0, 8) == ""


@given(st.lists(st.tuples(VALUES.filter(lambda value: abs(value) < 1e9), VALUES), max_size=8), VALUES)
def test_the_line_has_its_width_for_all_values(points: list[tuple[float, float]], end: float) -> None:
    bests = Bests()
    bests.points = sorted(points)
    line = bests.line(end, 8)
    assert line == "" or sum(bar in "▁▂▃▄▅▆▇█" for bar in line) == 8


# -- the training that follows a search, or stands alone, in all displays ---------------------------


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
    assert (line.state, line.step, line.seconds) == (TrialState.PENDING, 8, 8.0)
    study.apply(AttemptStarted(0, 2, 0, 20, 200.0, {"x": 0.5}, training=20))
    line = _draw_training(study, 202.0)
    assert (line.state, line.seconds) == (TrialState.RUNNING, 10.0)
