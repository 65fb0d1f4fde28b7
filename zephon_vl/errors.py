"""The errors of this library. Each says what happened, where, both values, and what to do."""

from __future__ import annotations


class ZephonError(Exception):
    """Base of all errors raised on purpose. Its text is complete: a command line prints it without a traceback."""


class RecipeError(ZephonError):
    """A recipe that cannot be read or would break a guarantee. Names the field, the values and the remedy."""


class SourceError(ZephonError):
    """A source that cannot be used at all: no shards, an unknown format, a broken archive."""


class StorageError(ZephonError):
    """Storage failed after all retries. Never taken for a bad sample."""


class TooManyBadSamples(ZephonError):
    """More than the recipe's allowed share of samples was bad."""


class WorkerError(ZephonError):
    """Worker processes fail faster than they can be replaced."""


class UserCodeError(ZephonError):
    """A user's function or operator failed on a sample. Names it, the source, shard and key, and has its traceback."""


class StateError(ZephonError):
    """A checkpoint state that does not fit this run."""


class LedgerError(ZephonError):
    """A ledger that is not there, damaged, foreign, or does not hold what is asked for."""


class MissingExtra(ZephonError):
    """An optional dependency is needed. Names the extra."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(f'{purpose} needs the package "{package}": pip install "zephon-vl[{extra}]"')


class BadSample(Exception):
    """Raised inside a worker for a sample that cannot be used; the engine skips it and records the reason.

    Not a `ZephonError`: it never reaches the user as an exception.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
