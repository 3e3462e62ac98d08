"""One variant of what is studied, and what a training function takes of it."""

from __future__ import annotations

import inspect
import math
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from maggy_like.ablation.components import Features, Modules, Setting, WantedModules, without
from maggy_like.errors import ConfigError, TrainFunctionError
from maggy_like.train_function.code import name_of
from maggy_like.train_function.load import INJECTED as ALWAYS_INJECTED
from optimizers.checks import did_you_mean
from optimizers.comparisons.repeats import SEED
from optimizers.errors import SearchSpaceError
from optimizers.space.scalars import plain, read_scalar, same


def same_value(a: object, b: object) -> bool:
    """Whether two values are the same: 0 and 0.0 are, 1 and True are not.

    Arrays and tables, which ``==`` compares part by part, are the same if they are one object.
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
"""Names that neither a study nor what is searched may set."""

NO_MODEL = "the study has no model; give its factory: AblationStudy(model=make_model)"
NO_DATA = "the study has no data; give it, or the names of its columns: AblationStudy(data=table)"


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function; none if they cannot be read."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}


def names_of(function: Callable[..., Any] | None) -> tuple[str, ...]:
    """The names of a function's parameters, without those of ``*`` and ``**``."""
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = parameters_of(function) if function is not None else {}
    return tuple(name for name, parameter in parameters.items() if parameter.kind not in many)


def takes_anything(function: Callable[..., Any] | None) -> bool:
    """Whether there is a ``**`` parameter."""
    parameters = parameters_of(function) if function is not None else {}
    return any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())


def takes(function: Callable[..., Any] | None, name: str) -> bool:
    """Whether a parameter of the study's configuration reaches a function, by its name or by ``**``."""
    return name in names_of(function) or takes_anything(function)


def call(
    function: Callable[..., Any],
    config: Mapping[str, Any],
    from_data: Mapping[str, Any],
    given: Mapping[str, Any],
    what: str,
) -> Any:
    """Call with what the function has parameters for, and with all that is ``given``.

    A ``**`` parameter gets all of ``config``; what comes from data is given to parameters of that name alone.

    Raises:
        ConfigError: A parameter without a default is not filled.
    """
    names = names_of(function)
    known = {**config, **from_data}
    wanted = {*names, *(config if takes_anything(function) else ())}
    arguments = {name: value for name, value in known.items() if name in wanted} | dict(given)
    for name in names:
        if name not in arguments and parameters_of(function)[name].default is inspect.Parameter.empty:
            near = did_you_mean(name, known)
            raise ConfigError(f"nothing fills the parameter {name!r} of {what}{near}; {_mend(name, known)}")
    return function(**arguments)


def default_of(name: str, *functions: Callable[..., Any] | None) -> Any:
    """The default of a parameter in the first function that has one; ``inspect.Parameter.empty`` if none has."""
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
            f"only train_fn gets it{seeded}: leave it out, or give it a default and build the model in train_fn: "
            f"variant.model({name}={name})"
        )
    return f"give it a default, or a value in AblationStudy(config={{{name!r}: ...}}) (known: {[*known]})"


@dataclass(frozen=True)
class Variant:
    """What a training function gets of an ablation: build the model and cut the table with it.

    Attributes:
        name: Such as ``base``, ``without dropout`` or ``only norm``.
        removed: The names of the components that it is without.
        features: The columns that are kept, in the order of the table, without the label.
        config: The parameters of the study, as this variant has them.

    Example:
        >>> def train(variant, seed):
        ...     table = variant.apply(load())
        ...     x, y = table[variant.features], table["target"]
        ...     model = variant.model()
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
        """A fresh model of the study's factory, with the modules replaced that the variant is without.

        The factory is called by the names of its parameters: those of ``config`` (all of them if it takes ``**``),
        and with data ``features`` (the columns kept) and ``n_features`` (how many). Seed torch before, where the
        weights shall be those of the seed.

        Args:
            **given: More arguments of the factory; they go before the others.

        Raises:
            ConfigError: The study has no factory, or a parameter of it is not filled.
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
        """A pandas, Arrow or Spark table without the columns that the variant is without.

        Raises:
            ConfigError: The table lacks one of them before.
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
        """This variant with more changes: for the functions of custom components.

        Args:
            config: Values of parameters that the study has.
            model: A function that gets the built model (an object, neither its class nor its arguments) and returns
                the one to use: the same, changed in place, or another.
            data: A function of the table as :meth:`apply` has it, that returns the one to use.

        Raises:
            ConfigError: The study does not have a parameter.

        Example:
            >>> study.custom("label smoothing", lambda variant: variant.changed(config={"smoothing": 0.0}))
        """
        for name in config or {}:
            if name not in self.config:
                raise ConfigError(
                    f"the study has no parameter {name!r}{did_you_mean(name, self.config)}; "
                    f"give what it is otherwise: AblationStudy(config={{{name!r}: ...}})"
                )
        return replace(
            self,
            config={**self.config, **(config or {})},
            model_changes=(*self.model_changes, *([model] if model is not None else [])),
            data_changes=(*self.data_changes, *([data] if data is not None else [])),
        )

    def from_data(self) -> dict[str, Any]:
        """What functions get of the study's data; nothing where it has none, so that their own defaults hold."""
        if not self.features and not self.dropped:
            return {}
        return {"features": list(self.features), "n_features": len(self.features)}

    @property
    def fills(self) -> tuple[str, ...]:
        """The parameters of a training function that the variant fills."""
        return ("variant", *(("model",) if self.factory is not None else ()), *self.from_data())

    def arguments(self, parameters: Iterable[str]) -> dict[str, Any]:
        """Those of ``parameters`` that the variant fills: itself, its model (built if asked for), its features."""
        known = {"variant": self, **self.from_data()}
        return {name: self.model() if name == "model" else known[name] for name in parameters if name in self.fills}

    def bare(self) -> Variant:
        """This variant as it can be pickled: without the functions and modules that it is made with.

        Of a parameter that pickle does not take, such as a lambda, the text is kept.
        """
        config = {name: value if _is_picklable(value) else repr(value) for name, value in self.config.items()}
        return replace(self, config=config, factory=None, replaced=(), model_changes=(), data_changes=())

    def without(self, component: Component) -> Variant:
        """This variant without one more component.

        Raises:
            ConfigError: A custom component's function raises, or returns no variant.
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
    """Whatever a function does to a variant."""

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
    """The data of an :class:`~maggy_like.ablation.study.AblationStudy`.

    Attributes:
        factory: Builds the model, if there is one.
        sample: What the model is tried on.
        base: The parameters with nothing removed.
        labels: The columns that are no features.
        columns: The other columns.
        asked: The components; modules are looked up in the model once the study is bound.
        groups: Names of components, by the name of their group.
        taken: The parameters that ``train_fn`` takes by name; None until the study is bound.
    """

    factory: Callable[..., Any] | None
    sample: Any
    base: dict[str, Any]
    labels: tuple[str, ...]
    columns: tuple[str, ...]
    asked: tuple[Component | WantedModules, ...]
    groups: dict[str, tuple[str, ...]]
    taken: tuple[str, ...] | None

    @property
    def found(self) -> tuple[Component, ...]:
        """The components, less the modules that have not been looked up in the model yet."""
        return tuple(component for component in self.asked if not isinstance(component, WantedModules))

    def variant(self, *names: str, called: str | None = None) -> Variant:
        """The variant without some of the components that were found, removed in the order of their declaration.

        Args:
            *names: Names of components; without any, nothing is removed.
            called: The variant's name; by default made from those of the components.
        """
        removed = [component for component in self.found if component.name in names]
        name = called or without_name([component.name for component in removed])
        made = Variant(name, (), list(self.columns), dict(self.base), self.factory)
        for component in removed:
            made = made.without(component)
        return made


def without_name(removed: Sequence[str]) -> str:
    """The name of a variant.

    Example:
        >>> without_name(["A", "B", "C"])
        'without A, B and C'
    """
    if not removed:
        return BASE
    *most, last = removed
    return f"without {', '.join(most)} and {last}" if most else f"without {last}"


def taken(study: Declaration, train_fn: Callable[..., Any]) -> tuple[str, ...]:
    """The study's parameters that ``train_fn`` takes by name, by ``**`` or in ``config``.

    Raises:
        TrainFunctionError: It takes nothing that a component changes, or no seed.
        ConfigError: A value that it takes is none that a trial's configuration may have.
    """
    name, names = name_of(train_fn), names_of(train_fn)
    takes_all = "config" in names or takes_anything(train_fn)
    if SEED not in names and not takes_all:
        raise TrainFunctionError(
            f"repeats differ by their seed, and {name} takes none; add a parameter 'seed', and use it"
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
            raise TrainFunctionError(f"{name} takes nothing that removing {component.name!r} changes; add {one}")
    _check_used(study, name, seen)
    return passed


def check_filled(train_fn: Callable[..., Any], base: Variant, passed: Sequence[str], searched: Sequence[str]) -> None:
    """Check that every parameter of ``train_fn`` is filled, and each that is searched is taken.

    Args:
        train_fn: The user's.
        base: The variant with everything.
        passed: The parameters of the study that the function takes.
        searched: Those that are tuned.

    Raises:
        TrainFunctionError: One is not.
    """
    name, names = name_of(train_fn), names_of(train_fn)
    filled = (*passed, *searched, SEED, *base.fills, *ALWAYS_INJECTED)
    for parameter in parameters_of(train_fn).values():
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise TrainFunctionError(
                f"parameter {parameter.name!r} of {name} is positional-only; parameters are given by name"
            )
        is_needed = parameter.name in names and parameter.default is inspect.Parameter.empty
        if is_needed and parameter.name not in filled:
            raise TrainFunctionError(
                f"nothing fills the parameter {parameter.name!r} of {name}{did_you_mean(parameter.name, filled)}; "
                f"{_mend_required(parameter.name)}"
            )
    takes_all = "config" in names or takes_anything(train_fn)
    for wanted in searched:
        if wanted not in names and not takes_all:
            raise TrainFunctionError(f"{name} has no parameter {wanted!r}{did_you_mean(wanted, names)}; add it")


def _check_used(study: Declaration, function: str, seen: set[str]) -> None:
    """Check that every parameter of the study reaches something that can use it."""
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
                f"only the model's factory takes the parameter {key!r}, and {function} takes no model; add a "
                "parameter 'model' or 'variant'"
            )
        near = did_you_mean(key, {*seen, *names_of(study.factory)})
        raise TrainFunctionError(
            f"nothing uses the parameter {key!r}{near}; add it to the parameters of {function}"
            + (" or of the model's factory" if study.factory is not None else "")
            + ("" if key in ablated else ", or leave it out of the study")
        )


def _noticed_by(variant: Variant, base: Variant) -> tuple[str, ...]:
    """Parameters of a training function, any of which is another with a variant than with the base."""
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
                f"{function} takes the parameter {key!r}, for which the study has a "
                f"{type(variant.config[key]).__name__}, and a trial's configuration has bools, finite numbers, "
                f"strings and None alone; look the value up by a name in {function}, and load data there"
            ) from error


def _mend_required(name: str) -> str:
    if name in FROM_DATA:
        return NO_DATA
    if name == "model":
        return NO_MODEL
    return f"give it a default, or the study a value: AblationStudy(config={{{name!r}: ...}})"
