"""Filter: a user's function decides which samples stay."""

from __future__ import annotations

import numpy as np

from zephon_vl.contracts import Context, Operator, Sample
from zephon_vl.operators.user_code import UserCode, UserFunction


class Filter(Operator):
    """`{ use = "filter", function = "my_ops.py:name" }`: `name(sample)` or `name(sample, rng)` returns whether to keep
    the sample. Generator and further keys as for `Map`.

    Raises:
        RecipeError: from the constructor, if the function cannot be called so.
        UserCodeError: from `measure`, if it raises anything but `BadSample` or returns anything but a bool.
    """

    def __init__(self, code: UserCode) -> None:
        self._function = UserFunction(code)

    def measure(self, sample: Sample, context: Context) -> Sample | None:
        keep = self._function(sample, context)
        if not isinstance(keep, bool | np.bool_):
            raise self._function.code.failed(
                context,
                f"returned {type(keep).__name__}, but a filter returns True to keep the sample, False to drop it",
            )
        return sample if keep else None
