"""Errors for unknown and missing arguments of the public functions, with the name that was meant."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any, ParamSpec, TypeVar

from optimizers.checks.near_names import did_you_mean

P = ParamSpec("P")
R = TypeVar("R")

_PEERS_WORDS = {
    "train_fn": "objective objective_fn objective_function trainable fn func function target_fn train_function",
    "searchspace": "search_space space param_space params param_distributions hyperparameters domain domains config",
    "optimizer": "algo algorithm search_alg sampler scheduler pruner tuner strategy suggest",
    "metric": "metrics optimization_key monitor scoring objective_name",
    "direction": "directions goal maximize minimize objective_direction",
    "n_trials": "num_samples max_evals num_trials max_trials trials n_iter n_calls count samples",
    "timeout": "time_budget_s time_budget max_time max_seconds time_limit walltime",
    "max_budget": "max_epochs epochs num_epochs n_epochs max_t max_iter max_steps steps max_resource budget",
    "budget": "max_budget epochs num_epochs n_epochs max_epochs steps max_steps",
    "min_budget": "grace_period min_t min_resource min_epochs resource_min",
    "eta": "reduction_factor",
    "workers": "n_jobs num_workers n_workers max_concurrent_trials max_concurrent parallelism np num_proc",
    "engine": "backend executor cluster spark",
    "seed": "random_state random_seed rng rstate",
    "name": "study_name experiment_name run_name",
    "directory": "storage_path local_dir log_dir logdir output_dir path storage",
    "resume": "load_if_exists restore",
    "max_attempts": "max_failures max_retries retries",
    "max_identical_failures": "alike",
    "catch": "expected",
    "points_to_evaluate": "initial_points initial_configs x0 enqueue points",
    "config": "params hyperparameters kwargs args searchspace space",
    "progress": "verbose show_progress_bar show_progressbar progress_bar display",
    "callbacks": "callback",
    "low": "min minimum lower lo a start",
    "high": "max maximum upper hi b stop end",
    "log": "log_scale logscale logarithmic scale log_uniform loguniform base",
    "step": "q quantum resolution precision",
    "values": "choices categories options sequence",
    "prior": "default default_value init",
    "when": "condition conditions parent",
}
"""Our arguments, and their names in Optuna, Ray, Hyperopt, scikit-optimize, Horovod and the first Maggy."""


def explains_arguments(elsewhere: Mapping[str, str], unknown: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a public function: an unknown argument raises an error that names the one that was meant.

    Its signature stays as it is, for readers, ``help()`` and type checkers.

    Args:
        elsewhere: Arguments that are given in another place, and what to write there; ``{}`` stands for their value.
        unknown: What to write for any other, ``{name}`` and ``{value}``; by default the error lists the known ones.

    Raises:
        TypeError: An argument is unknown, missing or given twice; the message has the remedy.

    Example:
        >>> @explains_arguments({"eta": "optimizer=ASHA(eta={})"})
        ... def search(optimizer="asha"): ...
        >>> search(eta=4)
        Traceback (most recent call last):
        TypeError: search() has no argument 'eta', got eta=4; use optimizer=ASHA(eta=4)
    """

    def explain(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def explained(*args: P.args, **kwargs: P.kwargs) -> R:
            _check(function.__name__, signature, args, kwargs, elsewhere, unknown)
            return function(*args, **kwargs)

        return explained

    return explain


def explains_init(cls: type[R]) -> type[R]:
    """Decorate a class in the same way: see :func:`explains_arguments`."""
    init: Callable[..., None] = cls.__init__
    signature = inspect.signature(cls)

    @functools.wraps(init)
    def explained(self: R, *args: Any, **kwargs: Any) -> None:
        _check(cls.__name__, signature, args, kwargs, {}, "")
        init(self, *args, **kwargs)

    cls.__init__ = explained  # type: ignore[assignment]  # of the same signature
    return cls


def _check(
    name: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    elsewhere: Mapping[str, str],
    unknown: str,
) -> None:
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(_explanation(name, signature, args, kwargs, elsewhere, unknown, str(error))) from None


def _explanation(
    name: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    elsewhere: Mapping[str, str],
    unknown: str,
    error: str,
) -> str:
    known = signature.parameters
    for given, value in kwargs.items():
        if given not in known:
            remedy = meant(given, value, known, elsewhere)
            if not remedy and unknown:
                remedy = f"; use {unknown.format(name=given, value=_short(value))}"
            listed = "" if remedy else f"; it takes {', '.join(known) or 'no arguments'}"
            return f"{name}() has no argument {given!r}, got {given}={_short(value)}{remedy}{listed}"
    by_place = [p.name for p in known.values() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    others = [p.name for p in known.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    if len(args) > len(by_place):
        extra = _short(args[len(by_place)])
        return (
            f"{name}() takes {' and '.join(by_place) or 'no argument'} by place{' alone' if by_place else ''}, and got "
            f"{extra}{' after them' if by_place else ''}; "
            + (f"give it its name: {', '.join(f'{other}=' for other in others[:6])} ..." if others else "leave it out")
        )
    needed = [p.name for p in known.values() if p.name in by_place or p.default is inspect.Parameter.empty]
    return f"{name}(): {error}; it takes {', '.join(needed)}"


def meant(given: str, value: object, known: Collection[str], elsewhere: Mapping[str, str]) -> str:
    """A clause that says what to write instead of an unknown argument; empty if nobody can tell.

    Args:
        given: Its name.
        value: Its value.
        known: The arguments that there are.
        elsewhere: As in :func:`explains_arguments`.

    Example:
        >>> meant("reduction_factor", 3, ["eta"], {})
        " (did you mean 'eta'?)"
    """
    if given in elsewhere:
        return f"; use {elsewhere[given].replace('{}', _short(value))}"
    same = [ours for ours, theirs in _PEERS_WORDS.items() if given.lower() in theirs.split()]
    for ours in same:
        if ours in known:
            return f" (did you mean {ours!r}?)"
    for ours in same:
        if ours in elsewhere:
            return f"; use {elsewhere[ours].replace('{}', _short(value))}"
    return did_you_mean(given, [*known, *elsewhere])


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
