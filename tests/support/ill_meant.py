"""Messages that are well-formed and ill-meant: any value that the type of each field admits."""

from __future__ import annotations

import contextlib
import math
import random
from typing import Any, cast, get_args

import msgspec
from msgspec import inspect

from maggy_like.protocol.messages import Beat, ToDriver

MESSAGES: tuple[type[msgspec.Struct], ...] = get_args(ToDriver)
"""Whatever a worker may send."""

_FIELDS = {kind: cast(inspect.StructType, inspect.type_info(kind)).fields for kind in MESSAGES}
_FLOATS = (0.0, -0.0, 1.0, -1e308, 1e308, 5e-324, math.nan, math.inf, -math.inf)
_TEXTS = ("", "x", "loss", "../../../etc/passwd", "\x1b[2J\x00\r\n", "\u202e", "nan", "[red]", "<b>&", "é" * 40)
_MAX_ITEMS = 4


class Liar:
    """Draws messages.

    Args:
        rng: Source of all that is drawn.
    """

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def message(self, kind: type[msgspec.Struct] | None = None, **truths: Any) -> ToDriver:
        """A message that decodes.

        Args:
            kind: Its type; any if not given.
            **truths: Values of fields that are not drawn, where the type has such fields.
        """
        kind = kind or self._rng.choice(MESSAGES)
        for _ in range(20):
            fields = {it.name: truths[it.name] if it.name in truths else self.value(it.type) for it in _FIELDS[kind]}
            if "columns" in fields and "columns" not in truths:
                fields["columns"] = self._columns(fields["objective"])
            if "name" in fields and "name" not in truths:
                fields["name"] = f"{fields['trial']:05d}/{fields['attempt']}-{self._rng.randrange(1, 9)}.pkl"
            with contextlib.suppress(ValueError):  # fields that do not go together
                return cast(ToDriver, kind(**fields))
        return Beat()

    def value(self, kind: inspect.Type) -> Any:
        """A value of a type, more often at the borders of what it admits than within."""
        rng = self._rng
        match kind:
            case inspect.BoolType():
                return rng.random() < 0.5
            case inspect.IntType(ge=ge, le=le):
                least, most = -(2**63) if ge is None else ge, 2**63 - 1 if le is None else le
                return max(least, min(most, rng.choice([least, most, 0, 1, 2, rng.randint(0, 100)])))
            case inspect.FloatType():
                return rng.choice(_FLOATS)
            case inspect.StrType(max_length=max_length):
                return rng.choice([*_TEXTS, "y" * min(1000, max_length or 1000)])[:max_length]
            case inspect.LiteralType(values=values):
                return rng.choice(values)
            case inspect.EnumType(cls=words):
                return rng.choice(list(words))
            case inspect.ListType(item_type=item):
                return [self.value(item) for _ in range(rng.randrange(_MAX_ITEMS))]
            case inspect.DictType(key_type=key, value_type=item):
                return {self.value(key): self.value(item) for _ in range(rng.randrange(_MAX_ITEMS))}
            case inspect.TupleType(item_types=items):
                return tuple(self.value(item) for item in items)
            case inspect.StructType(cls=cls, fields=fields):
                return cls(**{it.name: self.value(it.type) for it in fields})
            case inspect.UnionType(types=types):
                return self.value(rng.choice(types))
            case inspect.NoneType():
                return None
            case inspect.AnyType():
                return rng.choice([None, 1, "x", [[]], {"a": [math.nan, {"b": "c"}]}])
        raise TypeError(f"no values of {kind!r} are known")

    def _columns(self, objective: str) -> dict[str, tuple[list[int], list[float]]]:
        """Columns of equal length; the steps rise or not."""
        rng = self._rng
        steps = [rng.choice([-(2**63) + 1, 2**63 - 1, -1, 0, 1, 2, 3, 9, 10]) for _ in range(rng.randrange(5))]
        if rng.random() < 0.5:
            steps.sort()
        names = [objective, *(rng.choice(_TEXTS) for _ in range(rng.randrange(3)))]
        return {name: (steps, [rng.choice(_FLOATS) for _ in steps]) for name in names if rng.random() < 0.9 or steps}
