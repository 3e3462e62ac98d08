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
from typing import Any

from optimizers.checks import as_int, integer, short
from optimizers.core.base import WAIT, Answer, Decision, Observation, Optimizer, Problem, Proposal, Wait
from optimizers.core.events import AttemptEnded, AttemptStarted, Event, Measured, TrialCreated
from optimizers.core.objectives import Directions, Objectives
from optimizers.core.study_state import Ledger, Worth
from optimizers.core.trial import Failure, FailureKind, Trial, TrialState
from optimizers.errors import OptimizerError, SearchSpaceError, UserError
from optimizers.space import Config
from optimizers.space.search_space import SearchSpace


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
    """What ``optimizer`` is told of the search, once all of it is seen to be of the right kind.

    Raises:
        OptimizerError: The optimizer cannot serve this problem.
        UserError: An argument is of another type, or too small; the message names it.
    """
    if space is None:
        raise SearchSpaceError("space maps names to domains, got None; use a dict such as {'x': Float(0, 1)}")
    given: object = optimizer
    if not isinstance(given, Optimizer):
        remedy = "ASHA() or make_optimizer('asha')"
        if isinstance(given, str):
            remedy = f"make_optimizer({short(given)})"
        elif isinstance(given, type) and issubclass(given, Optimizer):
            remedy = f"{given.__name__}()"
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
        raise UserError(f"is_timed must be True or False, got {short(is_timed)}")
    problem = Problem(
        space if isinstance(space, SearchSpace) else SearchSpace(space),
        integer("seed", seed, least=0, most=None, error=UserError),
        integer("max_budget", max_budget, least=1, error=UserError),
        None if n_trials is None else integer("n_trials", n_trials, least=0, error=UserError),
        tuple(map(tuple, earlier)),
        n_objectives=len(objectives),
        is_timed=is_timed,
    )
    optimizer.check(problem)
    return problem


def _is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def initial_points(problem: Problem, points: Iterable[Mapping[str, Any]]) -> tuple[Config, ...]:
    """The configurations to try first, whatever the optimizer.

    The given ones come as they are; then, where they are not among those before, the configuration of all
    priors, and the best one of each earlier search: so a new search is seldom worse than the old ones
    (Feurer, Springenberg and Hutter, "Initializing Bayesian Hyperparameter Optimization via
    Meta-Learning", AAAI 2015).

    Raises:
        SearchSpaceError: A given point is not valid.
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
    """The configuration of the trial whose newest result is the best; None if there is no finite one."""
    newest = {seen.trial: seen for seen in observations}
    best = min(newest.values(), key=lambda seen: seen.loss, default=None)
    return best.config if best is not None and math.isfinite(best.loss) else None


class Study(Ledger):
    """A search: its ledger, the events that change it, and ask and tell.

    Args:
        space: The search space, or any mapping that :class:`SearchSpace` reads.
        optimizer: Proposes configurations and brings its scheduler.
        direction: ``max`` or ``min`` of the objective; one for each where there are several. None where its name shall
            say it, at its first report if it was not given (see :class:`~optimizers.core.objectives.Objectives`).
        objectives: Names of the objectives, as they are reported; of a single one it may be left out.
        value: What a trial is worth: the ``best`` of its reports or the ``last`` (see
            :class:`~optimizers.core.study_state.Ranking`).
        seed: Source of all randomness.
        max_budget: Steps of a full training.
        n_trials: Upper bound on the number of configurations; None for no bound, 0 for a training without a search.
        points: Configurations to try before the optimizer's; the attribute has those of
            :func:`~optimizers.core.study.initial_points` as well.
        earlier: Observations of earlier searches (see :attr:`Problem.earlier`).
        is_timed: Whether time alone bounds the search (see :attr:`Problem.is_timed`).

    Raises:
        OptimizerError: The optimizer cannot serve this problem.
        SearchSpaceError: The space or a point is not valid.
        UserError: Another argument is of the wrong type, or too small.
    """

    def __init__(
        self,
        space: SearchSpace | Mapping[str, Any],
        optimizer: Optimizer,
        *,
        direction: Directions = None,
        objectives: Sequence[str] = (),
        value: Worth = "best",
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

    @classmethod
    def of_checked(
        cls, problem: Problem, optimizer: Optimizer, objectives: Objectives, points: tuple[Config, ...], value: Worth
    ) -> Study:
        """A study of what was checked before.

        Args:
            problem: What ``optimizer`` was checked against.
            optimizer: Proposes configurations and brings its scheduler.
            objectives: What is optimised.
            points: All of :func:`~optimizers.core.study.initial_points`.
            value: What a trial is worth.
        """
        study = cls.__new__(cls)
        Ledger.__init__(study, problem, optimizer, objectives, points, value)
        return study

    # -- events -------------------------------------------------------------------------------

    def conclude(
        self,
        trial: Trial,
        value: float | None,
        metrics: Mapping[str, float],
        now: float,
        attributes: Mapping[str, Any] | None = None,
    ) -> list[Event]:
        """The events that say: the training function returned.

        What it returned is the result of the attempt. If the function returned before the end of its budget, the
        scheduler compares that value at the step of the budget.

        Args:
            value: What it returned as the objective, or None to take the last report.
            attributes: What it returned that is no number.
        """
        final = value if value is not None else trial.last_value
        rest: dict[str, Any] = {"metrics": dict(metrics), "attributes": dict(attributes or {})}
        if final is None and trial.training:
            return [AttemptEnded(trial.id, trial.attempt, TrialState.COMPLETED, now, **rest)]
        if final is None:
            failure = Failure(
                FailureKind.NO_VALUE, "train_fn returned no number and reported nothing; return a number or report one"
            )
            return [AttemptEnded(trial.id, trial.attempt, TrialState.FAILED, now, failure=failure)]
        if not trial.training and (missing := self.objectives.missing(trial, metrics)):
            failure = Failure(FailureKind.NO_VALUE, missing)
            return [AttemptEnded(trial.id, trial.attempt, TrialState.FAILED, now, failure=failure)]
        events: list[Event] = []
        if trial.step < trial.budget and (value is not None or not trial.training):
            sole = next(iter(metrics)) if len(metrics) == 1 else None
            objective = trial.objective or next(iter(self.objectives.given), None) or sole or "value"
            column = {objective: ([trial.budget], [final])}
            events.append(Measured(trial.id, trial.attempt, objective, column, returned=True))
        state = TrialState.COMPLETED if self.is_final(trial) else TrialState.PAUSED
        events.append(AttemptEnded(trial.id, trial.attempt, state, now, final, **rest))
        return events

    def started(
        self, trial: Trial, worker: int, now: float, *, others: tuple[int, ...] = (), cause: str = ""
    ) -> AttemptStarted:
        """The event that says: the next attempt of ``trial`` begins on ``worker`` and ``others``."""
        return AttemptStarted(
            trial.id,
            trial.attempt + 1,
            worker,
            self.grant(trial).budget,
            now,
            trial.config,
            trial.ask,
            trial.parent,
            trial.training,
            1 + len(others),
            cause,
            others,
        )

    # -- ask and tell, for use without the runtime --------------------------------------------

    def ask(self) -> Trial | None:
        """Start the next attempt: a promotion if one is due, else a new configuration.

        Returns:
            The running trial; its ``budget`` says up to which step. None when nothing is due now.
        """
        trial = self.next_promotion() or self._new_trial()
        if trial is None and not self.counts[TrialState.RUNNING]:
            trial = self.closing_promotion()
        if trial is not None:
            self.apply(self.started(trial, 0, 0.0))
        return trial

    def report(self, trial: Trial, step: int, value: float) -> Decision:
        """Enter a measurement of a running trial; a ``STOP`` also ends it.

        Raises:
            UserError: The trial does not run, or ``step`` is no whole number, or ``value`` no number.
        """
        self._check_runs(trial)
        try:
            steps = array("q", [operator.index(step)]).tolist()  # of numpy's types, too
        except (TypeError, OverflowError):
            hint = as_int(step, -math.inf)
            raise UserError(f"step must be a whole number below 2**63, got {step!r}{hint and '; '}{hint}") from None
        column = {"value": (steps, _numbers([value]))}
        decision = self.apply(Measured(trial.id, trial.attempt, "value", column))
        if decision is Decision.STOP:
            self.apply(AttemptEnded(trial.id, trial.attempt, TrialState.STOPPED, 0.0))
        return decision

    def tell(self, trial: Trial, value: float | Sequence[float] | None = None) -> None:
        """End a running trial with its final value (or values, of several objectives), or with its last report.

        Raises:
            UserError: The trial does not run, or these are no numbers, or not one for each objective.
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

    def fail(self, trial: Trial, message: str = "failed") -> None:
        """End a running trial without a value.

        Raises:
            UserError: The trial does not run.
        """
        self._check_runs(trial)
        failure = Failure(FailureKind.EXCEPTION, message)
        self.apply(AttemptEnded(trial.id, trial.attempt, TrialState.FAILED, 0.0, failure=failure))

    def _check_runs(self, trial: Trial) -> None:
        """See that an attempt is told of before it has ended, and to the study that asked for it."""
        if not isinstance(trial, Trial):
            raise UserError(f"trial must be what study.ask() returned, got {short(trial)}; pass that")
        known = self.trials[trial.id] if trial.id < len(self.trials) else None
        if known is None or known.config != trial.config:
            raise UserError(f"trial {trial.id} with {trial.config!r} is of another study; tell that one")
        if known.state is not TrialState.RUNNING:
            raise UserError(f"trial {trial.id} is {known.state.value}, and a study is told of trials that run")

    def _new_trial(self) -> Trial | None:
        if self.problem.n_trials is not None and self.size >= self.problem.n_trials:
            return None
        if self.points_left:
            self.apply(TrialCreated(len(self.trials), self.points_left[0]))
            return self.trials[-1]
        for update in self.take_updates():
            self.history.apply(update)
        proposal = self.checked(self.optimizer.ask(self.n_asks, self.history))
        if not isinstance(proposal, Proposal):
            return None
        self.apply(TrialCreated(len(self.trials), proposal.config, self.n_asks, proposal.parent))
        return self.trials[-1]

    def checked(self, answer: Answer) -> Proposal | Wait | None:
        """An optimizer's answer, with a proposed configuration as the search space has it.

        Raises:
            OptimizerError: The optimizer proposed something outside the space, or a parent that is none.
        """
        if answer is None or answer is WAIT:
            return answer
        proposal = answer if isinstance(answer, Proposal) else Proposal(answer)
        name = type(self.optimizer).__name__
        if not isinstance(proposal.config, Mapping):
            raise OptimizerError(
                f"{name}.ask() answered {short(answer)}, which is no configuration; let it return a dict of the "
                "parameters, such as space.sample(history.rng(index)), or None when there is none left"
            )
        if proposal.parent is not None and proposal.parent not in range(len(self.trials)):
            known = f"there are {len(self.trials)} trials"
            raise OptimizerError(f"{name} proposed a trial with the parent {proposal.parent!r}, but {known}")
        try:
            return replace(proposal, config=self.problem.space.validate(proposal.config))
        except UserError as error:
            raise OptimizerError(f"{name} proposed {proposal.config!r}, which is not in the space: {error}") from error


def _listed(value: Any) -> list[Any]:
    """The values of several objectives, or the one value."""
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
