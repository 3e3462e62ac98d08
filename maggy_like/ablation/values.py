"""Values of parameters, compared."""

from __future__ import annotations

import math

from optimizers.space.scalars import plain, same


def same_value(a: object, b: object) -> bool:
    """Whether two values are the same: 0 and 0.0 are, 1 and True are not.

    Arrays and tables, which ``==`` compares part by part, are the same if they are one object.
    """
    a, b = plain(a), plain(b)
    if a is b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b)):
        return True
    try:
        return bool(same(a, b))
    except Exception:  # ValueError of arrays and tables, RuntimeError of tensors, TypeError of missing values
        return False
