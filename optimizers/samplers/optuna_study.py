"""The history of a search as an Optuna study, updated incrementally."""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseGASampler, BaseSampler, BruteForceSampler, CmaEsSampler, PartialFixedSampler
from optuna.storages import BaseStorage, InMemoryStorage
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from optimizers.core.base import History, Observation
from optimizers.errors import OptimizerError, SearchSpaceError
from optimizers.samplers.model_based import clipped
from optimizers.samplers.optuna_space import distributions, quiet, suggest, to_param, to_params
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace


class Independent(BaseSampler):
    """Draw each parameter independently, as ``sampler`` draws those that it does not model jointly.

    Most samplers draw those at random, so proposals repeat less often. A ``PartialFixedSampler`` keeps its fixed
    values.
    """

    def __init__(self, sampler: BaseSampler) -> None:
        self._sampler = sampler

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._sampler.sample_independent(study, trial, param_name, param_distribution)


def innermost(sampler: BaseSampler) -> BaseSampler:
    """Return the sampler, or the one inside all ``PartialFixedSampler``."""
    *_, inner = _layers(sampler)
    return inner


def uses_system_attrs(sampler: BaseSampler) -> bool:
    """Return whether the sampler keeps its state in the trials' system attributes."""
    return isinstance(innermost(sampler), (CmaEsSampler, BaseGASampler))


def is_exhaustive(sampler: BaseSampler) -> bool:
    """Return whether the sampler tries all configurations before it repeats one."""
    return isinstance(innermost(sampler), BruteForceSampler)


def fixed_values(sampler: BaseSampler) -> dict[str, Any]:
    """Return the values that ``PartialFixedSampler`` fixes."""
    fixed: dict[str, Any] = {}
    for layer in _layers(sampler):
        if isinstance(layer, PartialFixedSampler):
            fixed = {**layer._fixed_params, **fixed}
    return fixed


def check_fixed(sampler: BaseSampler, space: SearchSpace) -> None:
    """Check that the search space has the values that ``PartialFixedSampler`` fixes."""
    for name, value in fixed_values(sampler).items():
        if name not in space:
            raise OptimizerError(f"PartialFixedSampler must fix one of {list(space)}, got {name!r}")
        try:
            space.domains[name].normalize(value)
        except SearchSpaceError as error:
            raise OptimizerError(f"PartialFixedSampler cannot fix {name!r}: {error}") from None


def translate_fixed(sampler: BaseSampler, space: SearchSpace) -> None:
    """Convert the values that ``PartialFixedSampler`` fixes to those that samplers see."""
    for layer in _layers(sampler):
        if isinstance(layer, PartialFixedSampler):
            given = layer._fixed_params.items()
            layer._fixed_params = {n: to_param(space.domains[n], value) for n, value in given if n in space.dimensions}


def _layers(sampler: BaseSampler) -> Iterator[BaseSampler]:
    yield sampler
    while isinstance(sampler, PartialFixedSampler):
        sampler = sampler._base_sampler
        yield sampler


class TrialList(InMemoryStorage):
    """A storage of one study whose trials are a plain list, so that they may change after their end.

    A trial's id is its number, its place in the list.
    """

    get_best_trial = BaseStorage.get_best_trial  # uses get_all_trials

    def __init__(self) -> None:
        super().__init__()
        self.trials: list[FrozenTrial] = []
        self.study_attrs: dict[str, Any] = {}

    def add(self, state: TrialState, params: dict[str, Any], dims: dict[str, BaseDistribution]) -> FrozenTrial:
        number = len(self.trials)
        active = {name: dims[name] for name in params}
        self.trials.append(FrozenTrial(number, state, None, None, None, params, active, {}, {}, {}, number))
        return self.trials[-1]

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        return self.add(TrialState.RUNNING, {}, {}).number

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        trial = self.trials[trial_id]
        trial.params[param_name] = distribution.to_external_repr(param_value_internal)
        trial.distributions[param_name] = distribution

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        self.trials[trial_id].system_attrs[key] = value

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return self.study_attrs

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        self.study_attrs[key] = value

    def get_trial(self, trial_id: int) -> FrozenTrial:
        return self.trials[trial_id]

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        trials = [trial for trial in self.trials if states is None or trial.state in states]
        return copy.deepcopy(trials) if deepcopy else trials


class StudyMirror:
    """A search as an Optuna study that minimizes: ended trials in order of arrival, then running ones.

    The study depends only on the history's observations in their order. No ask leaves anything in it.

    ``observer`` is a sampler whose ``after_trial`` is called with each result, to enter the values of constraints. If
    samplers keep state in the trials' system attributes (a generation's number, for example), it is also asked before
    each result, only for those attributes.
    """

    def __init__(self, history: History, observer: BaseSampler) -> None:
        self.problem = history.problem
        self.observations = history.observations
        self.keys: set[bytes] = set()
        self._space = history.problem.space
        self._dims = distributions(self._space)
        self._observer = observer
        self._uses_system_attrs = uses_system_attrs(observer)
        self._storage = TrialList()
        with quiet():
            directions = [StudyDirection.MINIMIZE] * history.problem.n_objectives
            self._study = optuna.create_study(storage=self._storage, sampler=observer, directions=directions)
        self._n_seen = 0
        self._places: dict[int, int] = {}  # of our trials in the list
        self._steps: list[int] = []
        self._losses: list[tuple[float, ...]] = []
        self._entered = np.empty((0, history.problem.n_objectives))  # values of the trials; nan for none
        self._constrained = False

    def serves(self, history: History) -> bool:
        """Return whether ``history`` is the mirrored one."""
        return history.observations is self.observations and history.problem is self.problem

    @contextmanager
    def asked(self, history: History) -> Iterator[Callable[[BaseSampler], Config]]:
        """Yield a function that asks one sampler, for use inside the block. ``history`` is the mirrored one."""
        self._catch_up()
        exhaustive = is_exhaustive(self._observer)
        with self._restored():
            for trial, config in history.pending.items():
                if trial not in self._places:  # a promoted one has a loss, which is more informative
                    # To a sampler that tries all configurations, a running one is tried.
                    self._enter(config, TrialState.FAIL if exhaustive else TrialState.RUNNING)
            yield self._draw

    def refuse(self, config: Config) -> None:
        """Enter a rejected proposal as a failed one, until the current ask ends."""
        self._enter(config, TrialState.FAIL)

    def _draw(self, sampler: BaseSampler) -> Config:
        with self._restored():
            return self._suggest(sampler)[1]

    def _enter(self, config: Config, state: TrialState) -> FrozenTrial:
        return self._storage.add(state, to_params(self._space, config), self._dims)

    def _catch_up(self) -> None:
        while self._n_seen < len(self.observations):
            seen = self.observations[self._n_seen]
            if self.problem.n_objectives == 1 or seen.losses:  # of several objectives, a running trial has none yet
                self._observe(seen)
            self._n_seen += 1
            if self._uses_system_attrs:  # later attributes depend on the values known at that time
                self._enter_values()
        self._enter_values()

    def _observe(self, seen: Observation) -> None:
        """Enter a result. A trial keeps the place of its first one and takes the loss at its highest step."""
        losses = seen.losses or (seen.loss,)
        place = self._places.get(seen.trial)
        if place is None:
            place = self._places[seen.trial] = len(self._storage.trials)
            attrs = self._system_attrs()
            self._enter(seen.config, TrialState.FAIL).system_attrs = attrs
            self._steps.append(seen.step)
            self._losses.append(losses)
            self.keys.add(self._space.key(seen.config))
        elif seen.step >= self._steps[place]:
            self._steps[place], self._losses[place] = seen.step, losses
        self._storage.trials[place].intermediate_values[seen.step] = seen.loss
        if seen.ended:
            self._tell(self._storage.trials[place], seen, losses)

    def _tell(self, trial: FrozenTrial, seen: Observation, losses: tuple[float, ...]) -> None:
        """Pass a result to the observer, as Optuna does before it enters the values."""
        if is_exhaustive(self._observer):  # it would end the study here, but None from ask() does that
            return
        trial.user_attrs = dict(seen.metrics)
        view = copy.copy(trial)  # with the values of the search space instead of indexes
        view.params = dict(seen.config)
        view.state = TrialState.RUNNING
        finite = all(map(np.isfinite, losses))
        state, values = (TrialState.COMPLETE, list(losses)) if finite else (TrialState.FAIL, None)
        try:
            self._observer.after_trial(self._study, view, state, values)
        except Exception as error:
            raise OptimizerError(
                f"{type(self._observer).__name__} cannot read trial {seen.trial} with user_attrs "
                f"{trial.user_attrs!r}: {type(error).__name__}: {error}; a constraints_func finds the metrics that "
                "train_fn returned or reported in trial.user_attrs, and the configuration in trial.params"
            ) from error
        self._constrained = self._constrained or bool(trial.constraints)

    def _system_attrs(self) -> dict[str, Any]:
        """Return the system attributes that the next trial would have if it were asked for now."""
        if not self._uses_system_attrs:
            return {}
        asked = self._storage.get_trial(self._suggest(self._observer)[0].number)
        self._storage.trials.pop()
        return asked.system_attrs

    def _suggest(self, sampler: BaseSampler) -> tuple[Trial, Config]:
        self._study.sampler = sampler
        trial = self._study.ask()
        return trial, suggest(self._space, self._dims, trial)

    def _enter_values(self) -> None:
        """Give the trials values that a model can use. Few change from one ask to the next."""
        values = self._values()
        known = np.full(values.shape, np.nan)
        known[: len(self._entered)] = self._entered
        stays = (values == known) | (np.isnan(values) & np.isnan(known))
        for place in np.flatnonzero(~stays.all(axis=1)):
            trial, usable = self._storage.trials[place], bool(np.isfinite(values[place]).all())
            trial.state = TrialState.COMPLETE if usable else TrialState.FAIL
            trial.values = values[place].tolist() if usable else None
        self._entered = values

    def _values(self) -> NDArray[np.float64]:
        """Return the losses to enter for each trial, shape (n, objectives); nan for a trial that counts as failed.

        A trial without a loss has the worst of each objective. With constraints, it counts as failed, because it lacks
        their values, and Optuna accepts no trial without them.
        """
        losses = np.array(self._losses, dtype=float).reshape(len(self._losses), self.problem.n_objectives)
        losses[~np.isfinite(losses).all(axis=1)] = np.inf
        values = np.column_stack([clipped(column) for column in losses.T])
        if self._constrained:
            values[[not trial.constraints for trial in self._storage.trials[: len(values)]]] = np.nan
        return values

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """Undo all changes to the study inside the block."""
        attrs, n = dict(self._storage.study_attrs), len(self._storage.trials)
        try:
            yield
        finally:
            self._storage.study_attrs = attrs
            del self._storage.trials[n:]
