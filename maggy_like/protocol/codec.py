"""Messages as bytes: msgpack on the wire. Reading a frame checks every field of its message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from maggy_like.protocol.messages import PROTOCOL_VERSION, Assign, ToDriver, ToWorker

_ENCODER = msgspec.msgpack.Encoder()
_TO_DRIVER: msgspec.msgpack.Decoder[ToDriver] = msgspec.msgpack.Decoder(ToDriver)
_TO_WORKER: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_ALSO_MALFORMED = UnicodeDecodeError, RecursionError  # what msgspec lets through for text that is none, and deep nests


def encode(message: ToDriver | ToWorker) -> bytes:
    """The message's bytes."""
    if isinstance(message, Assign):
        message = msgspec.structs.replace(message, config=_each(_form, message.config))
    return _ENCODER.encode(message)


def decode_to_driver(frame: bytes | memoryview) -> ToDriver:
    """Read what a worker or child sent.

    Raises:
        msgspec.DecodeError: The frame is no message of this protocol.
    """
    try:
        return _TO_DRIVER.decode(frame)
    except _ALSO_MALFORMED as error:
        raise msgspec.DecodeError(str(error)) from None


def foreign_hello(frame: bytes | memoryview) -> dict[str, Any] | None:
    """A hello in another version of the protocol, whatever its form, as plain data; None for all else."""
    try:
        said = msgspec.msgpack.decode(frame)
    except (msgspec.DecodeError, *_ALSO_MALFORMED):
        return None
    is_hello = isinstance(said, dict) and said.get("type") == "hello" and isinstance(said.get("version"), int)
    return said if is_hello and said["version"] != PROTOCOL_VERSION else None


def decode_to_worker(frame: bytes | memoryview) -> ToWorker:
    """Read what the driver sent.

    Raises:
        msgspec.DecodeError: The frame is no message of this protocol.
    """
    try:
        message = _TO_WORKER.decode(frame)
        if isinstance(message, Assign):
            message = msgspec.structs.replace(message, config=_each(_value, message.config))
        return message
    except _ALSO_MALFORMED as error:
        raise msgspec.DecodeError(str(error)) from None


def _each(change: Callable[[Any], Any], config: dict[str, Any]) -> dict[str, Any]:
    return {name: change(value) for name, value in config.items()}


def _form(value: Any) -> Any:
    """A value in the form of ``optimizers.space.scalars.to_json``, since msgpack has lists and no tuples either."""
    if isinstance(value, tuple):
        return {"tuple": [_form(inner) for inner in value]}
    return [_form(inner) for inner in value] if isinstance(value, list) else value


def _value(form: Any) -> Any:
    if isinstance(form, dict):
        return tuple(map(_value, form["tuple"])) if form.keys() == {"tuple"} else form
    return [_value(inner) for inner in form] if isinstance(form, list) else form
