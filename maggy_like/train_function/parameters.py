"""Checks that the search space and the runtime fill the parameters of a training function."""

from __future__ import annotations

import inspect
import keyword
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from maggy_like.errors import TrainFunctionError
from maggy_like.train_function.code import INJECTED, name_of
from optimizers.checks import did_you_mean, short
from optimizers.space.search_space import SearchSpace


def check_order(train_fn: Any, searchspace: Any) -> None:
    """Check that the function and its search space are not swapped."""
    if isinstance(train_fn, SearchSpace | Mapping):
        remedy = f"lagom({name_of(searchspace)}, space)" if callable(searchspace) else "lagom(train_fn, space)"
        raise TrainFunctionError(f"train_fn must be a function, got the search space {train_fn!r}; call {remedy}")
    if type(searchspace).__name__ == "AblationStudy":  # a class of a layer above this one
        raise TrainFunctionError(
            "the search space must be a dict or a SearchSpace, got a study; call ablate(train_fn, study)"
        )


def check_parameters(train_fn: Callable[..., Any], space: SearchSpace, *, source: str = "the search space") -> None:
    """Check that every parameter of ``train_fn`` is filled, and that it accepts every name of the space."""
    check_function(train_fn)
    name = name_of(train_fn)
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
            remedy = "remove the '/' from its signature"
            if inspect.isbuiltin(train_fn):
                remedy = f"use lambda {parameter.name}: {name}({parameter.name})"
            raise TrainFunctionError(
                f"parameter {parameter.name!r} of {name} is positional-only, and arguments are passed by name; {remedy}"
            )
        elif parameter.default is inspect.Parameter.empty:
            _check_filled(name, parameter.name, space, source)
    for given in space.names:
        if given in INJECTED:
            raise TrainFunctionError(
                f"{source} has a parameter {given!r}, but {name} gets its {given!r} from the runtime; use another name"
            )
        if not takes_all and (keyword.iskeyword(given) or not given.isidentifier()):
            raise TrainFunctionError(
                f"{name} cannot have a parameter {given!r}, which {source} sets: it is not a Python identifier; take "
                f"config (a dict of all) and use config[{given!r}], or take **parameters"
            )
        if given not in parameters and not takes_all:
            raise TrainFunctionError(
                f"{name} has no parameter {given!r}, which {source} sets"
                f"{did_you_mean(given, parameters)}; add it, or take config (a dict of all)"
            )


def check_seed(train_fn: Callable[..., Any], space: SearchSpace) -> None:
    """Check that ``train_fn`` accepts a seed in addition to its search space."""
    name, parameters = name_of(train_fn), inspect.signature(train_fn).parameters
    if "seed" in space:
        raise TrainFunctionError(
            f"the search space must not have 'seed', which confirm= sets; use seed=0 as a default of {name} instead"
        )
    takes_all = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    if not takes_all and "seed" not in parameters and "config" not in parameters:
        raise TrainFunctionError(
            f"{name} must take a seed, with which confirm= trains configurations again; add the parameter seed=0, and "
            "use it for everything random"
        )


def check_function(train_fn: Any) -> None:
    """Check that ``train_fn`` can be called, and that a call trains: calling a class only creates an object."""
    if not callable(train_fn):
        trains = next((f"its method: {name}" for name in ("fit", "train", "run") if hasattr(train_fn, name)), "")
        remedy = trains or "the function itself, without calling it"
        raise TrainFunctionError(f"train_fn must be a function, got {short(train_fn)}; pass {remedy}")
    called = train_fn
    while isinstance(called, partial):
        called = called.func
    name, is_class = name_of(called), isinstance(called, type)
    if (model := _kind_of_model(called if isinstance(called, type) else type(called))) is not None:
        kind, training = model
        raise TrainFunctionError(
            f"train_fn must be a function that trains, got the {kind} {name}; use a def that creates the "
            f"{'model' if is_class else 'model in each trial'} and {training}"
        )
    if is_class:
        raise TrainFunctionError(
            f"train_fn must be a function that trains, got the class {name}, whose call only creates an object; use a "
            "def that creates the object, trains it and reports its metrics"
        )
    for function in (called, type(called).__call__):
        if inspect.iscoroutinefunction(function):
            raise TrainFunctionError(
                f"{name} is an async function, and calling it runs nothing; pass a function that calls "
                f"asyncio.run({name}(...))"
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TrainFunctionError(
                f"{name} has a yield, so it is a generator, and calling it runs nothing; call "
                "reporter.report(...) instead, or return the value"
            )


_LIGHTNING = "calls Trainer(callbacks=[LightningReport(reporter)]).fit(model)"
_MODELS = {
    ("lightning", "LightningModule"): ("LightningModule", _LIGHTNING),
    ("pytorch_lightning", "LightningModule"): ("LightningModule", _LIGHTNING),
    ("keras", "Layer"): ("Keras model", "calls model.fit(..., callbacks=[KerasReport(reporter)])"),
    ("torch", "Module"): ("torch module", "trains it, with reporter.report(...) in the loop"),
}
"""By package and base class: the name of such a model, and how a function trains it."""


def _kind_of_model(kind: type) -> tuple[str, str] | None:
    """Look up a class among the models of large libraries, without importing any of them."""
    bases = [(base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__]
    return next((model for base, model in _MODELS.items() if base in bases), None)


_OTHERS = {
    "trial": "use def train({}) for the values of the search space, which are passed by name, and reporter to report",
    **dict.fromkeys(("cfg", "hparams", "hp", "params"), "rename it to config for a dict of all values"),
}
"""By the parameters of functions for other libraries: what to write here."""


def _check_filled(function: str, name: str, space: SearchSpace, source: str) -> None:
    if name in INJECTED:
        return
    if name not in space and name in _OTHERS:
        raise TrainFunctionError(
            f"nothing fills the parameter {name!r} of {function}; {_OTHERS[name].format(', '.join(space.names))}"
        )
    if name not in space and name == "self":
        raise TrainFunctionError(
            f"{function} is a method without its object, which nothing fills; pass that of an object, such as "
            f"trainer.{function}"
        )
    if name not in space:
        known = [*space.names, *INJECTED]
        raise TrainFunctionError(
            f"nothing fills the parameter {name!r} of {function}{did_you_mean(name, known)}; "
            f"give it a default, or add it to {source} (which has {', '.join(space.names) or 'nothing'})"
        )
    if space.domains[name].when:
        raise TrainFunctionError(
            f"parameter {name!r} of {function} is conditional in the search space, so it is not always "
            f"set; give it a default, such as {name}=None"
        )
