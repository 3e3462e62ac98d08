"""A study: its state, and asking for and telling it of trials.

``apply`` is the only method that changes a study, so the journal of its events is the study: replaying them gives the
same trials, rungs and pending promotions.

Without the runtime, a study is a plain ask/tell library::

    study = Study({"x": Float(-5, 5)}, RandomSearch(), direction="min", n_trials=20)
    while (trial := study.ask()) is not None:
        study.tell(trial, (trial.config["x"] - 2) ** 2)
    study.best.config
"""

from __future__ import annotations

import math
import operator
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from optimizers.checks import as_int, explains_init, instead_of_optuna, integer, no_attribute, short
from optimizers.core.base import WAIT, Answer, Decision, Observation, Optimizer, Problem, Proposal, Wait
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, Measured, TrialCreated
from optimizers.core.objectives import Directions, Objectives
from optimizers.core.study_state import StudyState, ValueRule
from optimizers.core.trial import Failure, FailureKind, Trial, TrialState
from optimizers.errors import OptimizerError, SearchSpaceError, UserError
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace

_ELSEWHERE = {
    "best_params": "best.config",
    "best_trial": "best",
    "best_trials": "pareto",
    "best_value": "best.value",
    "enqueue_trial": "Study(..., points=[...])",
    "optimize": "ask(), and tell(trial, value) in a loop",
}
"""What Optuna calls the attributes of a study."""


@partial(explains_init, elsewhere={})
class Study(StudyState):
    """Run a search by ask and tell.

    Args:
        space: The search space, or any mapping that :class:`SearchSpace` reads.
        optimizer: Proposes configurations and provides the scheduler.
        direction: ``max`` or ``min``, or one per objective. None (the default) infers it from the objective's name, at
            the latest at the first report (see :class:`~optimizers.core.objectives.Objectives`).
        objectives: Names of the reported objectives. Optional if there is only one.
        value: Rule for a trial's value: the ``best`` of its reports (the default), or the ``last`` (see
            :class:`~optimizers.core.study_state.Ranking`).
        seed: Source of all randomness.
        max_budget: Steps of a full training.
        n_trials: Upper bound on the number of configurations. None for no bound, 0 for a training without a search.
        points: Configurations to try before those of the optimizer. The attribute also has the other ones of
            :func:`~optimizers.core.study.initial_points`.
        earlier: Observations of earlier searches (see :attr:`Problem.earlier`).
        is_timed: Whether only time bounds the search (see :attr:`Problem.is_timed`).

    Raises:
        OptimizerError: The optimizer cannot serve this problem.
        SearchSpaceError: The space or a point is not valid.
        UserError: Another argument has the wrong type, or is too small.

    Example:
        >>> study = Study({"x": Float(-5, 5)}, RandomSearch(), direction="min", n_trials=20)
        >>> while (trial := study.ask()) is not None:
        ...     study.tell(trial, (trial.config["x"] - 2) ** 2)
        >>> study.best.config
        {'x': 2.596867520633693}
    """

    def __init__(
        self,
        space: SearchSpace | Mapping[str, Any],
        optimizer: Optimizer,
        *,
        direction: Directions = None,
        objectives: Sequence[str] = (),
        value: ValueRule = "best",
        seed: int = 0,
        max_budget: int = 1,
        n_trials: int | None = None,
        points: Sequence[Mapping[str, Any]] = (),
        earlier: Sequence[Sequence[Observation]] = (),
        is_timed: bool = False,
    ) -> None:
        wanted = Objectives(direction, objectives)
        problem = checked_problem(
            space,
            optimizer,
            wanted,
            seed=seed,
            max_budget=max_budget,
            n_trials=n_trials,
            points=points,
            earlier=earlier,
            is_timed=is_timed,
        )
        super().__init__(problem, optimizer, wanted, initial_points(problem, points), value)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise no_attribute(self, name, _ELSEWHERE)

    @classmethod
    def of_checked(
        cls,
        problem: Problem,
        optimizer: Optimizer,
        objectives: Objectives,
        points: tuple[Config, ...],
        value: ValueRule,
    ) -> Study:
        """Return a study of arguments that were checked before.

        Args:
            problem: The search, checked against ``optimizer``.
            optimizer: Proposes configurations and provides the scheduler.
            objectives: The objectives.
            points: All points of :func:`~optimizers.core.study.initial_points`.
            value: Rule for the value of a trial.
        """
        study = cls.__new__(cls)
        StudyState.__init__(study, problem, optimizer, objectives, points, value)
        return study

    # -- events -------------------------------------------------------------------------------

    def conclude(
        self,
        trial: Trial,
        value: float | None,
        metrics: Mapping[str, float],
        now: float,
        attributes: Mapping[str, Any] | None = None,
        *,
        whole: bool = False,
    ) -> list[Event]:
        """Return the events that record that the training function returned.

        The returned value is the result of the attempt. If the function returned before the end of its budget, the
        scheduler compares that value at the step of the budget.

        Args:
            trial: The running trial.
            value: Returned value of the objective, or None to use the last report.
            metrics: Other returned metrics.
            now: Current time, in seconds.
            attributes: Returned values that are not numbers.
            whole: Whether the function trained to its own end without a report. Another attempt would only repeat that.
        """
        final = value if value is not None else trial.last_value
        rest: dict[str, Any] = {"metrics": dict(metrics), "attributes": dict(attributes or {})}
        if final is None and trial.is_final_training:
            return [AttemptEnded(trial.id, trial.attempt, TrialState.COMPLETED, now, **rest)]
        if final is None:
            remedy = "return a number or report one"
            if trial.start:
                began = f"it began at step {trial.start}, where trial {trial.parent} had paused"
                remedy = f"{began}: report the last step too"
            failure = Failure(FailureKind.NO_VALUE, f"train_fn returned no number and reported nothing; {remedy}")
            return [AttemptEnded(trial.id, trial.attempt, TrialState.FAILED, now, failure=failure)]
        if not trial.is_final_training and (missing := self.objectives.missing(trial, metrics)):
            failure = Failure(FailureKind.NO_VALUE, missing)
            return [AttemptEnded(trial.id, trial.attempt, TrialState.FAILED, now, failure=failure)]
        events: list[Event] = []
        if trial.step < trial.budget and (value is not None or not trial.is_final_training):
            sole = next(iter(metrics)) if len(metrics) == 1 else None
            objective = trial.objective or next(iter(self.objectives.given), None) or sole or "value"
            step = self.problem.max_budget if whole else trial.budget
            column = {objective: ([step], [final])}
            events.append(Measured(trial.id, trial.attempt, objective, column, returned=True))
        state = TrialState.COMPLETED if whole or self.is_final(trial) else TrialState.PAUSED
        events.append(AttemptEnded(trial.id, trial.attempt, state, now, final, **rest))
        return events

    def started(
        self, trial: Trial, worker: int, now: float, *, others: tuple[int, ...] = (), cause: str = ""
    ) -> AttemptStarted:
        """Return the event that starts the next attempt of ``trial`` on ``worker`` and ``others``."""
        budget = self.grant(trial).budget
        if trial.state is TrialState.PAUSED and budget <= trial.budget:
            raise OptimizerError(
                f"{type(self.scheduler).__name__}.grant({trial.id}) must return more steps than the {trial.budget} "
                f"that the paused trial has used up, got {budget}; let it grow in pause(), since promote() comes later"
            )
        return AttemptStarted(
            trial.id,
            trial.attempt + 1,
            worker,
            budget,
            now,
            trial.config,
            trial.ask,
            trial.parent,
            trial.training,
            1 + len(others),
            cause,
            others,
            trial.repeat,
        )

    # -- ask and tell, without the runtime ----------------------------------------------------

    def ask(self) -> Trial | None:
        """Start the next attempt: a promotion if one is due, or else a new configuration.

        Returns:
            The running trial, with the step up to which it may run in ``budget``. None if nothing is due now.
        """
        trial = self.next_promotion() or self._new_trial()
        if trial is None and not self.counts[TrialState.RUNNING]:
            trial = self.closing_promotion()
        if trial is not None:
            self.apply(self.started(trial, 0, 0.0))
        return trial

    def report(self, trial: Trial, step: int, value: float) -> Decision:
        """Report a measurement of a running trial. A ``STOP`` also ends it.

        Args:
            trial: A trial that :meth:`ask` returned.
            step: Step of the measurement.
            value: Value of the objective.

        Returns:
            Whether the trial should continue or stop.

        Raises:
            UserError: The trial does not run, ``step`` is not an integer, or ``value`` is not a number.
        """
        self._check_runs(trial)
        try:
            steps = array("q", [operator.index(step)]).tolist()  # of numpy's types, too
        except (TypeError, OverflowError):
            hint = as_int(step, -math.inf)
            raise UserError(f"step must be an integer below 2**63, got {step!r}{hint and '; '}{hint}") from None
        column = {"value": (steps, _numbers([value]))}
        decision = self.apply(Measured(trial.id, trial.attempt, "value", column))
        if decision is Decision.STOP:
            self.apply(AttemptEnded(trial.id, trial.attempt, TrialState.STOPPED, 0.0))
        self._update_history()
        return decision

    def tell(self, trial: Trial, value: float | Sequence[float] | None = None) -> None:
        """End a running trial.

        Args:
            trial: A trial that :meth:`ask` returned.
            value: Final value, or one value per objective. None (the default) uses the last report. Without a report,
                the trial fails.

        Raises:
            UserError: The trial does not run, or the values are not one number per objective.
        """
        self._check_runs(trial)
        metrics: dict[str, float] = {}
        final: float | None = None
        if value is not None:
            values = _numbers(_listed(value))
            if len(values) != (n := len(self.objectives)):
                raise UserError(f"value must have {n} numbers, one for each objective, got {value!r}")
            final = values[0]
            metrics = dict(zip(self.objectives.names, values, strict=True)) if len(values) > 1 else {}
        for event in self.conclude(trial, final, metrics, 0.0):
            self.apply(event)
        self._update_history()

    def fail(self, trial: Trial, message: str = "failed") -> None:
        """End a running trial without a value.

        Args:
            trial: A trial that :meth:`ask` returned.
            message: Reason, for people.

        Raises:
            UserError: The trial does not run.
        """
        self._check_runs(trial)
        failure = Failure(FailureKind.EXCEPTION, message)
        self.apply(AttemptEnded(trial.id, trial.attempt, TrialState.FAILED, 0.0, failure=failure))
        self._update_history()

    def _update_history(self) -> None:
        for update in self.take_updates():
            self.history.apply(update)

    def _check_runs(self, trial: Trial) -> None:
        """Check that a trial belongs to this study and is running."""
        if not isinstance(trial, Trial):
            raise UserError(f"trial must be a trial that study.ask() returned, got {short(trial)}; pass that one")
        known = self.trials[trial.id] if trial.id < len(self.trials) else None
        if known is None or known.config != trial.config:
            raise UserError(f"trial {trial.id} with {trial.config!r} belongs to another study; call that study")
        if known.state is not TrialState.RUNNING:
            raise UserError(f"trial {trial.id} must be running, got one that is {known.state.value}; use study.ask()")

    def _new_trial(self) -> Trial | None:
        if self.problem.n_trials is not None and self.size >= self.problem.n_trials:
            return None
        if self.points_left:
            self.apply(TrialCreated(len(self.trials), self.points_left[0]))
            return self.trials[-1]
        self._update_history()
        proposal = self.checked(self.optimizer.ask(self.n_asks, self.history))
        if not isinstance(proposal, Proposal):
            return None
        self.apply(TrialCreated(len(self.trials), proposal.config, self.n_asks, proposal.parent))
        return self.trials[-1]

    def checked(self, answer: Answer) -> Proposal | Wait | None:
        """Return an optimizer's answer, with a proposed configuration normalized by the search space.

        Raises:
            OptimizerError: The proposal is outside the space, or its parent does not exist.
        """
        if answer is None or answer is WAIT:
            return answer
        proposal = answer if isinstance(answer, Proposal) else Proposal(answer)
        name = type(self.optimizer).__name__
        if not isinstance(proposal.config, Mapping):
            raise OptimizerError(
                f"{name}.ask() must return a configuration, got {short(answer)}; use a dict of the "
                "parameters, such as space.sample(history.rng(index)), or None if no configuration is left"
            )
        if proposal.parent is not None and proposal.parent not in range(len(self.trials)):
            known = f"the number of one of {len(self.trials)} trials"
            raise OptimizerError(f"parent must be {known}, got {proposal.parent!r} from {name}")
        try:
            return replace(proposal, config=self.problem.space.validate(proposal.config))
        except UserError as error:
            raise OptimizerError(f"{name} proposed {proposal.config!r}, which is not in the space: {error}") from error


def _listed(value: Any) -> list[Any]:
    """Return the values of several objectives, or the single value, as a list."""
    if isinstance(value, str | bytes):
        return [value]
    try:
        return list(value)
    except TypeError:
        return [value]


def _numbers(values: list[Any]) -> list[float]:
    try:
        if not any(isinstance(value, str | bytes) for value in values):
            return [float(value) for value in values]
    except (TypeError, ValueError, OverflowError):
        pass
    raise UserError(f"value must be a number, one for each objective, got {', '.join(map(short, values))}")


def checked_problem(
    space: SearchSpace | Mapping[str, Any],
    optimizer: Optimizer,
    objectives: Objectives,
    *,
    seed: int,
    max_budget: int,
    n_trials: int | None,
    points: Sequence[Mapping[str, Any]],
    earlier: Sequence[Sequence[Observation]],
    is_timed: bool,
) -> Problem:
    """Return the search as ``optimizer`` sees it, after all arguments were checked."""
    if space is None:
        raise SearchSpaceError("space must be a dict of names and domains, got None; use {'x': Float(0, 1)}")
    given: object = optimizer
    if not isinstance(given, Optimizer):
        remedy = "ASHA() or make_optimizer('asha')"
        if isinstance(given, str):
            remedy = f"make_optimizer({short(given)})"
        elif isinstance(given, type) and issubclass(given, Optimizer):
            remedy = f"{given.__name__}()"
        elif (ours := instead_of_optuna(given)).startswith("OptunaSampler"):
            remedy = ours
        raise UserError(f"optimizer must be an Optimizer, got {short(given)}; use {remedy}")
    if not _is_list(points) or not all(isinstance(point, Mapping) for point in points):
        raise UserError(f"points must be a list of configurations as dicts, got {short(points)}; use [{{'x': 0.5}}]")
    if not _is_list(earlier) or not all(
        _is_list(search) and all(isinstance(seen, Observation) for seen in search) for search in earlier
    ):
        raise UserError(
            f"earlier must be a list of lists of Observations, one for each search, got {short(earlier)}; use "
            "[study.history.observations]"
        )
    if n_trials and len(points) > integer("n_trials", n_trials, least=0, error=UserError):
        raise UserError(
            f"n_trials must be at least {len(points)} to try all points, got {n_trials}; use n_trials={len(points)}, "
            "or give fewer points"
        )
    if not isinstance(is_timed, bool):
        raise UserError(f"is_timed must be True or False, got {short(is_timed)}; use False")
    problem = Problem(
        space if isinstance(space, SearchSpace) else SearchSpace(space),
        integer("seed", seed, least=0, most=None, error=UserError),
        integer("max_budget", max_budget, least=1, error=UserError),
        None if n_trials is None else integer("n_trials", n_trials, least=0, error=UserError),
        tuple(map(tuple, earlier)),
        n_objectives=len(objectives),
        is_timed=is_timed,
        direction=None if objectives.is_open else objectives.directions[0],
    )
    optimizer.check(problem)
    return problem


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def initial_points(problem: Problem, points: Iterable[Mapping[str, Any]]) -> tuple[Config, ...]:
    """Return the configurations to try first, whatever the optimizer.

    The given points come first. The configuration of all priors and the best configuration of each earlier search
    follow, unless they are already among them. So a new search is seldom worse than the earlier ones (Feurer,
    Springenberg and Hutter, "Initializing Bayesian Hyperparameter Optimization via Meta-Learning", AAAI 2015).
    """
    space = problem.space
    starts = [space.validate(point) for point in points]
    seen = {space.key(config) for config in starts}
    for config in (space.prior_config, *map(_best, problem.earlier)):
        if config is not None and space.key(config) not in seen:
            seen.add(space.key(config))
            starts.append(config)
    return tuple(starts)


def _best(observations: Sequence[Observation]) -> Config | None:
    """Return the configuration of the trial whose newest result is the best; None if no result is finite.

    Of several objectives the first one decides, and then the next, so that no other trial dominates it.
    """
    newest = {seen.trial: (seen.losses or (seen.loss,), seen.config) for seen in observations}
    finite = (result for result in newest.values() if all(map(math.isfinite, result[0])))
    best = min(finite, key=lambda result: result[0], default=None)
    return None if best is None else best[1]
