"""One variant of a study, and the arguments that it fills in a training function."""

from __future__ import annotations

import inspect
import math
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from maggy_like.ablation.components import Features, Modules, Setting, WantedModules, without
from maggy_like.errors import ConfigError, TrainFunctionError
from maggy_like.train_function.code import INJECTED as ALWAYS_INJECTED
from maggy_like.train_function.code import name_of
from optimizers.checks import did_you_mean
from optimizers.comparisons.repeats import SEED
from optimizers.errors import SearchSpaceError
from optimizers.space.scalars import plain, read_scalar, same


def same_value(a: object, b: object) -> bool:
    """Whether two values are the same: 0 and 0.0 are, 1 and True are not.

    Arrays and tables, which ``==`` compares element by element, are the same if they are one object.
    """
    a, b = plain(a), plain(b)
    if a is b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)):
        return True
    try:
        return bool(same(a, b))
    except Exception:  # ValueError of arrays and tables, RuntimeError of tensors, TypeError of missing values
        return False


FROM_DATA = ("features", "n_features")
"""Parameters that a variant fills if the study has data."""

INJECTED = ("variant", "model", *FROM_DATA)
"""Parameters of a training function that a variant fills."""

RESERVED = (SEED, *INJECTED, *ALWAYS_INJECTED)
"""Names that neither a study nor a search space may use."""

NO_MODEL = "the study must have a model, got none; use AblationStudy(model=make_model)"
NO_DATA = "the study must have data, got none; use AblationStudy(data=table), or the names of its columns"


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a function; none if they cannot be read."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def names_of(function: Callable[..., Any] | None) -> tuple[str, ...]:
    """Return the names of a function's parameters, without those of ``*`` and ``**``."""
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = parameters_of(function) if function is not None else {}
    return tuple(name for name, parameter in parameters.items() if parameter.kind not in many)


def takes_anything(function: Callable[..., Any] | None) -> bool:
    """Whether there is a ``**`` parameter."""
    parameters = parameters_of(function) if function is not None else {}
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


def takes(function: Callable[..., Any] | None, name: str) -> bool:
    """Whether a function takes a parameter of the study, by its name or by ``**``."""
    return name in names_of(function) or takes_anything(function)


def call(
    function: Callable[..., Any],
    config: Mapping[str, Any],
    from_data: Mapping[str, Any],
    given: Mapping[str, Any],
    what: str,
) -> Any:
    """Call a function with the values of its parameters, and with everything in ``given``.

    A ``**`` parameter receives all of ``config``. Values from data are passed only to parameters of their name.
    Parameters without a default must have a value.
    """
    names = names_of(function)
    known = {**config, **from_data}
    wanted = {*names, *(config if takes_anything(function) else ())}
    arguments = {name: value for name, value in known.items() if name in wanted} | dict(given)
    for name in names:
        if name not in arguments and parameters_of(function)[name].default is inspect.Parameter.empty:
            near = did_you_mean(name, known)
            raise ConfigError(
                f"the parameter {name!r} of {what} must have a value, got none{near}; {_mend(name, known)}"
            )
    return function(**arguments)


def default_of(name: str, *functions: Callable[..., Any] | None) -> Any:
    """Return a parameter's default in the first function that has one; ``inspect.Parameter.empty`` if none has."""
    for function in functions:
        parameter = parameters_of(function).get(name) if function is not None else None
        if parameter is not None and parameter.default is not inspect.Parameter.empty:
            return parameter.default
    return inspect.Parameter.empty


def _mend(name: str, known: Mapping[str, Any]) -> str:
    if name in FROM_DATA:
        return NO_DATA
    if name in RESERVED:
        seeded = ", and torch is seeded before `model` is built" if name == SEED else ""
        return (
            f"only train_fn receives it{seeded}; remove it, or give it a default and build the model in train_fn: "
            f"variant.model({name}={name})"
        )
    return f"give it a default, or use AblationStudy(config={{{name!r}: ...}}) (known: {[*known]})"


@dataclass(frozen=True)
class Variant:
    """Build the model and select the data of one variant, in a training function.

    A training function of an ablation receives it if it has a parameter ``variant``.

    Attributes:
        name: Name, such as ``base``, ``without dropout`` or ``only norm``.
        removed: Names of the components that are removed.
        features: Kept columns, in the order of the table, without the label.
        config: Parameters of the study in this variant, by name.

    Example:
        >>> from sklearn.tree import DecisionTreeClassifier
        >>> def train(variant, seed):
        ...     kept = variant.apply(table)
        ...     x, y = kept[variant.features], kept["target"]
        ...     return DecisionTreeClassifier(max_depth=2, random_state=seed).fit(x, y).score(x, y)
        >>> study = AblationStudy(data=table, label="target").features(worst="worst *")
        >>> ablate(train, study).rows[0].component
        'worst'
    """

    name: str
    removed: tuple[str, ...]
    features: list[str]
    config: dict[str, Any]
    factory: Callable[..., Any] | None = field(default=None, repr=False)
    dropped: tuple[str, ...] = field(default=(), repr=False)
    replaced: tuple[Modules, ...] = field(default=(), repr=False)
    model_changes: tuple[Callable[[Any], Any], ...] = field(default=(), repr=False)
    data_changes: tuple[Callable[[Any], Any], ...] = field(default=(), repr=False)

    def model(self, **given: Any) -> Any:
        """Build a new model by the study's factory, and replace the modules that this variant removes.

        The factory is called by the names of its parameters: those of ``config`` (all of them if it takes ``**``), and
        with data also ``features`` (the kept columns) and ``n_features`` (their number). Call
        ``torch.manual_seed(seed)`` first to make the weights depend on the seed.

        Args:
            **given: Further arguments of the factory, which override the others.

        Raises:
            ConfigError: The study has no factory, or one of its parameters has no value.

        Example:
            >>> variant = study.without("norm")
            >>> variant.model(width=64).inlet
            Linear(in_features=30, out_features=64, bias=True)
        """
        if self.factory is None:
            raise ConfigError(NO_MODEL)
        model = call(self.factory, self.config, self.from_data(), given, "the model's factory")
        if self.replaced:
            from maggy_like.ablation.modules import replace_modules

            replace_modules(model, self.replaced)
        for change in self.model_changes:
            model = change(model)
        return model

    def apply(self, table: Any) -> Any:
        """Return a table without the columns that this variant removes.

        Args:
            table: Table of pandas, Arrow or Spark.

        Raises:
            ConfigError: The table lacks one of the columns.

        Example:
            >>> study = AblationStudy(data=table, label="target").features(worst="worst *")
            >>> study.without("worst").apply(table).shape
            (569, 21)
        """
        if self.dropped:
            table = without(table, self.dropped)
        for change in self.data_changes:
            table = change(table)
        return table

    def changed(
        self,
        *,
        config: Mapping[str, Any] | None = None,
        model: Callable[[Any], Any] | None = None,
        data: Callable[[Any], Any] | None = None,
    ) -> Variant:
        """Return this variant with further changes, for the functions of custom components.

        Args:
            config: Values of parameters of the study.
            model: Function from the built model, which is an object, to the model to use: the same, changed in place,
                or another.
            data: Function from the table that :meth:`apply` returns to the table to use.

        Raises:
            ConfigError: The study does not have a parameter.

        Example:
            >>> study = AblationStudy(config={"smoothing": 0.1})
            >>> study = study.custom("label smoothing", lambda variant: variant.changed(config={"smoothing": 0.0}))
            >>> study.without("label smoothing").config
            {'smoothing': 0.0}
        """
        for name in config or {}:
            if name not in self.config:
                raise ConfigError(
                    f"config must have parameters of the study, got {name!r}{did_you_mean(name, self.config)}; use "
                    f"AblationStudy(config={{{name!r}: ...}}) for its value in the base"
                )
        return replace(
            self,
            config={**self.config, **(config or {})},
            model_changes=(*self.model_changes, *([model] if model is not None else [])),
            data_changes=(*self.data_changes, *([data] if data is not None else [])),
        )

    def from_data(self) -> dict[str, Any]:
        """Return the arguments from the study's data; empty without data, so that defaults of functions apply."""
        if not self.features and not self.dropped:
            return {}
        return {"features": list(self.features), "n_features": len(self.features)}

    @property
    def fills(self) -> tuple[str, ...]:
        """Return the parameters of a training function that the variant fills."""
        return ("variant", *(("model",) if self.factory is not None else ()), *self.from_data())

    def arguments(self, parameters: Iterable[str]) -> dict[str, Any]:
        """Return those of ``parameters`` that the variant fills: itself, its model, its features."""
        known = {"variant": self, **self.from_data()}
        return {name: self.model() if name == "model" else known[name] for name in parameters if name in self.fills}

    def bare(self) -> Variant:
        """Return this variant in a form that can be pickled, without functions and modules.

        Of a parameter that cannot be pickled, such as a lambda, the text is kept.
        """
        config = {name: value if _is_picklable(value) else repr(value) for name, value in self.config.items()}
        return replace(self, config=config, factory=None, replaced=(), model_changes=(), data_changes=())

    def without(self, component: Component) -> Variant:
        """Return this variant with one more component removed.

        Raises:
            ConfigError: A custom component's function raises, or does not return a variant.
        """
        made = replace(self, removed=(*self.removed, component.name))
        if isinstance(component, Features):
            kept = [name for name in self.features if name not in component.columns]
            dropped = dict.fromkeys((*self.dropped, *component.columns))
            return replace(made, features=kept, dropped=tuple(dropped))
        if isinstance(component, Modules):
            return replace(made, replaced=(*self.replaced, component))
        if isinstance(component, Setting):
            return replace(made, config={**self.config, component.name: component.value})
        try:
            changed = component.change(made)
        except Exception as error:
            raise ConfigError(f"the function of {component.name!r} raised {error!r}") from error
        if not isinstance(changed, Variant):
            raise ConfigError(
                f"the function of {component.name!r} must return a variant, such as variant.changed(config=...), "
                f"got {changed!r}"
            )
        return changed


@dataclass(frozen=True)
class Custom:
    """A function from a variant to another."""

    name: str
    change: Callable[[Variant], Variant]


Component = Features | Modules | Setting | Custom


def _is_picklable(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # PicklingError, TypeError, AttributeError, whatever a value's own __reduce__ raises
        return False
    return True


BASE = "base"
"""Name of the variant with nothing removed."""


class Declaration:
    """The data of an :class:`~maggy_like.ablation.study.AblationStudy`."""

    factory: Callable[..., Any] | None  # builds the model
    sample: Any  # input to try the model with
    base: dict[str, Any]  # parameters with nothing removed
    labels: tuple[str, ...]  # columns that are not features
    columns: tuple[str, ...]  # other columns
    asked: tuple[Component | WantedModules, ...]  # modules are looked up in the model when the study is bound
    groups: dict[str, tuple[str, ...]]  # names of components, by the name of their group
    taken: tuple[str, ...] | None  # parameters that `train_fn` takes by name; None until the study is bound

    @property
    def found(self) -> tuple[Component, ...]:
        """The components, without modules that have not been looked up in the model yet."""
        return tuple(component for component in self.asked if not isinstance(component, WantedModules))

    def variant(self, *names: str, called: str | None = None) -> Variant:
        """Return the variant without some of the found components, removed in the order of their declaration.

        Args:
            *names: Names of components; none for the base.
            called: Name of the variant. Default: made from those of the components.
        """
        removed = [component for component in self.found if component.name in names]
        name = called or without_name([component.name for component in removed])
        made = Variant(name, (), list(self.columns), dict(self.base), self.factory)
        for component in removed:
            made = made.without(component)
        return made


def without_name(removed: Sequence[str]) -> str:
    """Return the name of a variant.

    Example:
        >>> without_name(["A", "B", "C"])
        'without A, B and C'
    """
    if not removed:
        return BASE
    *most, last = removed
    return f"without {', '.join(most)} and {last}" if most else f"without {last}"


def taken(study: Declaration, train_fn: Callable[..., Any]) -> tuple[str, ...]:
    """Return the study's parameters that ``train_fn`` takes by name, by ``**`` or in ``config``.

    Check that it takes a seed and something that each component changes, and that a trial's configuration can have
    their values.
    """
    name, names = name_of(train_fn), names_of(train_fn)
    takes_all = "config" in names or takes_anything(train_fn)
    if SEED not in names and not takes_all:
        raise TrainFunctionError(
            f"{name} must have a parameter 'seed', got none; add it, and use it to make repeats differ"
        )
    passed = tuple(key for key in study.base if key in names or takes_all)
    seen = {*names, *passed}
    base = study.variant()
    _check_scalars(base, passed, name)
    for component in study.found:
        variant = base.without(component)
        _check_scalars(variant, passed, name)
        needs = _noticed_by(variant, base)
        if not isinstance(component, Setting) and not any(need in seen for need in needs):
            one = f"one of the parameters {', '.join(needs)}" if len(needs) > 1 else f"the parameter {needs[0]}"
            raise TrainFunctionError(
                f"{name} must take something that removing {component.name!r} changes, got nothing; add {one}"
            )
    _check_used(study, name, seen)
    return passed


def check_filled(train_fn: Callable[..., Any], base: Variant, passed: Sequence[str], searched: Sequence[str]) -> None:
    """Check that every parameter of ``train_fn`` has a value, and that it takes every tuned parameter.

    ``base`` is the variant with nothing removed, ``passed`` has the parameters of the study that the function takes,
    and ``searched`` the tuned ones.
    """
    name, names = name_of(train_fn), names_of(train_fn)
    filled = (*passed, *searched, SEED, *base.fills, *ALWAYS_INJECTED)
    for parameter in parameters_of(train_fn).values():
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise TrainFunctionError(
                f"parameter {parameter.name!r} of {name} must be passed by name, got a positional-only one; remove the "
                "'/'"
            )
        is_needed = parameter.name in names and parameter.default is inspect.Parameter.empty
        if is_needed and parameter.name not in filled:
            raise TrainFunctionError(
                f"the parameter {parameter.name!r} of {name} must have a value, got "
                f"none{did_you_mean(parameter.name, filled)}; {_mend_required(parameter.name)}"
            )
    takes_all = "config" in names or takes_anything(train_fn)
    for wanted in searched:
        if wanted not in names and not takes_all:
            raise TrainFunctionError(f"{name} must have the parameter {wanted!r}{did_you_mean(wanted, names)}; add it")


def _check_used(study: Declaration, function: str, seen: set[str]) -> None:
    """Check that every parameter of the study reaches a function that can use it."""
    if "variant" in seen:  # it has them all
        return
    ablated = {component.name for component in study.found if isinstance(component, Setting)}
    for key in study.base:
        by_factory = takes(study.factory, key)
        by_sample = key not in ablated and takes(study.sample, key)
        if key in seen or by_sample or (by_factory and "model" in seen):
            continue
        if by_factory:
            raise TrainFunctionError(
                f"{function} must have a parameter 'model' or 'variant', because only the model's factory takes the "
                f"parameter {key!r}; add one of them"
            )
        near = did_you_mean(key, {*seen, *names_of(study.factory)})
        raise TrainFunctionError(
            f"the parameter {key!r} must be used, got no function that takes it{near}; add it to {function}"
            + (" or to the model's factory" if study.factory is not None else "")
            + ("" if key in ablated else ", or remove it from the study")
        )


def _noticed_by(variant: Variant, base: Variant) -> tuple[str, ...]:
    """Return the parameters of a training function that a variant changes."""
    columns = FROM_DATA if variant.features != base.features else ()
    values = tuple(key for key, value in variant.config.items() if not same_value(value, base.config[key]))
    by_factory = any(takes(base.factory, key) for key in values)
    builds = by_factory or variant.replaced or variant.model_changes or variant.factory is not base.factory
    return ("variant", *columns, *(("model",) if builds else ()), *values)


def _check_scalars(variant: Variant, passed: Sequence[str], function: str) -> None:
    for key in passed:
        try:
            read_scalar(variant.config[key])
        except SearchSpaceError as error:
            raise ConfigError(
                f"the parameter {key!r} of {function} must be a bool, a finite number, a string or None, got a "
                f"{type(variant.config[key]).__name__}; pass a name and look the value up in {function}, and load data "
                "there"
            ) from error


def _mend_required(name: str) -> str:
    if name in FROM_DATA:
        return NO_DATA
    if name == "model":
        return NO_MODEL
    return f"give it a default, or use AblationStudy(config={{{name!r}: ...}})"
