"""How the ranks of an attempt meet, and part."""

from __future__ import annotations

import os

import pytest

from maggy_like.messages import Place
from maggy_like.worker.gang.rendezvous import Membership


def test_ranks_that_have_returned_are_known_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))  # each sets torchrun's variables
    where: list[tuple[str, int]] = []
    first, second, third = (
        Membership(
            Place(rank, 3, rank, 3, 0, 1),
            "tcp://127.0.0.1:9",
            lambda host, port: where.append((host, port)),
            lambda: where[0],
        )
        for rank in range(3)
    )
    assert [member.returned() for member in (first, second, third)] == [[], [], []]
    second.leave()
    assert [member.returned() for member in (first, third)] == [[1], [1]]
    third.leave()
    first.leave()
    assert second.returned() == [0, 1, 2]
