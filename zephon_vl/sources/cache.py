"""One cache of decoded parts for all sources of a process, bounded by bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

LIMIT = 128 << 20


class ByteCache:
    """Least recently used entries go first. The newest stays even if it alone is over the limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._entries: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], tuple[Any, int]]) -> Any:
        """The entry of a key; `make` returns it and its bytes if it is not there."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key][0]
        value, size = make()
        with self._lock:
            if key not in self._entries:
                self._entries[key] = (value, size)
                self._used += size
                while self._used > self._limit and len(self._entries) > 1:
                    self._used -= self._entries.popitem(last=False)[1][1]
        return value

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self._used = 0


decoded = ByteCache(LIMIT)
