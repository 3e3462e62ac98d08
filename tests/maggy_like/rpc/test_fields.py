"""What no honest worker sends is no message: shapes and ranges are checked as a frame is decoded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from maggy_like.protocol.messages import Finished, Hello, Reported, decode_to_driver, encode

OF = {"trial": 1, "attempt": 1}
REPORT = {"type": "reported", **OF, "objective": "loss", "columns": {"loss": ([1, 2], [0.1, 0.2])}}
HELLO = {"type": "hello", "version": 1, "worker": 1, "incarnation": 0, "host": "h", "pid": 1, "accelerators": [],
         "store_unseen": None}  # fmt: skip
FINISHED = {"type": "finished", **OF, "outcome": "returned"}
LOGGED = {"type": "logged", **OF, "lines": ["a line"]}
OPENED = {"type": "opened", **OF, "host": "h", "port": 1234}


def nested(times: int) -> Any:
    value: Any = 1
    for _ in range(times):
        value = [value]
    return value


BAD: dict[str, dict[str, Any]] = {
    "fewer values than steps": {**REPORT, "columns": {"loss": ([1, 2], [0.1])}},
    "more values than steps": {**REPORT, "columns": {"loss": ([1], [0.1]), "other": ([1], [0.1, 0.2])}},
    "a step of 2**63": {**REPORT, "columns": {"loss": ([2**63], [0.1])}},
    "a step of -2**63": {**REPORT, "columns": {"loss": ([-(2**63)], [0.1])}},
    "no objective": {**REPORT, "objective": "accuracy"},
    "a long name": {**REPORT, "objective": "x" * 501, "columns": {"x" * 501: ([1], [0.1])}},
    "a trial below 0": {**REPORT, "trial": -1},
    "an attempt past all bounds": {**REPORT, "attempt": 2**40},
    "a place below 0": {**HELLO, "worker": -1},
    "an incarnation below 0": {**HELLO, "incarnation": -1},
    "a long host": {**HELLO, "host": "h" * 256},
    "too many GPUs": {**HELLO, "accelerators": ["0"] * 1001},
    "too many connections": {**HELLO, "connection": 2**60},
    "too many lines": {**LOGGED, "lines": [""] * 1001},
    "a long line": {**LOGGED, "lines": ["x" * 10_001]},
    "fewer than no lines left out": {**LOGGED, "dropped": -1},
    "a rank below 0": {**LOGGED, "rank": -1},
    "no port": {**OPENED, "port": 0},
    "a port past the last": {**OPENED, "port": 65536},
    "fewer than no reports": {"type": "held", **OF, "reports": -1},
    "a step that cannot be saved": {"type": "checkpointed", **OF, "step": 2**63, "name": "00001/1-1.pkl"},
    "a wait of no trial": {"type": "waiting", "trial": -1, "attempt": 1, "reason": "full"},
    "a reason without end": {"type": "waiting", **OF, "reason": "x" * 1_000_001},
    "nested without end": {**FINISHED, "returned": nested(51)},
    "keys that are no text": {**FINISHED, "returned": {1: 2}},
    "attributes nested without end": {**FINISHED, "attributes": {"a": nested(51)}},
    "a failure that is the driver's to tell": {**FINISHED, "outcome": "raised", "kind": "stage_lost"},
    "a long kind": {**FINISHED, "outcome": "raised", "kind": "x" * 51},
    "an unknown outcome": {**FINISHED, "outcome": "won"},
    "a text without end": {"type": "broken", "message": "x" * 1_000_001},
}


@pytest.mark.parametrize("fields", BAD.values(), ids=BAD)
def test_what_no_honest_worker_sends_is_no_message(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_to_driver(msgspec.msgpack.encode(fields))


@pytest.mark.parametrize(
    "message",
    [
        Reported(1, 1, "loss", {"loss": ([-(2**63) + 1, 2**63 - 1], [float("nan"), float("inf")])}),
        Reported(1, 1, "loss", {}, awaiting=True),
        Finished(1, 1, "returned", returned=nested(50)),
        Hello(1, 2**31 - 1, 0, "h" * 255, 1, ["0"] * 1000, None),
    ],
)
def test_what_is_just_within_the_bounds_arrives(message: Reported | Finished | Hello) -> None:
    assert encode(decode_to_driver(encode(message))) == encode(message)
