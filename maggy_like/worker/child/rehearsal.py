"""A trial without a function: the first one that has one finds the code, and the memory, in use already."""

from __future__ import annotations

from maggy_like.protocol.codec import decode_to_driver, decode_to_worker, encode
from maggy_like.protocol.messages import Assign
from maggy_like.protocol.task import WorkerTask
from maggy_like.storage.checkpoints import CheckpointStore
from maggy_like.worker.child.exits import flush_output
from maggy_like.worker.child.process import run_attempt, wind_up
from maggy_like.worker.child.reporter import Reporter
from maggy_like.worker.child.sender import Sender

ROUNDS = 20
"""How often a process must take this way until Python has specialised its code (PEP 659), and some more."""


def rehearse(task: WorkerTask) -> None:
    """Take the way of a trial, from its assignment to its end, between nobody and nobody.

    A fork server does so that its children have the code as Python has specialised it, and a child for the pages of
    memory that it shares with the server: each is copied when it is first written to, and a count of references is
    enough for that. A trial would have to wait for it, half a millisecond before its first line and after its last.
    """
    assign = decode_to_worker(encode(Assign(0, 1, {"x": 0.5}, 1, objective="value")))
    assert isinstance(assign, Assign)
    sender = Sender(assign, lambda frame: None)
    reporter = Reporter.for_trial(assign, CheckpointStore(None), sender)
    finished = run_attempt(lambda: {"value": 0.5}, (), reporter, assign, task, lambda: None)
    flush_output()
    decode_to_driver(encode(wind_up(sender, reporter, finished)))
