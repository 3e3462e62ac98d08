"""Messages about a worker that does not see the run's store."""

from __future__ import annotations

from maggy_like.driver.state_machine.workers import Worker

REMEDY = "pass directory=URL or store=URL of a place that all hosts share"
REMEDY_REFUSAL = "see to the package, the credentials and the way to it on that host, or pass another directory=URL"


def store_needed(worker: Worker, unseen: str) -> str:
    """The error where a trial that is promoted must be able to go on there.

    Args:
        worker: It does not see the store.
        unseen: Why, where something refuses.
    """
    return (
        f"{_unseen(worker, unseen)} a promoted trial could not go on there from its checkpoint; {_mend(unseen)}, or "
        "use optimizer=ASHA(mode='stopping')"
    )


def store_wanted(worker: Worker, unseen: str) -> str:
    """The line where a trial can do without, unless it is cut off."""
    return f"{_unseen(worker, unseen)} what is cut off could not go on there; {_mend(unseen)}"


def _unseen(worker: Worker, unseen: str) -> str:
    why = f" ({unseen})" if unseen else ""
    return f"worker {worker.id.index} on host {worker.host!r} does not see the store of this run{why}, so"


def _mend(unseen: str) -> str:
    return REMEDY_REFUSAL if unseen else REMEDY
