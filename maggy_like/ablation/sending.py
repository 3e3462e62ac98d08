"""Whether a study's variants can travel to the workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from maggy_like.ablation.declaration import Declaration
from maggy_like.train_function.pickling import pickle_named


def check_sendable(study: Declaration) -> None:
    """Check each part of a bound study by itself, so that the one that cannot be sent is named.

    Raises:
        TrainFunctionError: One cannot be sent.
    """
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
