"""Checks of arguments and options, whose messages name the mistake and the remedy."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import math
import operator
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

from optimizers.errors import MaggyError, OptimizerError, UserError


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return a clause with similar names, such as ``(did you mean 'lr'?)`` after a space, or nothing."""
    names = list(known)
    near = [each for each in names if each.lower() == name.lower()]
    near = near or difflib.get_close_matches(name, names, cutoff=cutoff)
    return f" (did you mean {' or '.join(map(repr, near))}?)" if near else ""


def class_name(kind: type) -> str:
    """Return the qualified name of a class, such as ``builtins.ValueError``, which other processes can compare."""
    return f"{kind.__module__}.{kind.__qualname__}"


def integer(
    name: str,
    value: Any,
    *,
    least: int,
    most: int | None = 2**63 - 1,
    hint: str = "",
    error: Callable[[str], UserError] = OptimizerError,
) -> int:
    """Return ``value`` as an int. NumPy's integers are accepted too.

    The message ends with the hint. ``most`` is None for what is neither sent nor converted to a float.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number, hint = least - 1, as_int(value, least) or hint
    if most is not None and number > most:
        raise error(f"{name} must be at most {most}, got {short(value)}{hint and '; '}{hint}")
    if isinstance(value, bool) or number < least:
        raise error(f"{name} must be an integer of at least {least}, got {short(value)}{hint and '; '}{hint}")
    return number


def as_int(value: object, least: float) -> str:
    """Return ``use 1000`` for an integer of at least ``least`` that is a float or text, and nothing otherwise."""
    value = read_text(value)
    if isinstance(value, Integral) or not isinstance(value, Real) or not math.isfinite(value):
        return ""
    number = int(float(value))
    return f"use {number}" if number == value and least <= number < 2**63 else ""


def read_text(value: object) -> object:
    """Return the number that a text such as ``"1e-4"`` has, for a remedy. Anything else is returned unchanged."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value)
    return value


def real(name: str, value: Any, what: str, fits: Callable[[float], bool], hint: str = "") -> float:
    """Return a finite number that fits, as an int or float. The message says what would fit."""
    number = math.nan
    if not isinstance(value, bool) and isinstance(value, Real):
        with contextlib.suppress(OverflowError):
            number = float(value)
    if math.isfinite(number) and fits(number):
        return int(number) if isinstance(value, int) else number
    raise OptimizerError(f"{name} must be {what}, got {short(value)}{hint and '; '}{hint}")


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
"""Where an object is in memory, which tells nobody anything."""


def short(value: object, width: int = 80) -> str:
    """Return a value as it is typed, in one line without addresses, shortened to ``width`` characters."""
    try:
        text = _ADDRESS.sub("", " ".join(repr(value).split("\n")))
    except ValueError:  # Python writes no integer of more than 4,300 digits
        text = f"a value of type {type(value).__name__}"
    return text if len(text) <= width else f"{text[: width - 3]}..."


def describe(made: object) -> str:
    """Return the class of ``made`` and its options, as they would be typed.

    An option is an argument of ``__init__`` that the object holds in an attribute of the same name, with or without a
    leading underscore. A value without a plain form is represented by the name of its class or function, never by an
    address. So the same options give the same text in every process.
    """
    missing = object()
    options = []
    for name in inspect.signature(type(made).__init__).parameters:
        value = getattr(made, name, getattr(made, f"_{name}", missing))
        if name != "self" and value is not missing:
            options.append(f"{name}={_text(value)}")
    return f"{type(made).__name__}({', '.join(options)})"


def _text(value: Any) -> str:
    describes = getattr(value, "describe", None)
    if callable(describes) and not isinstance(value, type):
        return str(describes())
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_text(key)}: {_text(value[key])}" for key in value) + "}"
    if isinstance(value, Set):
        return "{" + ", ".join(sorted(map(_text, value))) + "}"
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return "[" + ", ".join(map(_text, value)) + "]"
    return str(getattr(value, "__qualname__", type(value).__qualname__))


P = ParamSpec("P")
R = TypeVar("R")


def no_attribute(owner: object, name: str, elsewhere: Mapping[str, str]) -> AttributeError:
    """Return the error of a public attribute that an object lacks, with the one that is meant.

    ``elsewhere`` has what to write instead, by the names in other libraries.
    """
    kind = type(owner).__name__
    if name.startswith("_"):
        return AttributeError(f"{kind!r} object has no attribute {name!r}", name=name, obj=owner)
    public = [known for known in dir(owner) if not known.startswith("_")]
    remedy = f"; use {elsewhere[name]}" if name in elsewhere else did_you_mean(name, public, cutoff=0.75)
    return AttributeError(f"{kind!r} object has no attribute {name!r}{remedy}")


_PEERS_WORDS = {
    "train_fn": "objective objective_fn objective_function trainable fn func function target_fn train_function map_fun",
    "searchspace": "search_space space param_space params param_distributions hyperparameters domain domains config",
    "search_space": "searchspace space param_distributions param_grid params",
    "optimizer": "algo algorithm search_alg sampler scheduler tuner strategy suggest",
    "objectives": "metric metrics",
    "metric": "metrics optimization_key monitor scoring objective_name",
    "direction": "directions goal maximize minimize objective_direction",
    "n_trials": "num_samples max_evals num_trials max_trials trials n_iter n_calls n_candidates count samples",
    "timeout": "time_budget_s time_budget max_time max_seconds time_limit walltime",
    "max_budget": "max_epochs epochs num_epochs n_epochs max_t max_iter max_steps steps max_resource budget",
    "budget": "max_budget epochs num_epochs n_epochs max_epochs steps max_steps",
    "min_budget": "grace_period min_t min_resource min_epochs resource_min",
    "eta": "reduction_factor factor",
    "target": "loss_threshold",
    "grace": "grace_period min_steps warmup",
    "min_trials": "min_samples_required n_startup_trials",
    "interval": "perturbation_interval",
    "quantile": "quantile_fraction",
    "workers": "n_jobs num_workers n_workers max_concurrent_trials max_concurrent parallelism np num_proc",
    "engine": "backend executor cluster spark",
    "seed": "random_state random_seed rng rstate",
    "random_state": "seed random_seed rng rstate",
    "scoring": "metric metrics scorer objective",
    "name": "study_name experiment_name run_name project_name",
    "directory": "storage_path local_dir log_dir logdir output_dir save_dir path storage",
    "resume": "load_if_exists restore",
    "max_attempts": "max_failures max_retries max_retries_per_trial retries",
    "max_identical_failures": "alike",
    "catch": "expected",
    "points_to_evaluate": "initial_points initial_configs x0 enqueue enqueue_trial points",
    "config": "params hyperparameters kwargs args searchspace space",
    "search": "estimatorparammaps param_grid param_distributions",
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

_SLIP = 0.9
"""How similar a name must be to one that belongs elsewhere: ``gc_after_trial`` is not ``resources_per_trial``."""

_WIDTH = 60  # characters of a value in a message about an argument


def explains_arguments(elsewhere: Mapping[str, str], unknown: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a public function so that an unknown argument raises an error with the correct name.

    The signature stays the same for readers, ``help()`` and type checkers. ``elsewhere`` has the correct spelling of
    arguments that belong elsewhere, such as ``{"eta": "optimizer=ASHA(eta={})"}``; ``{}`` stands for their value.
    ``unknown`` is the remedy for all other arguments, with ``{name}`` and ``{value}``. Without it, the error lists the
    known arguments.
    """

    def explain(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def explained(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                _check(function.__name__, signature, args, kwargs, elsewhere, unknown)
                return function(*args, **kwargs)
            except (MaggyError, TypeError) as error:
                raise at_the_call(error) from error.__cause__

        return explained

    return explain


_LIBRARIES = frozenset({"maggy_like", "optimizers", "cloudpickle", *sys.stdlib_module_names}) - {"__main__"}


def at_the_call(error: BaseException) -> BaseException:
    """Return a mistake of the caller without the frames of this project, so that its traceback ends at the call.

    An error that code of the caller has raised keeps its traceback, and so does one that has ended a run and that the
    caller cannot correct. If trials failed, the text of the error has the traceback of one of them.
    """
    has_ended_a_run = "result" in vars(error) and not isinstance(error, UserError)
    if has_ended_a_run or not _is_ours(error):
        return error
    cause = error.__cause__
    if cause is not None and _is_ours(cause):
        cause.__traceback__ = None
    return error.with_traceback(None)


def _is_ours(error: BaseException) -> bool:
    """Return whether no code of the caller or of other packages has raised an error."""
    names = [
        frame.f_globals.get("__name__", "").partition(".")[0] for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    return _LIBRARIES.issuperset(names)


_OF_THE_SEARCH = {
    name: f"{name}={{}} in the call of the search"
    for name in ("max_budget", "metric", "n_trials", "seed", "target", "timeout", "workers")
}


def explains_init(cls: type[R], elsewhere: Mapping[str, str] = _OF_THE_SEARCH) -> type[R]:
    """Decorate a class in the same way (see :func:`explains_arguments`)."""
    init: Callable[..., None] = cls.__init__
    signature = inspect.signature(cls)

    @functools.wraps(init)
    def explained(self: R, *args: Any, **kwargs: Any) -> None:
        try:
            _check(cls.__name__, signature, args, kwargs, elsewhere, "")
            init(self, *args, **kwargs)
        except (MaggyError, TypeError) as error:
            raise at_the_call(error) from error.__cause__

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
                remedy = f"; use {unknown.format(name=given, value=short(value, _WIDTH))}"
            listed = "" if remedy else f"; it takes {', '.join(known) or 'no arguments'}"
            return f"{name}() has no argument {given!r}, got {given}={short(value, _WIDTH)}{remedy}{listed}"
    by_place = [p.name for p in known.values() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    others = [p.name for p in known.values() if p.kind is inspect.Parameter.KEYWORD_ONLY]
    spelled = _named(name, signature, args, kwargs) or _spelled(name, by_place, others, args)
    if spelled is not None:
        return spelled
    if len(args) > len(by_place):
        extra = short(args[len(by_place)], _WIDTH)
        taken = f"only {' and '.join(by_place)}" if by_place else "no argument"
        return f"{name}() takes {taken} by position, got {extra}{' after them' if by_place else ''}; " + (
            f"pass it by name: {', '.join(f'{other}=' for other in others[:6])} ..." if others else "leave it out"
        )
    needed = [p.name for p in known.values() if p.name in by_place or p.default is inspect.Parameter.empty]
    return f"{name}(): {error}; it takes {', '.join(needed)}"


def _named(name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Return the message if a domain is given its name first, as in other libraries; None otherwise."""
    if next(iter(signature.parameters), "") not in ("low", "values") or not args or not isinstance(args[0], str):
        return None
    try:
        rest = signature.bind(*args[1:], **kwargs)
    except TypeError:
        return None
    if isinstance(rest.arguments.get("values"), str):  # of several values
        return None
    spelled = [*map(short, args[1:]), *(f"{key}={short(value)}" for key, value in kwargs.items())]
    return (
        f"{name}() takes no name, got {args[0]!r}; use {name}({', '.join(spelled)}), and the name in the search space: "
        f"{{{args[0]!r}: {name}(...)}}"
    )


def _spelled(name: str, by_place: Sequence[str], others: Sequence[str], args: tuple[Any, ...]) -> str | None:
    """Return the message if a list is passed as its items, or the items as a list; None otherwise."""
    are_lists = [isinstance(given, list | tuple) for given in args[:2]]
    if by_place == ["values"] and len(args) > 1 and are_lists != [True, False]:  # else the list is there already
        return f"{name}() takes one list, got {len(args)} values; use {name}([{', '.join(map(short, args))}])"
    if len(by_place) > 1 and len(args) == 1 and isinstance(args[0], list | tuple) and len(args[0]) == len(by_place):
        spelled = ", ".join(map(short, args[0]))
        return f"{name}() takes {' and '.join(by_place)}, got {short(args[0])}; use {name}({spelled})"
    return None


_CLASS = re.compile(r"<class '(?:\w+\.)*(\w+)'>")


def meant(given: str, value: object, known: Collection[str], elsewhere: Mapping[str, str]) -> str:
    """Return a clause with the remedy for an unknown argument, or nothing; see :func:`explains_arguments`."""
    if "optimizer" in known and (ours := instead_of_optuna(value)):
        return f"; use optimizer={ours}"
    typed = _CLASS.sub(r"\1", short(value, _WIDTH))
    if given in elsewhere:
        return f"; use {elsewhere[given].replace('{}', typed)}"
    same = [ours for ours, theirs in _PEERS_WORDS.items() if given.lower() in theirs.split()]
    for ours in same:
        if ours in known:
            return f" (did you mean {ours!r}?)"
    for ours in (*same, *difflib.get_close_matches(given, [*known, *elsewhere], 1, _SLIP)):
        if ours in elsewhere:
            return f"; use {elsewhere[ours].replace('{}', typed)}"
    return did_you_mean(given, known)


def instead_of_optuna(given: object) -> str:
    """Return what to use for a sampler or a pruner of Optuna, or for its class; an empty text for anything else."""
    kind = given if isinstance(given, type) else type(given)
    bases = {base.__name__ for base in kind.__mro__ if base.__module__.partition(".")[0] == "optuna"}
    if "BasePruner" in bases:
        return "'asha', MedianRule('tpe') or another rule that stops trials"
    if "BaseSampler" not in bases:
        return ""
    return COUNTING_SAMPLERS.get(kind.__name__, f"OptunaSampler(lambda seed: {kind.__name__}(seed=seed))")


COUNTING_SAMPLERS = {"GridSampler": "'grid'", "QMCSampler": "'sobol'"}
"""Samplers that count their asks in Optuna's own study, and our optimizers that do the same."""
