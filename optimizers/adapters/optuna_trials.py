"""The history of a search as an Optuna study that is kept up to date, not built anew."""

from __future__ import annotations

import copy
from collections.abc import Container, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.storages import BaseStorage, InMemoryStorage
from optuna.trial import FrozenTrial, Trial, TrialState

from optimizers.adapters.optuna_space import distributions, quiet, suggest, to_params
from optimizers.base import History, Observation
from optimizers.losses import tamed
from optimizers.novelty import key
from optimizers.trial import Config


class TrialList(InMemoryStorage):
    """A storage of one study whose trials are a plain list, so that they may also change after their end.

    A trial's id is its number, its place in the list.
    """

    get_best_trial = BaseStorage.get_best_trial  # goes by get_all_trials

    def __init__(self) -> None:
        super().__init__()
        self.trials: list[FrozenTrial] = []
        self.study_attrs: dict[str, Any] = {}

    def add(self, state: TrialState, params: dict[str, Any], dims: dict[str, BaseDistribution]) -> FrozenTrial:
        """Append a trial without a value."""
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
    """One search as an Optuna study, minimised: what ended in order of arrival, then what runs.

    The study is a function of the history's observations in their order; nothing that an ask does
    stays in it.

    Args:
        history: The search.
        marker: For samplers that keep their state in marks on the trials (a generation's number, say):
            a sampler that is asked before each result is entered, for the marks alone. None for others.
    """

    def __init__(self, history: History, marker: BaseSampler | None) -> None:
        self.problem = history.problem
        self.observations = history.observations
        self.keys: set[bytes] = set()
        self._space = history.problem.space
        self._dims = distributions(self._space)
        self._marker = marker
        self._storage = TrialList()
        with quiet():
            self._study = optuna.create_study(storage=self._storage, sampler=marker)
        self._n_seen = 0
        self._places: dict[int, int] = {}  # of our trials in the list
        self._steps: list[int] = []
        self._losses: list[float] = []
        self._entered = np.empty(0)  # the values that the trials have; nan for none

    def serves(self, history: History) -> bool:
        """Whether ``history`` is the one mirrored."""
        return history.observations is self.observations and history.problem is self.problem

    def ask(self, sampler: BaseSampler, history: History) -> Config:
        """What ``sampler`` proposes next; ``history`` is the one that this mirrors."""
        while self._n_seen < len(self.observations):
            self._observe(self.observations[self._n_seen])
            self._n_seen += 1
            if self._marker is not None:  # a later mark depends on the values known at its time
                self._enter_values()
        self._enter_values()
        with self._restored():
            for trial, config in history.pending.items():
                if trial not in self._places:  # a promoted one has a loss, which says more
                    self._storage.add(TrialState.RUNNING, to_params(self._space, config), self._dims)
            return self._suggest(sampler)[1]

    def _observe(self, seen: Observation) -> None:
        """Enter a result. A trial keeps the place of its first one and takes the loss at its highest step."""
        place = self._places.get(seen.trial)
        if place is None:
            place = self._places[seen.trial] = len(self._storage.trials)
            marks = self._marks()
            trial = self._storage.add(TrialState.FAIL, to_params(self._space, seen.config), self._dims)
            trial.system_attrs = marks
            self._steps.append(seen.step)
            self._losses.append(seen.loss)
            self.keys.add(key(self._space, seen.config))
        elif seen.step >= self._steps[place]:
            self._steps[place], self._losses[place] = seen.step, seen.loss
        self._storage.trials[place].intermediate_values[seen.step] = seen.loss

    def _marks(self) -> dict[str, Any]:
        """The marks that the trial about to be entered would have, had it been asked for just now."""
        if self._marker is None:
            return {}
        marked = self._storage.get_trial(self._suggest(self._marker)[0].number)
        self._storage.trials.pop()
        return marked.system_attrs

    def _suggest(self, sampler: BaseSampler) -> tuple[Trial, Config]:
        self._study.sampler = sampler
        trial = self._study.ask()
        return trial, suggest(self._space, self._dims, trial)

    def _enter_values(self) -> None:
        """Give the trials values that a model can work with; few change from one ask to the next."""
        values = tamed(np.array(self._losses))
        known = np.full(len(values), np.nan)
        known[: len(self._entered)] = self._entered
        for place in np.flatnonzero(values != known):
            trial, usable = self._storage.trials[place], bool(np.isfinite(values[place]))
            trial.state = TrialState.COMPLETE if usable else TrialState.FAIL
            trial.value = float(values[place]) if usable else None
        self._entered = values

    @contextmanager
    def _restored(self) -> Iterator[None]:
        """Undo what happens to the study within."""
        attrs, n = dict(self._storage.study_attrs), len(self._storage.trials)
        try:
            yield
        finally:
            self._storage.study_attrs = attrs
            del self._storage.trials[n:]
