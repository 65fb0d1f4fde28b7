"""Map: a user's function changes each sample before it is measured."""

from __future__ import annotations

from zephon_vl.contracts import Context, Operator, Sample
from zephon_vl.operators.user_code import UserCode, UserFunction


class Map(Operator):
    """`{ use = "map", function = "my_ops.py:name" }`: `name(sample)` or `name(sample, rng)` returns the sample, changed
    in place or new.

    `rng` is a `numpy.random.Generator` keyed by seed, source, epoch, sample and operator: the same on any rank and
    after any restart. Further keys of the table are keyword arguments of the function.

    Raises:
        RecipeError: from the constructor, if the function cannot be called so.
        UserCodeError: from `measure`, if it raises anything but `BadSample` or returns anything but a `Sample`.
    """

    def __init__(self, code: UserCode) -> None:
        self._function = UserFunction(code)

    def measure(self, sample: Sample, context: Context) -> Sample:
        result = self._function(sample, context)
        if not isinstance(result, Sample):
            raise self._function.code.failed(
                context, f"returned {type(result).__name__}, but a map returns the Sample (a filter drops samples)"
            )
        return result
