from __future__ import annotations

from hand import Hand
from hypothesis import given
from hypothesis import strategies as st

from maggy_like.driver.state_machine.inputs import Tick, WorkerJoined, WorkerLost, WorkerSeen
from maggy_like.driver.state_machine.run import WorkerState
from maggy_like.protocol.task import WorkerId

PATIENCE = 5.0

STEPS = st.lists(
    st.tuples(st.sampled_from(["join", "hear", "stand still", "lose", "look", "look"]), st.integers(0, 3)), max_size=60
)


@given(steps=STEPS)
def test_all_that_are_silent_are_found_although_few_looks_go_over_all(steps: list[tuple[str, int]]) -> None:
    hand = Hand(workers=4, heartbeat_timeout=PATIENCE).start()
    seen: dict[int, float] = {}  # of the live workers, by index
    incarnations = dict.fromkeys(range(4), -1)
    for now, (what, number) in enumerate(steps):
        hand.now = float(now)
        if what == "join":
            incarnations[number] += 1
            hand.tell(WorkerJoined(WorkerId(number, incarnations[number]), "host", (), None))
            seen[number] = hand.now
        elif what in ("stand still", "look"):
            stalled = float(number) if what == "stand still" else 0.0
            seen = {it: min(hand.now, last + stalled) for it, last in seen.items()}
            silent = {it for it, last in seen.items() if hand.now - last > PATIENCE}
            hand.tell(Tick(stalled=stalled))
            lost = {it for it in seen if hand.machine.workers[it].state is WorkerState.LOST}
            assert lost == silent
            seen = {it: last for it, last in seen.items() if it not in silent}
        elif number in seen and what == "hear":
            hand.tell(WorkerSeen(WorkerId(number, incarnations[number])))
            seen[number] = hand.now
        elif number in seen and what == "lose":
            hand.tell(WorkerLost(WorkerId(number, incarnations[number]), "killed"))
            del seen[number]
