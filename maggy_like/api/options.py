"""The options of ``lagom``, ``ablate`` and ``run``: dataclasses from which the signatures of these functions are made.

An option is declared once, with its type and default, in the class of the functions that take it. Its text is in the
docstring of the function. The object is passed on, so that an option is not repeated on its way. Here are the options
that several of the functions take. The others are beside their function.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Protocol, TypeVar, cast, overload

from optimizers.checks import explains_arguments

if TYPE_CHECKING:
    from maggy_like.driver.followers import Callback
    from maggy_like.driver.run_handle import RunHandle
    from maggy_like.driver.run_spec import DriverSide
    from maggy_like.driver.settings import FailurePolicy
    from maggy_like.engines.base import Engine
    from maggy_like.storage.run_paths import Store

P = ParamSpec("P")
O = TypeVar("O")  # noqa: E741  # the options
R = TypeVar("R")


@dataclass(frozen=True)
class RunOptions:
    """The options of every run."""

    train_fn: Callable[..., Any]
    _: KW_ONLY
    workers: int | None = None
    engine: str | Engine = "auto"
    failures: FailurePolicy | None = None
    name: str | None = None
    directory: str | Path = "maggy_runs"
    store: str | Path | Store | None = None
    resume: bool = False
    overwrite: bool = False
    callbacks: Sequence[Callback] = ()
    progress: bool | str = True
    block: bool = field(default=True, init=False)  # set by ``takes``, since the returned type depends on it


@dataclass(frozen=True)
class _OfTrials:
    """The options that only runs with several trials have."""

    _: KW_ONLY
    timeout: float | None = None
    max_budget: int | None = None
    max_workers: int | None = None
    workers_per_trial: int = 1
    driver: DriverSide = "client"
    seed: int = 0


@dataclass(frozen=True)
class TrialsOptions(RunOptions, _OfTrials):
    """The options of a run with several trials.

    Fields of the last base class come first. So each function's own options precede those that it shares.
    """


class Starts(Protocol[P, R]):
    """A function that starts a run. It returns the outcome of the run, or its handle with ``block=False``.

    An editor shows the first signature.
    """

    @overload
    def __call__(self, *args: P.args, **options: P.kwargs) -> R: ...
    @overload
    def __call__(self, *args: Any, block: Literal[True], **options: Any) -> R: ...
    @overload
    def __call__(self, *args: Any, block: Literal[False], **options: Any) -> RunHandle[R]: ...


def takes(
    options: Callable[P, O], elsewhere: Mapping[str, str], unknown: str = ""
) -> Callable[[Callable[[O], R | RunHandle[R]]], Starts[P, R]]:
    """Decorate a function of an options object so that it takes the options as its arguments.

    Its signature is that of the class, for readers, ``help()`` and type checkers. For ``elsewhere`` and ``unknown``,
    see :func:`~optimizers.checks.explains_arguments`.

    Example:
        >>> @takes(RunOptions, {})
        ... def about(options): return f"{options.train_fn} on {options.workers} workers"
        >>> about(print, workers=2)
        '<built-in function print> on 2 workers'
    """

    def decorate(function: Callable[[O], R | RunHandle[R]]) -> Starts[P, R]:
        @functools.wraps(function)
        def start(*args: Any, block: bool = True, **kwargs: Any) -> R | RunHandle[R]:
            made = options(*args, **kwargs)
            object.__setattr__(made, "block", block)
            return function(made)

        result = inspect.signature(function).return_annotation
        start.__signature__ = signature_of(options).replace(return_annotation=result)  # type: ignore[attr-defined]
        return cast("Starts[P, R]", explains_arguments(elsewhere, unknown)(start))

    return decorate


def signature_of(options: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a class of options, with ``block``."""
    signature = inspect.signature(options)
    block = inspect.Parameter("block", inspect.Parameter.KEYWORD_ONLY, default=True, annotation="bool")
    return signature.replace(parameters=[*signature.parameters.values(), block])


_OF_FAILURES = {
    name: f"failures=FailurePolicy({name}={{}})"
    for name in (
        "max_attempts",
        "trial_timeout",
        "report_timeout",
        "load_timeout",
        "min_workers",
        "max_identical_failures",
        "catch",
    )
}
_OF_ASHA = {name: f"optimizer=ASHA({name}={{}})" for name in ("eta", "min_budget", "brackets", "sampler")}

_EVERYWHERE = {
    **_OF_FAILURES,
    **dict.fromkeys(
        ("max_failures", "max_retries", "max_retries_per_trial", "retries"),
        "failures=FailurePolicy(max_attempts=...), which counts the first attempt as well",
    ),
    "journal": "directory={}, the directory of the journal and of the rest of the run",
    "keep_checkpoints": "store=Store(keep_checkpoints={})",
    "isolation": "engine=LocalEngine(isolation={}) or SparkEngine(isolation={})",
    "experiment": "block=False, which returns a handle with stop()",
    **dict.fromkeys(("gpus", "gpu"), "engine=LocalEngine(gpus={}), a list such as ['0', '1']"),
    "resources_per_trial": "engine=SparkEngine(resources={}), or LocalEngine(gpus=['0', '1'])",
    **dict.fromkeys(
        ("checkpoints", "checkpoint_dir"), "store={}, or leave it out to keep the states in the run's directory"
    ),
}

OTHER_SPELLINGS = {
    **_EVERYWHERE,
    **_OF_ASHA,
    "patience": "optimizer=Patience('random', patience={})",
    "pruner": "optimizer='asha', or MedianRule('tpe')",
    **dict.fromkeys(("stop", "stop_criterion", "early_stop_fn"), "max_budget=, target= or timeout="),
    **dict.fromkeys(
        ("es_policy", "es_interval", "es_min", "early_stopping", "early_stopping_policy"),
        "optimizer=MedianRule('random'), or another rule that stops trials",
    ),
    "mode": "direction='max' or 'min' for what is best, or optimizer=ASHA(mode='stopping') for how trials end",
    "objective": "train_fn= for the function, or metric= for the name of what it reports",
    "trials_save_file": "name= and directory=, and resume=True to continue",
    "executions_per_trial": "confirm=True, which repeats the best configurations",
    **dict.fromkeys(("ablation", "ablation_study"), "maggy_like.ablate(train_fn, study)"),
    "design": "maggy_like.ablate(train_fn, study, design={})",
    "repeats": "maggy_like.ablate(train_fn, study, repeats={})",
    "tune": "maggy_like.ablate(train_fn, study, tune=Tuning(searchspace))",
}
"""Arguments of other libraries and functions, and what to write instead in ``lagom``; ``{}`` stands for the value."""

OTHER_SPELLINGS_OF_ABLATE = {
    **_EVERYWHERE,
    "searchspace": "tune=Tuning(searchspace)",
    "optimizer": "tune=Tuning(searchspace, optimizer={})",
    "n_trials": "tune=Tuning(searchspace, n_trials={})",
}
"""For ``ablate``."""

OTHER_SPELLINGS_OF_RUN = {
    **_EVERYWHERE,
    "timeout": "failures=FailurePolicy(trial_timeout={})",
    "n_trials": "maggy_like.lagom(train_fn, searchspace, n_trials={})",
    "searchspace": "maggy_like.lagom(train_fn, searchspace)",
}
"""For ``run``."""

ARGUMENT_OF_TRAIN_FN = 'config={{"{name}": {value}}} for an argument of train_fn'
"""For ``run``: any other argument."""
