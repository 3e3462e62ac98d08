"""What a training function may call, and what it is told of its mistakes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from maggy_like.protocol.messages import MAX_NAMES, Assign, Beat, Checkpointed, Reported, ToDriver, decode_to_driver
from maggy_like.protocol.state_names import StateName
from maggy_like.protocol.values import ReportError
from maggy_like.storage.checkpoints import CheckpointStore, load_state
from maggy_like.storage.file_systems import is_visible, mark_store
from maggy_like.worker.child.reporter import BudgetUsed, Reporter
from maggy_like.worker.child.reporter_hooks import ReporterHooks, reporter_for
from maggy_like.worker.child.sender import Sender
from maggy_like.worker.child.stop_state import TrialStopped


class Line:
    """A sender whose messages are kept."""

    def __init__(self, store: CheckpointStore | None = None, **fields: object) -> None:
        assign = Assign(0, 1, {}, **{"budget": 10, **fields})  # type: ignore[arg-type]
        self.frames: list[bytes] = []
        self.sender = Sender(assign, self.frames.append)
        self.reporter = reporter_for(assign, store or CheckpointStore(None), self.sender)

    @property
    def messages(self) -> list[ToDriver]:
        return [decode_to_driver(frame) for frame in self.frames]


def test_reports_are_kept_until_flushed_in_columns() -> None:
    line = Line(objective="accuracy")
    line.reporter.report(accuracy=0.5, loss=1.0)
    line.reporter.report(accuracy=0.75, loss=0.5, step=4)
    assert line.frames == []
    line.sender.flush()
    columns = {"accuracy": ([1, 4], [0.5, 0.75]), "loss": ([1, 4], [1.0, 0.5])}
    assert line.messages == [Reported(0, 1, "accuracy", columns)]


def test_the_only_metric_is_the_objective() -> None:
    line = Line()
    line.reporter.report(0.5)
    line.sender.flush()
    assert line.messages == [Reported(0, 1, "value", {"value": ([1], [0.5])})]
    assert ReporterHooks(line.reporter).objective == "value"


def test_where_nothing_is_searched_the_metric_that_is_named_first_stands_for_the_objective() -> None:
    line = Line(is_search=False)
    line.reporter.report(loss=1.0, accuracy=0.5)
    line.sender.flush()
    assert line.messages == [Reported(0, 1, "loss", {"loss": ([1], [1.0]), "accuracy": ([1], [0.5])})]
    alone = Reporter(budget=2)
    alone.report(loss=1.0, accuracy=0.5)
    assert ReporterHooks(alone).objective == "loss"


@pytest.mark.parametrize(("max_budget", "parent"), [(27, 3), (0, None)])
def test_a_state_is_of_another_configuration_only_in_a_search(max_budget: int, parent: int | None) -> None:
    """A training that continues a failed one has its configuration."""
    line = Line(checkpoint=str(StateName(3, 1, 4)), max_budget=max_budget)
    assert ReporterHooks(line.reporter).parent == parent


def test_a_reporter_without_a_trial_has_the_ranks_of_torchrun_and_of_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    alone = Reporter()
    assert (alone.rank, alone.world_size, alone.prepare(7)) == (0, 1, 7)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    ranked = Reporter()
    assert (ranked.rank, ranked.world_size) == (3, 4)


def test_a_milestone_waits_for_the_verdict() -> None:
    line = Line(objective="a", milestones=(2, 4))
    line.reporter.report(a=1.0)
    line.sender.stop.decide(False)
    line.reporter.report(a=2.0)
    assert line.messages == [Reported(0, 1, "a", {"a": ([1, 2], [1.0, 2.0])}, awaiting=True)]
    line.sender.stop.decide(True)
    with pytest.raises(TrialStopped):
        line.reporter.report(a=3.0, step=7)
    assert line.messages[1:] == [Reported(0, 1, "a", {"a": ([7], [3.0])}, awaiting=True)]


def test_a_stop_is_heard_at_the_next_report() -> None:
    line = Line()
    line.reporter.report(1.0)
    line.sender.stop.request()
    with pytest.raises(TrialStopped):
        line.reporter.report(2.0)


def test_the_budget_s_last_report_returns_and_the_next_ends_the_trial() -> None:
    line = Line(budget=3)
    line.reporter.report(1.0, step=2)
    line.reporter.report(1.0, step=4)
    with pytest.raises(BudgetUsed):
        line.reporter.report(1.0, step=5)


class Steps:
    """A training that is paused at step 3 of 9, and whose next attempts the test gives."""

    def __init__(self, tmp_path: Path, *following: int) -> None:
        self.store = CheckpointStore(str(tmp_path))
        self.following = list(following)
        self.paused: list[int] = []
        self.frames: list[bytes] = []
        self.reporter = reporter_for(*self.attempt(1, 3), self.on_pause)

    def attempt(self, number: int, budget: int) -> tuple[Assign, CheckpointStore, Sender]:
        assign = Assign(0, number, {}, budget, max_budget=9)
        return assign, self.store, Sender(assign, self.frames.append)

    def on_pause(self, reporter: Reporter) -> tuple[Assign, CheckpointStore, Sender] | None:
        self.paused.append(reporter.attempt)
        return self.attempt(reporter.attempt + 1, self.following.pop(0)) if self.following else None

    def train(self, save: str) -> int:
        """Train until a report or a save ends the function; return the last step that was begun."""
        reporter = self.reporter
        for step in range(1, reporter.budget + 2):
            try:
                if save == "before":
                    reporter.checkpoint(step)
                reporter.report(1.0, step=step)
                if save == "after":
                    reporter.checkpoint(step, step=step)
            except BudgetUsed:
                return step
        raise AssertionError("nothing has ended the function")


@pytest.mark.parametrize(("save", "last"), [("before", 3), ("after", 3), ("never", 4)])
def test_a_trial_is_paused_at_its_rung_once_the_state_of_that_step_is_saved(
    save: str, last: int, tmp_path: Path
) -> None:
    steps = Steps(tmp_path)
    assert steps.reporter.budget == 9  # so that a schedule is the same in each attempt
    assert steps.train(save) == last
    assert ReporterHooks(steps.reporter).is_paused
    assert ReporterHooks(steps.reporter).cut_at is None
    assert steps.paused == ([] if save == "never" else [1])


@pytest.mark.parametrize("save", ["before", "after"])
def test_a_trial_that_is_promoted_where_it_was_paused_continues_in_place(save: str, tmp_path: Path) -> None:
    steps = Steps(tmp_path, 6, 9)
    assert steps.train(save) == 10
    assert (steps.reporter.attempt, steps.paused) == (3, [1, 2])
    assert not ReporterHooks(steps.reporter).is_paused
    assert ReporterHooks(steps.reporter).cut_at == 10  # past the whole budget, which ends the function in another way


@pytest.mark.parametrize("save", ["before", "after"])
def test_a_trial_whose_report_skips_to_the_last_step_is_not_paused_there(save: str, tmp_path: Path) -> None:
    """So its function returns as always, instead of once more from the checkpoint."""
    steps = Steps(tmp_path)
    if save == "before":
        steps.reporter.checkpoint(9)
    steps.reporter.report(1.0, step=9)
    if save == "after":
        steps.reporter.checkpoint(9, step=9)
    assert not ReporterHooks(steps.reporter).has_ended
    assert steps.paused == []


def test_a_report_after_the_pause_pauses_again(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    steps.train("before")
    with pytest.raises(BudgetUsed):
        steps.reporter.report(1.0, step=4)
    assert steps.paused == [1]


def test_a_state_of_a_step_that_a_pause_leaves_out_does_not_count(tmp_path: Path) -> None:
    steps = Steps(tmp_path)
    for step in (1, 2):
        steps.reporter.checkpoint(step)
        steps.reporter.report(1.0, step=step)
    steps.reporter.report(1.0, step=3)
    steps.reporter.checkpoint(4)
    with pytest.raises(BudgetUsed):
        steps.reporter.report(1.0, step=4)
    ReporterHooks(steps.reporter).finish()
    messages = map(decode_to_driver, steps.frames)
    assert [message.step for message in messages if isinstance(message, Checkpointed)] == [1, 2]


def test_no_except_exception_eats_the_end() -> None:
    assert not issubclass(TrialStopped, Exception)
    assert not issubclass(BudgetUsed, Exception)


@pytest.mark.parametrize(
    "value", [np.float32(0.5), np.int64(1), torch.tensor([0.5]), torch.tensor(0.5, requires_grad=True), True, 3]
)
def test_numbers_of_other_libraries_serve(value: float) -> None:
    line = Line()
    line.reporter.report(value)
    assert type(line.sender.buffer[0][1]["value"]) is float


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda r: r.report(accuracy="high"), r"report\(accuracy=...\) must be a number, got 'high' of type str"),
        (lambda r: r.report(accuracy=None), "must be a number, got None"),
        (lambda r: r.report(accuracy=torch.ones(2)), "got tensor.* of type Tensor; use one number, such as the mean$"),
        (lambda r: r.report(accuracy=[0.5]), r"got \[0.5\] of type list; use one number, such as the mean$"),
        (lambda r: r.report(accuracy="0.93"), "got '0.93' of type str; use 0.93$"),
        (lambda r: r.report(accuracy=max), r"of type builtin_function_or_method; call it: max\(\.\.\.\)$"),
        (
            lambda r: r.report("accuracy", 0.5),
            r"got report\('accuracy', 0.5\); use report\(accuracy=accuracy, step=step",
        ),
        (lambda r: r.report(accuracy=10**5000), r"report\(accuracy=...\) must be a number, got one of 16610 bits"),
        (lambda r: r.report(a=1.0, b=2.0), r"name of the optimized metric.*for a, b; pass metric='a'$"),
        (
            lambda r: r.report(accuracy=0.5, epoch=1),
            r"for accuracy, epoch; pass metric='accuracy', and pass the count of steps as step=epoch$",
        ),
        (
            lambda r: r.report(epoch=1, batch=2),
            r"pass metric='batch', and pass the count of steps as step=batch",
        ),
        (lambda r: r.report(), r"report\(\) must have a metric, got none; use report\(accuracy=accuracy, step=step\)"),
        (lambda r: r.report(step=1), r"report\(\) must have a metric, got none; use report\(accuracy=accuracy, step="),
        (lambda r: (r.report(f1=0.5), r.report(step=2)), r"got none; use report\(f1=f1, step=step\)"),
        (lambda r: r.report({"accuracy": 0.5}), r"got \{'accuracy': 0.5\} of type dict; use report\(\*\*metrics\)$"),
        (lambda r: r.report(metrics={"accuracy": 0.5}), r"of type dict; use report\(\*\*metrics\)$"),
        (
            lambda r: r.report(f1=0.5, checkpoint={"a": 1}),
            r"got \{'a': 1\} .*; use reporter.checkpoint\(state\) before",
        ),
        (lambda r: r.average({"loss": 0.5}), r"got \{'loss': 0.5\}; use average\(\*\*metrics\)$"),
        (lambda r: r.average(losses={"loss": 0.5}), r"of type dict; use average\(\*\*metrics\)$"),
        (lambda r: r.average(0.5), r"average\(\) must have a metric, got only 0.5; .* average\(weight, loss=...\)"),
        (lambda r: r.report(1.0, step=1.5), "integer, got 1.5; count the reports: 1, 2, 3$"),
        (lambda r: r.report(1.0, step=2.0), "step must be an integer, got 2.0; use 2$"),
        (lambda r: r.report(1.0, step=2**64), r"step must be below 2\*\*63, got 18446744073709551616"),
        (lambda r: r.report(1.0, step=-(2**63)), "step must be below"),
        (lambda r: (r.report(1.0, step=2**63 - 1), r.report(1.0)), "step must be below"),
        (lambda r: r.report(1.0, step=10**5000), "step must be below .* got one of 16610 bits"),
        (lambda r: r.report(1.0, step="x" * 10**6), r"integer, got 'x{90,100}\.\.\.x{90,100}'; count"),
        (lambda r: r.report(accuracy="x" * 10**6), r"must be a number, got 'x{90,100}\.\.\.x{90,100}' of type str$"),
        (lambda r: r.report(**{"caf\udce9": 1.0}), r"a metric's name must be valid Unicode text, got 'caf\\udce9'"),
        (lambda r: (r.report(1.0, step=3), r.report(1.0, step=3)), "greater than the last one, which is 3, got 3"),
        (lambda r: (r.report(1.0, step=3), r.report(1.0, step=2)), "greater than the last one, which is 3, got 2"),
        (lambda r: (r.report(a=1.0, step=3), r.report(b=1.0, step=3)), "report all metrics of a step in one call"),
        (
            lambda r: (r.report(loss=1.0, step=300), r.report(accuracy=1.0, step=1)),
            r"report\(loss=loss, accuracy=accuracy, step=epoch\), and average metrics of batches over the epoch$",
        ),
    ],
)
def test_mistakes_are_told(call: object, message: str) -> None:
    with pytest.raises(ReportError, match=message):
        call(Line().reporter)  # type: ignore[operator]


def test_what_kept_earlier_reports_from_being_sent_is_raised_by_the_next() -> None:
    line = Line()
    line.reporter.report(1.0)
    line.sender.fault = MemoryError("of the service thread")
    for _ in range(2):
        with pytest.raises(MemoryError, match="of the service thread"):
            line.reporter.report(2.0)
    assert [step for step, _ in line.sender.buffer] == [1]


def test_a_missing_objective_is_named() -> None:
    with pytest.raises(ReportError, match="'accuracy' must be given, got acc"):
        Line(objective="accuracy").reporter.report(acc=0.5)
    meant = r"'acuracy' must be given, got accuracy, loss \(did you mean 'accuracy'\?\); .* use metric='accuracy'$"
    with pytest.raises(ReportError, match=meant):
        Line(objective="acuracy").reporter.report(accuracy=0.5, loss=0.1)
    boosted = r"got train_auc, valid_0_auc \(did you mean 'valid_0_auc'\?\); .* use metric='valid_0_auc'$"
    with pytest.raises(ReportError, match=boosted):
        Line(objective="auc").reporter.report(train_auc=0.9, valid_0_auc=0.5)
    with pytest.raises(ReportError, match=r"got loss; report or return it, or use metric='loss'$"):
        Line(objective="accuracy").reporter.report(loss=0.5)
    with pytest.raises(ReportError, match=r"got loss, seconds; report or return it, or pass one of these as metric=$"):
        Line(objective="accuracy").reporter.report(loss=0.5, seconds=1)


def test_an_objective_that_is_given_twice_is_rejected() -> None:
    line = Line(objective="val_loss")
    twice = r"objective 'val_loss', got 0.9 without a name and val_loss=0.4; .* report\(val_loss=..., train_loss="
    with pytest.raises(ReportError, match=twice):
        line.reporter.report(0.9, val_loss=0.4)
    line.reporter.report(0.4, train_loss=0.9)
    assert line.sender.buffer == [(1, {"val_loss": 0.4, "train_loss": 0.9})]


def test_where_nothing_is_searched_a_value_without_a_name_is_the_first_metric() -> None:
    reporter = Reporter(budget=2)
    for _ in range(2):
        reporter.report(0.9, loss=0.4)
    assert ReporterHooks(reporter).objective == "value"


def test_it_is_shown_by_where_it_stands() -> None:
    reporter = Reporter(budget=3)
    assert repr(reporter) == "Reporter(trial=0, attempt=1, budget=3)"
    reporter.report(loss=0.5)
    assert repr(reporter) == "Reporter(trial=0, attempt=1, budget=3, step=1)"


def test_alone_it_counts_and_keeps_checkpoints_in_memory() -> None:
    reporter = Reporter(budget=2)
    assert reporter.restore() is None
    reporter.report(accuracy=0.1)
    reporter.checkpoint({"step": 1})
    reporter.report(accuracy=0.2)
    assert reporter.restore() == {"step": 1}
    message = "step 3 was reported with a budget of 2 steps, which ends the function; .* or use Reporter\\(budget=N\\)$"
    with pytest.raises(BudgetUsed, match=message):
        reporter.report(accuracy=0.3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda reporter: reporter.log(loss=0.1),
            r"no metrics, got loss=0.1; use report\(loss=loss, step=step\)",
        ),
        (
            lambda reporter: reporter.checkpoint("model.pt", {"epoch": 1}),
            r"one state, got checkpoint\('model.pt', \{'epoch': 1\}\); use checkpoint\(state\), without a path",
        ),
        (lambda reporter: reporter.checkpoint({"epoch": 1}, 5), r"or checkpoint\(state, step=step\) after the report"),
        (lambda reporter: reporter.restore("model.pt"), r"restore\(\) takes no path, got 'model.pt'; use restore\(\)"),
    ],
)
def test_calls_as_other_libraries_have_them_are_answered_with_ours(
    call: Callable[[Reporter], object], message: str
) -> None:
    with pytest.raises(ReportError, match=message):
        call(Reporter(budget=9))


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_states_go_when_the_driver_says_so_and_a_newer_one_is_there(tmp_path: Path, scheme: str) -> None:
    url = (tmp_path / "store").as_uri() if scheme == "file" else f"memory://{tmp_path.name}"
    line = Line(store=CheckpointStore(url))
    for step in (1, 2, 3):
        line.reporter.checkpoint({"weights": torch.full((2,), float(step))})
        line.reporter.report(1.0, step=step)
    urls = [f"{url}/{message.name}" for message in line.messages if isinstance(message, Checkpointed)]
    line.sender.kept.put(("00000/1-1.pkl",))
    assert torch.equal(load_state(urls[0])["weights"], torch.ones(2))
    line.reporter.checkpoint("newer")
    with pytest.raises(FileNotFoundError):
        load_state(urls[0])
    assert torch.equal(load_state(urls[1])["weights"], torch.full((2,), 2.0))
    assert line.reporter.restore() == "newer"


def test_a_checkpoint_is_told_with_the_report_that_follows() -> None:
    line = Line()
    line.reporter.checkpoint("before step 1")
    assert line.messages == [Beat()]  # a sign of life
    line.reporter.report(1.0)
    told = Checkpointed(0, 1, 1, "00000/1-1.pkl")
    assert line.messages[1:] == [Reported(0, 1, "value", {"value": ([1], [1.0])}), told]


def test_after_restore_the_step_must_be_named() -> None:
    store = CheckpointStore(None)
    store.save("00000/1-1.pkl", 3)
    line = Line(store, checkpoint="00000/1-1.pkl")
    assert line.reporter.restore() == 3
    with pytest.raises(ReportError, match=r"after restore.*step=step"):
        line.reporter.report(1.0)
    line.reporter.report(1.0, step=4)
    line.reporter.report(1.0)
    assert [step for step, _ in line.sender.buffer] == [4, 5]


def test_the_mark_tells_whether_a_store_is_shared(tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    assert not is_visible(url, "token")
    mark_store(url, "token")
    assert is_visible(url, "token")
    assert not is_visible(url, "another")


@pytest.mark.slow
def test_a_million_different_names_are_refused_early_and_told() -> None:
    line = Line(objective="loss", budget=10**6)
    with pytest.raises(ReportError, match="10000 different names of metrics, got one more: 'm10000'; use the same"):  # noqa: PT012
        for step in range(1, 10**6):
            line.reporter.report(loss=1.0, **{f"m{step}": 1.0}, step=step)
    assert len(line.sender.buffer) == MAX_NAMES - 1


def test_a_reporter_shows_what_users_call_and_nothing_of_the_runtime() -> None:
    assert {name for name in dir(Reporter()) if not name.startswith("_")} == {
        "attempt", "attributes", "average", "budget", "checkpoint", "config", "device", "directory", "is_main",
        "is_stand_in", "log", "prepare", "rank", "report", "restore", "trial", "world_size"}  # fmt: skip
