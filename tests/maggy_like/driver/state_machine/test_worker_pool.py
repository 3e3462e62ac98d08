from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from maggy_like.driver.state_machine.inputs import WorkerJoined
from maggy_like.driver.state_machine.worker_pool import WorkerPool
from maggy_like.driver.state_machine.workers import WorkerState
from maggy_like.protocol.task import WorkerId

PATIENCE = 5.0

STEPS = st.lists(
    st.tuples(st.sampled_from(["join", "hear", "stand still", "lose", "look", "look"]), st.integers(0, 3)), max_size=60
)


@given(steps=STEPS)
def test_all_that_are_silent_are_found_although_few_looks_go_over_all(steps: list[tuple[str, int]]) -> None:
    pool, incarnations = WorkerPool(), dict.fromkeys(range(4), 0)
    for now, (what, number) in enumerate(steps):
        worker = pool.workers.get(number)
        if what == "join":
            pool.join(WorkerJoined(WorkerId(number, incarnations[number]), "host", (), None), float(now))
            incarnations[number] += 1
        elif what == "stand still":
            pool.excuse(float(number), float(now))
        elif what == "look":
            silent = [it for it in pool.workers.values() if it.is_live and now - it.seen > PATIENCE]
            assert {it.id for it in pool.silent(float(now), PATIENCE)} == {it.id for it in silent}
        elif worker is not None and what == "hear":
            worker.seen = float(now)
        elif worker is not None and what == "lose":
            pool.retire(worker, WorkerState.LOST)
