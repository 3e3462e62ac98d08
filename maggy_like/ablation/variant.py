"""One variant of what is studied: without some of the components."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from maggy_like.ablation.calls import NO_MODEL, call
from maggy_like.ablation.components import Features, Modules, Setting
from maggy_like.ablation.tables import without
from maggy_like.errors import ConfigError
from optimizers.checks.near_names import did_you_mean


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
