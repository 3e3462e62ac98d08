from __future__ import annotations

from maggy_like.protocol.messages import Beat, Finished, Logged, Ready, Reported, awaits_answer


def test_ends_and_awaited_reports_wait_for_an_answer() -> None:
    awaited = [Ready(), Finished(0, 1, "returned"), Reported(0, 1, "loss", {}, awaiting=True)]
    others = [Beat(), Logged(0, 1, ["a line"]), Reported(0, 1, "loss", {})]
    assert [awaits_answer(message) for message in awaited] == [True] * 3
    assert [awaits_answer(message) for message in others] == [False] * 3
