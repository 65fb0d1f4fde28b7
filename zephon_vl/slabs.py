"""Slabs: shared memory that a microbatch is rendered into and delivered from, without a copy.

A slab is an anonymous memory file passed by descriptor. It needs no room in /dev/shm, has no name that could be left
behind, and vanishes with the last process that holds it. Its pages stay warm: a slab is used again and again.
"""

from __future__ import annotations

import mmap
import os

import numpy as np
from numpy.typing import NDArray


class Slab:
    """One mapped slab. The creator keeps `fd` to pass it on."""

    def __init__(self, number: int, fd: int, size: int) -> None:
        self.number = number
        self.fd = fd
        self._map = mmap.mmap(fd, size)
        self.array: NDArray[np.uint8] = np.frombuffer(self._map, dtype=np.uint8)

    @classmethod
    def create(cls, number: int, size: int) -> Slab:
        """A new slab of `size` zero bytes that take no memory yet."""
        fd = os.memfd_create(f"zephon-vl-slab-{number}", os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        return cls(number, fd, size)

    @classmethod
    def attach(cls, number: int, fd: int, size: int) -> Slab:
        """Map a slab received from its creator; the descriptor is not needed any more and closed."""
        try:
            slab = cls(number, fd, size)
        finally:
            os.close(fd)
        slab.fd = -1
        return slab

    def fresh_view(self) -> NDArray[np.uint8]:
        """A new array over the slab; the slab is in use as long as this array or a tensor over it lives."""
        return np.frombuffer(self._map, dtype=np.uint8)

    def close(self) -> None:
        """Close the descriptor; the mapping goes with its last reference."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class SlabPool:
    """Slabs of one size, created on demand up to a limit and used in turn, the warmest first."""

    def __init__(self, size: int, limit: int) -> None:
        self.size, self.limit = size, limit
        self.slabs: list[Slab] = []
        self._free: list[int] = []

    def acquire(self) -> Slab | None:
        """A free slab, None if all are in use."""
        if self._free:
            return self.slabs[self._free.pop()]
        if len(self.slabs) < self.limit:
            slab = Slab.create(len(self.slabs), self.size)
            self.slabs.append(slab)
            return slab
        return None

    def release(self, number: int) -> None:
        """Give a slab back: nothing refers to it any more. Raises `ValueError` for one that is not in use."""
        if number in self._free or not 0 <= number < len(self.slabs):
            raise ValueError(f"slab {number} is not in use: it would be written by two microbatches at once")
        self._free.append(number)

    @property
    def in_use(self) -> int:
        return len(self.slabs) - len(self._free)

    def close(self) -> None:
        for slab in self.slabs:
            slab.close()
