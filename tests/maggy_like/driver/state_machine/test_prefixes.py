"""A driver may die after any record: what is left of the journal is a state that the run was in."""

from __future__ import annotations

import pytest
from watched_search import OPTIMIZERS, Search
from witness import Witness, said

from maggy_like.driver.state_machine.inputs import WorkerLost
from optimizers.core.events import Event, from_json


class Chronicle(Witness):
    """Writes down what the study was after each record."""

    def append(self, event: Event) -> None:
        super().append(event)
        self.states[len(self.journal)] = said(self.ledger)

    states: dict[int, str]


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_replaying_any_prefix_of_a_journal_gives_the_state_of_that_moment(name: str) -> None:
    run = Chronicle()
    run.states = {}
    run.begin(Search(name, "max", 6, 1, max_attempts=3, trial_timeout=None, workers=2, prompt=True))
    for turn, worker in enumerate(list(run.busy)):
        run.report(worker, 1, 0.1 * turn)
        run.save(worker)
    run.tell(WorkerLost(run.busy[0], "kill -9"))
    run.come(0, ready=True)
    run.settle()

    assert len(run.states) == len(run.journal) > 20
    for size, state in run.states.items():
        study = run.search.study()
        for line in run.journal[:size]:
            study.apply(from_json(line))
        assert said(study) == state
