"""Checks of a search and of ``runOptions``, by which nothing is written or started that could not be of use."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from maggy_like.api.lagom import lagom
from maggy_like.api.run import run
from maggy_like.errors import ConfigError
from maggy_like.ml.estimator.names import optimizer_class, read_loss
from maggy_like.ml.estimator.network import is_lightning
from maggy_like.ml.estimator.plan import SEARCHABLE, TrainingPlan
from optimizers.checks.near_names import did_you_mean

if TYPE_CHECKING:
    from maggy_like.ml.estimator.params import TrainingParams
    from optimizers.space.domain import Domain

_OWN = {
    "block": "fit returns the model, so it waits for it",
    "budget": "pass epochs",
    "config": "pass modelParams",
    "max_budget": "pass epochs",
    "searchspace": "pass search",
    "train_fn": "pass model",
}
"""Arguments of ``lagom`` and ``run`` that the Estimator sets, and what to pass instead."""

_POINTS = 5  # of a range, ends among them: what a Param refuses lies beyond an end, or is no whole number
_LISTED = 1000


def check_values(params: TrainingParams, domains: Mapping[str, Domain]) -> None:
    """Refuse a search over values that a Param does not take.

    Args:
        domains: The values to search over, by names, of which those of Params are looked at.

    Raises:
        ConfigError: One is not taken.
    """
    of_objects: dict[str, Callable[[Any], Any]] = {"loss": read_loss, "optimizer": optimizer_class}
    for name in domains.keys() & SEARCHABLE.keys():
        convert = of_objects.get(name, params.getParam(name).typeConverter)
        for value in values_of(domains[name]):
            if name == "patience" and value is None:
                continue  # no early stopping
            try:
                taken = convert(value)
                if isinstance(taken, int) and not isinstance(value, int):
                    raise TypeError("must be a whole number; search over Integer(low, high) or a list of them")
            except (ConfigError, TypeError, ValueError) as error:
                raise ConfigError(f"search: {name} cannot be {value!r}, of {domains[name]!r}: {error}") from None


def values_of(domain: Domain) -> list[Any]:
    """The values of a domain; of one with more than can be listed some, its ends among them."""
    return domain.grid(max(_POINTS, min(domain.size or 0, _LISTED)))


def check_options(params: TrainingParams, plan: TrainingPlan, is_search: bool) -> None:
    """Refuse ``runOptions`` that the run would not take, and a metric that no epoch reports.

    Raises:
        ConfigError: An option is unknown, is set by a Param, or leaves ``fit`` without a model.
    """
    given = params._given("runOptions")
    target, name_of = (lagom, "lagom, which searches") if is_search else (run, "run, which trains without a search")
    known = [name for name in inspect.signature(target).parameters if name not in _OWN]
    for name in given:
        if name in _OWN:
            raise ConfigError(f"runOptions: {name!r} is set by the Estimator; {_OWN[name]}")
        if name not in known:
            raise ConfigError(
                f"runOptions: {name!r} is no argument of maggy_like.{name_of}{did_you_mean(name, known)}; there are "
                f"{', '.join(known)}"
            )
    if is_search and not given.get("train_best", True):
        raise ConfigError("runOptions: train_best=False would leave fit without a model; leave it out")
    metric = given.get("metric")
    if metric is None:
        return
    if not isinstance(metric, str):
        raise ConfigError(f"runOptions: metric must be the name of one metric, as one model is made, got {metric!r}")
    reported = list(_metrics(params, plan))
    if reported and metric not in reported:
        raise ConfigError(
            f"runOptions: no epoch reports the metric {metric!r}{did_you_mean(metric, reported)}; there are "
            f"{', '.join(reported)}{_why(metric, reported)}"
        )


def _metrics(params: TrainingParams, plan: TrainingPlan) -> Iterable[str]:
    """Names of the metrics of an epoch; none where only the module, or the loss that is drawn, can tell."""
    if plan.loss is None or is_lightning(plan.model) or "loss" in (params._given("search") or {}):
        return
    found = ["loss"]
    for loss, label in zip(plan.losses, plan.labels, strict=True):
        if loss.kind in ("classes", "binary", "probability"):
            found.append("accuracy" if len(plan.labels) == 1 else f"accuracy_{label}")
    yield from found
    if params._given("validationFraction") or params._given("validationIndicatorCol"):
        yield from (f"validation_{name}" for name in found)


def _why(metric: str, reported: Iterable[str]) -> str:
    if metric.startswith("validation_") and metric.removeprefix("validation_") in reported:
        return ". Set rows apart to validate on: validationFraction or validationIndicatorCol"
    return ""
