"""The callback of Hugging Face's transformers."""

from __future__ import annotations

import io
import math
import shutil
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from maggy_like.argument_checks import require
from maggy_like.callbacks.progress import Progress
from maggy_like.protocol.values import ReportError
from maggy_like.worker.child.reporter_hooks import ReporterHooks
from optimizers.checks import explains_init

require("transformers", "TransformersReport")

from transformers import (  # noqa: E402  # the error above names the extra
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.training_args import ParallelMode  # noqa: E402

if TYPE_CHECKING:
    from maggy_like.worker.child.reporter import Reporter

_ONE_PROCESS = (ParallelMode.NOT_PARALLEL, ParallelMode.NOT_DISTRIBUTED)
"""Modes in which a trainer trains without the other processes."""

_ROUNDING = 1e-6
"""Error of a number of epochs, which the trainer computes as a sum of fractions."""


@explains_init
class TransformersReport(TrainerCallback):
    """Report each evaluation of ``transformers.Trainer``. A step is an evaluation, so an epoch by default.

    Set ``eval_strategy`` to ``"epoch"``, or to ``"steps"`` with ``eval_steps``. Set ``num_train_epochs`` to the length
    of a full training, so that the learning rate schedule is the same in each attempt. The callback ends the training
    when the budget is used up.

    The checkpoint is ``{"step": evaluations, "checkpoint": bytes}``. The bytes are a tar archive of the trainer's
    checkpoint directory.

    If the trainer saves checkpoints to an ``output_dir`` that is not in a directory of the trial, one of that name in
    ``reporter.directory`` takes its place, because other trials may write to it.

    In a multi-worker trial, every rank needs this callback. Rank 0 reports, and all ranks stop at the same evaluation.

    It cannot be used with ``PBT``, because transformers restores the learning rate with the state of another trial.

    Args:
        reporter: Reporter of the trial.
        save_every: Number of evaluations between checkpoints. Default: 1.

    Attributes:
        resume_from_checkpoint: Path of a directory with the checkpoint, or None.

    Raises:
        ReportError: An argument is invalid, the trainer does not evaluate, or it does not train with all workers of the
            trial, or the state is of another trial.

    Example:
        >>> def train(lr, reporter):
        ...     report = TransformersReport(reporter)
        ...     args = TrainingArguments(learning_rate=lr, eval_strategy="epoch", num_train_epochs=reporter.budget)
        ...     trainer = Trainer(make_model(), args, train_dataset=data, eval_dataset=held_out, callbacks=[report])
        ...     trainer.train(resume_from_checkpoint=report.resume_from_checkpoint)
    """

    def __init__(self, reporter: Reporter, *, save_every: int = 1) -> None:
        self._progress = Progress(reporter, save_every)
        self._reporter = reporter
        self._evaluated: tuple[int, dict[str, float]] | None = None
        self._is_training = False
        self.resume_from_checkpoint: str | None = None
        self._restored_directory: Path | None = None
        if self._progress.parent is not None:
            raise ReportError(
                f"the restored state must be of trial {reporter.trial}, got one of trial {self._progress.parent}, with "
                "whose learning rate transformers would continue; use an optimizer other than PBT"
            )
        self._named_output: str | None = None  # the trainer's output_dir, while another takes its place
        if self._progress.restored is not None:
            directory = self._restored_directory = Path(tempfile.mkdtemp(prefix="maggy_like-"))
            with tarfile.open(fileobj=io.BytesIO(self._progress.restored["checkpoint"])) as archive:
                archive.extractall(directory, filter="data")
            self.resume_from_checkpoint = str(next(directory.iterdir()))

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count from the evaluation at which the training starts. Called by the trainer."""
        if args.eval_strategy == "no":
            raise ReportError(
                "eval_strategy must be 'epoch' or 'steps', got 'no'; use TrainingArguments(eval_strategy='epoch')"
            )
        if self._reporter.world_size > 1 and args.parallel_mode in _ONE_PROCESS:
            raise ReportError(
                f"the trainer must train with all {self._reporter.world_size} workers of the trial, got parallel_mode="
                f"{args.parallel_mode.value!r}; use TrainingArguments(use_cpu=True) for workers without GPUs"
            )
        start = 0 if state.global_step == 0 else _evaluations(args, state)
        self._progress.begin(start, "resume_from_checkpoint=report.resume_from_checkpoint to trainer.train")
        self._own_output(args)
        self._is_training = True
        if not self._progress.left:
            control.should_training_stop = True

    def _own_output(self, args: TrainingArguments) -> None:
        """Have the trainer write to a directory of the trial, since other trials may write to the one it names."""
        named, own = args.output_dir, self._reporter.directory
        if args.save_strategy == "no":  # only the states of this callback are saved, and not kept there
            self._named_output, args.output_dir = named, str(own / "transformers-states")
        elif not ReporterHooks(self._reporter).owns(named):
            args.output_dir = str(own / Path(named).name)
            if args.process_index == 0:
                self._reporter.log(f"output_dir={named!r} may be that of other trials, so {args.output_dir} is used")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Remove the restored directory, which the trainer reads before its first step. Called by the trainer."""
        self._remove_restored()

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **kwargs: Any,
    ) -> None:
        """Request that the state of an evaluation is saved; after that it is reported. Called by the trainer."""
        if self._is_training and state.global_step > 0 and _evaluations(args, state) > self._progress.step:
            before = {} if self._evaluated is None else self._evaluated[1]  # it is called for each set of rows
            self._evaluated = _evaluations(args, state), before | {k: v for k, v in metrics.items() if k != "epoch"}
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Report the evaluation whose state was saved. Called by the trainer."""
        if self._evaluated is None:
            return
        (step, metrics), self._evaluated = self._evaluated, None
        args.distributed_state.wait_for_everyone()  # each rank writes the state of its random numbers
        directory = Path(args.output_dir, f"checkpoint-{state.global_step}")
        if not self._progress.take(
            step, metrics, lambda: {"checkpoint": _packed(directory) if args.should_save else b""}
        ):
            control.should_training_stop = True
        if self._named_output is not None:
            args.distributed_state.wait_for_everyone()  # rank 0 has read the directory, which others may share
            shutil.rmtree(directory, ignore_errors=True)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """End the training function if the trial was stopped. Called by the trainer."""
        self._is_training = False
        self._remove_restored()
        if self._named_output is not None:
            args.distributed_state.wait_for_everyone()  # each rank has listed the directory, which others may share
            shutil.rmtree(args.output_dir, ignore_errors=True)
            args.output_dir, self._named_output = self._named_output, None
        self._progress.finish()

    def _remove_restored(self) -> None:
        """Remove the directory with the restored state once it is read."""
        if self._restored_directory is not None:
            shutil.rmtree(self._restored_directory, ignore_errors=True)
            self._restored_directory = None


def _evaluations(args: TrainingArguments, state: TrainerState) -> int:
    """Return the number of evaluations of a training so far, including the extra one at its end."""
    number = (state.epoch or 0.0) if args.eval_strategy == "epoch" else state.global_step / state.eval_steps
    is_over = state.global_step >= state.max_steps
    return math.ceil(number - _ROUNDING) if is_over else math.floor(number + _ROUNDING)


def _packed(directory: Path) -> bytes:
    """Pack a checkpoint's directory into an archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(directory, arcname=directory.name)
    return buffer.getvalue()
