"""What the saved states of a run are called, relative to its store: ``00003/2-1.pkl``.

A state has the folder of the trial that saved it, the number of the attempt and of the state in it. A name is not
trusted before it is parsed: it may come from a foreign process or from a journal that was edited by hand.
"""

from __future__ import annotations

import re
from typing import NamedTuple

WHOLE = ".pkl"
"""How the name of a state ends that one process wrote."""

SHARDED = ".dcp"
"""How the name of a state ends that several ranks wrote, each its shards."""

_NAME = re.compile(r"([0-9]{5,18})/([1-9][0-9]{0,17})-([1-9][0-9]{0,17})(\.pkl|\.dcp)")


class StateName(NamedTuple):
    """The name of a saved state: its trial, its attempt, and its number.

    Attributes:
        number: Its number among the attempt's states, from 1.
        suffix: ``WHOLE`` or ``SHARDED``.
    """

    trial: int
    attempt: int
    number: int
    suffix: str = WHOLE

    def __str__(self) -> str:
        return f"{self.trial:05d}/{self.attempt}-{self.number}{self.suffix}"


def parse_name(name: str) -> StateName:
    """Read a name that ``str(StateName(...))`` has made.

    Raises:
        ValueError: It is none, and may lead out of the store.
    """
    if (found := _NAME.fullmatch(name)) is not None:
        parsed = StateName(int(found[1]), int(found[2]), int(found[3]), found[4])
        if str(parsed) == name:  # each state has one name
            return parsed
    raise ValueError(f"{name[:100]!r} names no saved state; it must be like {str(StateName(3, 2, 1))!r}")


def check_owner(name: str, trial: int, attempt: int) -> None:
    """Check that an attempt may have saved a state of this name.

    Raises:
        ValueError: It is no name, or the state is of another trial or attempt.
    """
    parsed = parse_name(name)
    if (parsed.trial, parsed.attempt) != (trial, attempt):
        raise ValueError(f"{name!r} is no state of attempt {attempt} of trial {trial}")


def state_url(store: str, name: str) -> str:
    """The URL of a saved state.

    Args:
        store: URL of the run's store.
        name: The state's name in it.

    Raises:
        ValueError: It names no state.
    """
    parse_name(name)
    return f"{store.rstrip('/')}/{name}"
