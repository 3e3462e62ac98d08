"""Whether the search space and the runtime fill the parameters of a training function."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping
from typing import Any

from maggy_like.errors import TrainFunctionError
from maggy_like.train_function.arguments import INJECTED
from maggy_like.train_function.names import name_of
from optimizers.checks.near_names import did_you_mean
from optimizers.space.search_space import SearchSpace


def check_order(train_fn: Any, searchspace: Any) -> None:
    """Check that the function and its search space are not given in each other's place.

    Raises:
        TrainFunctionError: They are.
    """
    if isinstance(train_fn, SearchSpace | Mapping):
        remedy = f"lagom({name_of(searchspace)}, space)" if callable(searchspace) else "lagom(train_fn, space)"
        raise TrainFunctionError(f"train_fn must be a function, got the search space {train_fn!r}; call {remedy}")
    if type(searchspace).__name__ == "AblationStudy":  # whose room is above this one
        raise TrainFunctionError("lagom searches a search space, and got a study; call ablate(train_fn, study)")


def check_parameters(train_fn: Callable[..., Any], space: SearchSpace, *, source: str = "the search space") -> None:
    """Check that every parameter of ``train_fn`` is filled, and every name of the space is taken.

    Args:
        source: What people call the space.

    Raises:
        TrainFunctionError: One is not.
    """
    name = name_of(train_fn)
    if not callable(train_fn):
        raise TrainFunctionError(f"train_fn must be a function, got {train_fn!r}")
    check_call_runs(train_fn, name)
    try:
        parameters = inspect.signature(train_fn).parameters
    except (TypeError, ValueError) as error:
        raise TrainFunctionError(f"the parameters of {name} cannot be read: {error}; wrap it in a def") from error
    takes_all = "config" in parameters
    for parameter in parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            takes_all = True
        elif parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            continue
        elif parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise TrainFunctionError(
                f"parameter {parameter.name!r} of {name} is positional-only; parameters are given by name"
            )
        elif parameter.default is inspect.Parameter.empty:
            _check_filled(name, parameter.name, space, source)
    for given in space.names:
        if given in INJECTED:
            raise TrainFunctionError(
                f"{source} has a parameter {given!r}, but {name} gets its {given!r} from the "
                "runtime; choose another name"
            )
        if not takes_all and (keyword.iskeyword(given) or not given.isidentifier()):
            raise TrainFunctionError(
                f"{name} cannot have a parameter {given!r}, which {source} sets: it is no Python identifier; take "
                f"config (a dict of all) and use config[{given!r}], or take **parameters"
            )
        if given not in parameters and not takes_all:
            raise TrainFunctionError(
                f"{name} has no parameter {given!r}, which {source} sets"
                f"{did_you_mean(given, parameters)}; add it, or take config (a dict of all)"
            )


def check_call_runs(train_fn: Callable[..., Any], name: str) -> None:
    """Check that a call of ``train_fn`` runs it: one of an async function or a generator only makes an object.

    Raises:
        TrainFunctionError: It does not.
    """
    for called in (train_fn, type(train_fn).__call__):
        if inspect.iscoroutinefunction(called):
            raise TrainFunctionError(
                f"{name} is an async function, a call of which runs nothing; pass a function that calls "
                f"asyncio.run({name}(...))"
            )
        if inspect.isgeneratorfunction(called) or inspect.isasyncgenfunction(called):
            raise TrainFunctionError(
                f"{name} has a yield, so it is a generator, a call of which runs nothing; call "
                "reporter.report(...) instead, or return the value"
            )


def _check_filled(function: str, name: str, space: SearchSpace, source: str) -> None:
    if name in INJECTED:
        return
    if name not in space:
        known = [*space.names, *INJECTED]
        raise TrainFunctionError(
            f"nothing fills the parameter {name!r} of {function}{did_you_mean(name, known)}; "
            f"give it a default, or add it to {source} (which has {', '.join(space.names) or 'nothing'})"
        )
    if space.domains[name].when:
        raise TrainFunctionError(
            f"parameter {name!r} of {function} is conditional in the search space, so it is not always "
            f"given; give it a default, such as {name}=None"
        )
