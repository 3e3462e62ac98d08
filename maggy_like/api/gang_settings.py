"""On how many workers a run is to go, checked."""

from __future__ import annotations

from maggy_like.argument_checks import whole
from maggy_like.driver.settings import GangSettings
from maggy_like.errors import ConfigError


def check_gang(
    workers: int | None = None,
    *,
    max_workers: int | None = None,
    workers_per_trial: int = 1,
    min_workers: int | None = None,
) -> GangSettings:
    """Check the numbers of workers, alone and against each other.

    Args:
        min_workers: That of the :class:`~maggy_like.FailurePolicy`, checked by itself.

    Raises:
        ConfigError: One is wrong, or two do not fit.
    """
    width = whole("workers_per_trial", workers_per_trial, least=1)
    size = None if workers is None else whole("workers", workers, least=1)
    most = None if max_workers is None else whole("max_workers", max_workers, least=1)
    if size is not None and width > size:
        raise ConfigError(f"workers_per_trial={width} is more than workers={size}; pass workers={width} or more")
    if min_workers is not None and size is not None and min_workers > size:
        raise ConfigError(f"min_workers={min_workers} is more than workers={size}; pass {size} or fewer")
    if min_workers is not None and min_workers < width:
        raise ConfigError(
            f"min_workers={min_workers} is less than workers_per_trial={width}, so no trial could run; "
            f"pass {width} or more"
        )
    if most is not None and size is not None:
        raise ConfigError(
            f"workers={size} says how many there are, and max_workers={most} how many there may be; leave one out"
        )
    for name, needed in (("workers_per_trial", width), ("min_workers", min_workers or 1)):
        if most is not None and needed > most:
            raise ConfigError(f"{name}={needed} is more than max_workers={most}; pass max_workers={needed} or more")
    return GangSettings(size, most, width)
