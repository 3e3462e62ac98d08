"""What a ledger keeps of trials that do not run, in few bytes: a dict or an array costs more than it holds there."""

from __future__ import annotations

from abc import ABCMeta
from array import array
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TypeVar

import msgspec

from optimizers.core.curve import Curve

LONGEST = 128
"""Measurements up to which the curves of a trial are packed: each look at a curve makes a copy of it then."""

_WORD = 8
"""Bytes of a step, and of a value."""

V = TypeVar("V")


class _MappingStruct(msgspec.StructMeta, ABCMeta):
    """Makes a struct a mapping."""


class _Packed(msgspec.Struct, Mapping[str, V], metaclass=_MappingStruct, frozen=True, eq=False, gc=False):
    """A mapping that cannot be changed: its names, which many of them share, and what a kind of them has besides."""

    _names: tuple[str, ...]

    __eq__ = Mapping.__eq__

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return repr(dict(self))

    def _place(self, name: str) -> int:
        try:
            return self._names.index(name)
        except ValueError:
            raise KeyError(name) from None


class PackedValues(_Packed[float], frozen=True):
    """Numbers by name: one by itself, since a trial has it already, and several as bytes."""

    _data: float | bytes

    @classmethod
    def of(cls, values: Mapping[str, float], names: tuple[str, ...]) -> PackedValues:
        """Those of another mapping, whose names are ``names``."""
        if len(names) == 1:
            return cls(names, values[names[0]])
        return cls(names, array("d", values.values()).tobytes())

    def __getitem__(self, name: str) -> float:
        start = _WORD * self._place(name)
        return _floats(self._data[start : start + _WORD])[0] if isinstance(self._data, bytes) else self._data


class PackedCurves(_Packed[Curve], frozen=True):
    """Curves by name: how long each is, and then each one's steps and values."""

    _data: bytes

    @classmethod
    def of(cls, curves: Mapping[str, Curve], names: tuple[str, ...]) -> PackedCurves:
        """Those of another mapping, whose names are ``names``."""
        lengths = array("q")
        parts: list[array[int] | array[float]] = [lengths]
        for curve in curves.values():
            lengths.append(len(curve.steps))
            parts.append(curve.steps)
            parts.append(curve.values)
        return cls(names, b"".join(parts))

    def opened(self) -> dict[str, Curve]:
        """The curves in a dict, where they can be extended."""
        curves, start = {}, _WORD * len(self._names)
        for name, length in zip(self._names, _integers(self._data[:start]), strict=True):
            middle = start + _WORD * length
            end = middle + _WORD * length
            curves[name] = Curve(_integers(self._data[start:middle]), _floats(self._data[middle:end]))
            start = end
        return curves

    def __getitem__(self, name: str) -> Curve:
        place, head = self._place(name), _WORD * len(self)
        lengths = _integers(self._data[:head])
        start = head + 2 * _WORD * sum(lengths[:place])
        middle = start + _WORD * lengths[place]
        end = middle + _WORD * lengths[place]
        return Curve(_integers(self._data[start:middle]), _floats(self._data[middle:end]))


class _Nothing(dict[str, Any]):
    """An empty dict that stays empty, since all share it."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a trial's metrics and attributes cannot be changed; make a dict of them first")

    __setitem__ = setdefault = update = __ior__ = _refuse

    def __reduce__(self) -> str:
        return "NOTHING"


NOTHING = _Nothing()
"""No values by name."""


def _integers(data: bytes) -> array[int]:
    return array("q", data)


def _floats(data: bytes) -> array[float]:
    return array("d", data)
