"""A state machine's inputs, handed to another one, lead to the same decisions."""

from __future__ import annotations

from hand import Hand
from hypothesis import given
from hypothesis import strategies as st

from maggy_like.driver.state_machine import StateMachine
from maggy_like.driver.state_machine.inputs import Tick, WorkerLost
from maggy_like.driver.state_machine.machine import LOG_LENGTH
from maggy_like.driver.state_machine.run import Options
from optimizers.core.study import Study
from optimizers.samplers.non_adaptive import RandomSearch
from optimizers.schedulers.asha import ASHA
from optimizers.space.domains import Float

STEPS = st.lists(st.tuples(st.sampled_from(["report", "finish", "lose", "join", "tick"]), st.integers(0, 2)))


@given(steps=STEPS)
def test_logged_inputs_lead_to_the_same_decisions(steps: list[tuple[str, int]]) -> None:
    hand = Hand(ASHA(sampler="random"), n_trials=6, workers=3).start()
    incarnations = [0, 0, 0]
    for index in range(3):
        hand.join(index)
    for number, (what, index) in enumerate(steps):
        hand.now += 1.0
        worker = hand.machine.workers[index]
        busy = worker.is_live and worker.attempt is not None
        if what == "report" and busy:
            hand.report(worker.id, hand.study.trials[hand.assigned(worker.id).trial].step + 1, number / 10)
        elif what == "finish" and busy:
            hand.finish(worker.id, number / 10)
        elif what == "lose" and worker.is_live:
            hand.tell(WorkerLost(worker.id, "killed"))
        elif what == "join" and not worker.is_live:
            incarnations[index] += 1
            hand.join(index, incarnations[index])
        elif what == "tick":
            hand.tell(Tick())
    again = Study({"x": Float(0, 1)}, ASHA(sampler="random"), max_budget=9, n_trials=6)
    machine = StateMachine(again, Options(workers=3))
    machine.start(0.0)
    for now, event in hand.machine.log:
        machine.handle(event, now)
    assert again.trials == hand.study.trials
    assert machine.ending == hand.machine.ending
    assert {it.id: it.state for it in machine.workers.values()} == {
        it.id: it.state for it in hand.machine.workers.values()
    }


def test_the_log_has_a_bound() -> None:
    hand = Hand(RandomSearch()).start()
    for _ in range(LOG_LENGTH + 10):
        hand.tell(Tick())
    assert len(hand.machine.log) == LOG_LENGTH
