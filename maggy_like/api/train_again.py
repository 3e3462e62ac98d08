"""Training the best configuration of a search that is over: ``result.train``."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from maggy_like.api.gang_settings import check_gang
from maggy_like.argument_checks import whole
from maggy_like.display import make_display
from maggy_like.driver.failure_policy import FailurePolicy, read_policy
from maggy_like.driver.run_handle import StopSwitch
from maggy_like.driver.run_spec import Outcome, RunSpec
from maggy_like.driver.settings import LimitSettings, TrainingSettings
from maggy_like.errors import ConfigError
from maggy_like.results.training import Training, failed_training
from maggy_like.storage.run_paths import check_name
from maggy_like.train_function.modules import RENDEZVOUS
from optimizers.core.direction import Direction
from optimizers.samplers.non_adaptive import Enumeration
from optimizers.space import Config


@dataclass(frozen=True)
class TrainAgain:
    """Trains with the function, engine and settings of a search.

    Attributes:
        spec: The search.
        execute: Executes a run.
        objective: Name of the search's objective.
        direction: Its direction.
    """

    spec: RunSpec
    execute: Callable[[RunSpec], Outcome]
    objective: str | None
    direction: Direction | None

    def __call__(
        self,
        config: Config,
        workers: int | None,
        budget: int | None,
        failures: FailurePolicy | None,
        name: str | None,
        resume: bool,
        progress: bool | str,
    ) -> Training:
        before = self.spec.settings
        if resume and name is None:
            raise ConfigError("resume=True needs the name of the training; pass name=training.name")
        name = check_name(name) if name is not None else f"{before.files.name}-train-{secrets.token_hex(2)}"
        policy = replace(before.failures, min_workers=None) if failures is None else read_policy(failures)
        size = before.gang.workers if workers is None else workers
        most = before.gang.max_workers if size is None else None
        steps = before.search.max_budget if budget is None else whole("budget", budget, least=1)
        settings = replace(
            before,
            search=replace(
                before.search,
                open_ended=before.search.open_ended and budget is None,
                optimizer=Enumeration(),
                optimizer_name="training",
                metrics=before.search.metrics or ((self.objective,) if self.objective else ()),
                directions=(self.direction,),
                n_trials=0,
                points=(),
                earlier=(),
            ),
            files=replace(before.files, name=name, paths=before.paths.of_sibling(name), resume=resume, overwrite=None),
            limits=LimitSettings(),
            gang=check_gang(size, max_workers=most, min_workers=policy.min_workers),
            failures=policy,
            training=TrainingSettings(steps, config),
            hints=(),
        )
        spec = replace(
            self.spec,
            settings=settings,
            preload=(*self.spec.preload, RENDEZVOUS),
            displays=[make_display(progress)],
            callbacks=(),
            stop=StopSwitch(),
        )
        outcome = self.execute(spec)
        if outcome.error is not None:
            raise outcome.error
        from maggy_like.results.runs import training_of

        training = training_of(outcome.machine, settings.paths, outcome.machine.objective or "value")
        if (error := failed_training(training.trial, settings.paths.logs)) is not None:
            error.add_note(f"result.train(..., name={name!r}, resume=True) trains again")
            raise error
        return training
