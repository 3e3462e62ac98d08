"""The names of a run's checkpoints, relative to its store: ``00003/2-1.pkl``, and of its log files.

The name of a state consists of the trial's directory, the number of the attempt and the number of the state. It is not
trusted before it is parsed: it may come from another process or from a journal that was edited by hand.
"""

from __future__ import annotations

import re
from typing import NamedTuple

WHOLE = ".pkl"
"""Suffix of a state that one process wrote."""

SHARDED = ".dcp"
"""Suffix of a state that several ranks wrote, each its own shards."""

_NAME = re.compile(r"([0-9]{5,18})/([1-9][0-9]{0,17})-([1-9][0-9]{0,17})(\.pkl|\.dcp)")


class StateName(NamedTuple):
    """The name of a checkpoint: its trial, its attempt, and its number."""

    trial: int
    attempt: int
    number: int  # its number among the attempt's states, from 1
    suffix: str = WHOLE  # ``WHOLE`` or ``SHARDED``

    def __str__(self) -> str:
        return f"{self.trial:05d}/{self.attempt}-{self.number}{self.suffix}"


def parse_name(name: str) -> StateName:
    """Parse a name that ``str(StateName(...))`` made."""
    if (found := _NAME.fullmatch(name)) is not None:
        parsed = StateName(int(found[1]), int(found[2]), int(found[3]), found[4])
        if str(parsed) == name:  # each state has one name
            return parsed
    raise ValueError(f"the name of a checkpoint must be like {str(StateName(3, 2, 1))!r}, got {name[:100]!r}")


def check_owner(name: str, trial: int, attempt: int) -> None:
    """Check that the state belongs to an attempt."""
    parsed = parse_name(name)
    if (parsed.trial, parsed.attempt) != (trial, attempt):
        raise ValueError(f"the state must belong to attempt {attempt} of trial {trial}, got {name!r}")


def state_url(store: str, name: str) -> str:
    """Return the URL of a checkpoint."""
    parse_name(name)
    return f"{store.rstrip('/')}/{name}"


def log_name(trial: int, rank: int = 0, attempt: int = 1) -> str:
    """Return the name of the log file of one of a trial's workers, or of one attempt if each has its own file.

    Example:
        >>> log_name(7), log_name(7, rank=1), log_name(7, attempt=2)
        ('00007.log', '00007-1.log', '00007.2.log')
    """
    of_rank = f"-{rank}" if rank else ""
    return f"{trial:05d}{of_rank}.{attempt}.log" if attempt > 1 else f"{trial:05d}{of_rank}.log"
