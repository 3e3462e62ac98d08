"""An ablation as a search, whose optimizer enumerates the variants and seeds."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from maggy_like.ablation.design import AUTO_BOUND, Design, DesignName
from maggy_like.ablation.outcome import AblationRecord
from maggy_like.ablation.study import AblationStudy
from maggy_like.ablation.variant import RESERVED, Declaration, check_filled, names_of, parameters_of
from maggy_like.errors import ConfigError
from maggy_like.train_function.code import name_of
from maggy_like.train_function.load import HasBudget, arguments_for
from maggy_like.train_function.modules import modules_of
from maggy_like.train_function.parameters import check_function
from maggy_like.train_function.pickling import pickle_named, pickle_train_fn
from optimizers.checks import as_int, short
from optimizers.comparisons.repeats import SEED, VARIANT, TunedRepeats, tuned_space
from optimizers.comparisons.sequential_tests import SequentialTests
from optimizers.core.base import Optimizer
from optimizers.space.search_space import SearchSpace

if TYPE_CHECKING:
    from maggy_like.ablation.outcome import Ablation
    from maggy_like.results.result import Result


def check_sendable(study: Declaration) -> None:
    """Check each part of a bound study separately, so that the message has the one that cannot be sent."""
    for what, value in _parts(study):
        pickle_named(value, what)


def _parts(study: Declaration) -> Iterator[tuple[str, Any]]:
    base = study.variant()
    yield "the model's factory", base.factory
    for name, value in base.config.items():
        yield f"the value of {name!r} in the study's config", value
    for component in study.found:
        variant = base.without(component)
        for modules in variant.replaced:
            yield f"the replacement of {component.name!r}", modules.replace
        for change in (*variant.model_changes, *variant.data_changes):
            yield f"the change of {component.name!r}", change
        for name, value in variant.config.items():
            if value is not base.config[name]:
                yield f"the value of {name!r} without {component.name!r}", value


@dataclass(frozen=True)
class AblatedFunction:
    """The function of an ablation's trials: the user's function with the arguments that a variant fills."""

    train_fn: Callable[..., Any]
    design: Design

    @property
    def __name__(self) -> str:  # by which messages call a function
        return name_of(self.train_fn)

    def __call__(self, reporter: HasBudget, **config: Any) -> Any:
        names = names_of(self.train_fn)
        variant = self.design.variant(config.pop(VARIANT))
        searched = {name: value for name, value in config.items() if name != SEED}
        variant = replace(variant, config={**variant.config, **searched})
        # Without torch nothing of it draws random numbers, and a fresh process would take seconds to import it.
        if "model" in names and (self.design.parameters or "torch" in sys.modules):
            from maggy_like.ablation.modules import seed_weights

            seed_weights(config[SEED])
        given = arguments_for(parameters_of(self.train_fn).values(), config, reporter)
        return self.train_fn(**given, **variant.arguments(name for name in names if name not in given))


@dataclass(frozen=True)
class AblationSearch:
    """An ablation as a search."""

    design: Design
    space: SearchSpace
    optimizer: Optimizer  # enumerates the trials
    n_trials: int  # at most
    name: str  # of the optimizer, for people
    record: AblationRecord

    @property
    def preload(self) -> tuple[str, ...]:
        """Modules that workers need in addition to those of the training function."""
        factory = self.design.variants[0].factory
        of_factory = modules_of(factory) if factory is not None else ()
        of_torch = ("maggy_like.ablation.modules",) if self.design.parameters else ()
        return ("maggy_like.ablation.search", *of_torch, *of_factory)

    @property
    def comparisons(self) -> dict[str, Any]:
        """How the trials are compared, as the journal keeps it."""
        kept: dict[str, Any] = msgspec.to_builtins(self.record)
        return kept

    def outcome(self, result: Result) -> Ablation:
        """Return the answer from the trials of a run."""
        return self.record.answer(result, self.design)


def plan_ablation(
    train_fn: Callable[..., Any],
    study: AblationStudy,
    *,
    design: DesignName,
    repeats: int | Literal["auto"],
    first_seed: int,
    searched: SearchSpace | None = None,  # tuned for each variant; None if nothing is
    n_configs: int = 0,  # tried by each variant in each repeat, if something is tuned
    tuner: Optimizer | None = None,  # proposes these configurations
    resampled: float = 0.0,  # ratio of test rows to training rows if each seed splits the same rows; otherwise 0
    negligible: float | None = None,  # difference that is too small to matter, in units of the metric
) -> AblationSearch:
    """Check a study against its function, and make the search of it."""
    first: Any = train_fn
    second: Any = study
    if isinstance(first, AblationStudy) and callable(second):
        raise ConfigError(f"train_fn must be a function, got the study; call ablate({name_of(second)}, study)")
    if not isinstance(study, AblationStudy):
        raise ConfigError(
            f"study must be an AblationStudy, got {short(study)}; use AblationStudy().config(dropout=0.0), or "
            "lagom(train_fn, searchspace) for a search"
        )
    repeats = _read_repeats(repeats)
    check_function(train_fn)
    pickle_train_fn(train_fn)  # by itself, so that what cannot be sent is named as in a search
    names = tuple(searched.names) if searched is not None else ()
    for name in names:
        if name in RESERVED:
            raise ConfigError(f"the search space must not have {name!r}, which the runtime fills; use another name")
    study = study.bound(train_fn)
    check_filled(train_fn, study.without(), study.taken or (), names)
    check_sendable(study)
    designed = study.designed(design)
    kind = f"{design}, repeats={repeats}"
    count, bound = (AUTO_BOUND, AUTO_BOUND) if repeats == "auto" else (repeats, None)
    if searched is None:
        optimizer = designed.optimizer(repeats, first_seed=first_seed, resampled=resampled)
        space = designed.space(repeats, first_seed=first_seed)
    else:
        tests = SequentialTests(designed.contrasts, count, resampled=resampled) if bound is not None else None
        optimizer = TunedRepeats(
            designed.configs, count, searched, n_configs=n_configs, first_seed=first_seed, optimizer=tuner, tests=tests
        )
        space = tuned_space(designed.configs, count, searched, first_seed=first_seed)
        kind = f"{kind}, tune={n_configs}"
    if resampled:
        kind = f"{kind}, resampled={resampled:g}"
    return AblationSearch(
        designed,
        space,
        optimizer,
        n_trials=len(designed.variants) * count * (n_configs + 1),
        name=f"ablation({kind})",
        record=AblationRecord(
            name=designed.name,
            effects=designed.effects,
            parameters=dict(designed.parameters),
            first_seed=first_seed,
            bound=bound,
            seeds=None if searched is None else count,
            n_configs=n_configs,
            planned=None if repeats == "auto" else repeats,
            resampled=resampled,
            negligible=negligible,
        ),
    )


def _read_repeats(repeats: Any) -> int | Literal["auto"]:
    if repeats == "auto":
        return "auto"
    number = None if isinstance(repeats, bool) else _index(repeats)
    if number is None or number < 1:
        hint = as_int(repeats, 1)
        raise ConfigError(f"repeats must be an integer of at least 1, or 'auto', got {repeats!r}{hint and '; '}{hint}")
    return number


def _index(value: Any) -> int | None:
    """An integer, numpy's too, as an int; None for anything else."""
    try:
        return operator.index(value)
    except TypeError:
        return None
