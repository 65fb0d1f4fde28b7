"""glibc's allocator, set for what loading does to it. With another C library nothing is done."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Keep what is freed: otherwise each decoded image is mapped anew, which costs a third of its time."""
    if (mallopt := _glibc("mallopt")) is not None:
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)
        mallopt(_M_MMAP_THRESHOLD, 1 << 25)


def return_freed_memory() -> None:
    """Give back what is free now: reading a vocabulary of 150,000 tokens leaves about 40 MB in each process."""
    if (malloc_trim := _glibc("malloc_trim")) is not None:
        malloc_trim(0)


def in_own_arena(load: Callable[[], object]) -> None:
    """Load what forked processes are to share: in a thread, to which glibc gives an arena of its own.

    In the main one, what a process allocates after the fork lies in the gaps between, and each page that it touches is
    copied: with a vocabulary of 150,000 tokens 40 MB in each process. The thread has ended when this returns.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            load()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def _glibc(function: str) -> Callable[..., int] | None:
    try:
        return getattr(ctypes.CDLL(None), function)
    except (AttributeError, OSError):
        return None
