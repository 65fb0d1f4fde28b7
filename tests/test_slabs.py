"""Slabs are one memory in all processes, used again, and gone with their last reference."""

from __future__ import annotations

import gc
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from zephon_vl.channel import Channel
from zephon_vl.slabs import Slab, SlabPool

_CHILD = """
import socket, sys
from zephon_vl.channel import Channel
from zephon_vl.slabs import Slab
channel = Channel(socket.socket(fileno=int(sys.argv[1])))
for _ in range(3):
    number, size = map(int, channel.receive().split())
    slab = Slab.attach(number, channel.take_fd(), size)
    assert slab.array[number] == 7
    slab.array[number] = 100 + number
    channel.send(b"written")
channel.flush(block=True)
"""


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_slabs_are_shared_with_another_process() -> None:
    ours, theirs = socket.socketpair()
    with subprocess.Popen([sys.executable, "-c", _CHILD, str(theirs.fileno())], pass_fds=[theirs.fileno()]) as child:
        theirs.close()
        channel = Channel(ours)
        slabs = [Slab.create(number, 8192) for number in range(3)]
        for slab in slabs:
            slab.array[slab.number] = 7
            channel.send(f"{slab.number} {slab.array.nbytes}".encode(), (slab.fd,))
        assert [channel.receive() for _ in slabs] == [b"written"] * 3
        channel.close()
    assert child.returncode == 0
    assert [int(slab.array[slab.number]) for slab in slabs] == [100, 101, 102]
    assert all(np.count_nonzero(slab.array) == 1 for slab in slabs)
    for slab in slabs:
        slab.close()


def test_a_new_slab_is_zero_and_takes_no_memory_yet() -> None:
    before = int(Path("/proc/self/statm").read_text().split()[1])
    slab = Slab.create(0, 1 << 32)
    assert slab.array[1 << 31] == 0
    assert int(Path("/proc/self/statm").read_text().split()[1]) - before < 1000
    slab.close()


def test_a_closed_slab_lives_as_long_as_a_view_of_it() -> None:
    gc.collect()
    before = descriptors()
    slab = Slab.create(0, 4096)
    view = slab.fresh_view()
    slab.close()
    slab.close()
    del slab
    view[:] = 5
    assert view.sum() == 5 * 4096
    assert descriptors() > before
    del view
    gc.collect()
    assert descriptors() == before


def test_attaching_takes_the_descriptor_over() -> None:
    before = descriptors()
    slab = Slab.create(3, 4096)
    other = Slab.attach(3, os.dup(slab.fd), 4096)
    slab.array[9] = 1
    assert other.array[9] == 1 and other.fd == -1
    slab.close()
    del slab, other
    gc.collect()
    assert descriptors() == before


def test_attaching_less_than_was_promised_keeps_no_descriptor() -> None:
    slab = Slab.create(0, 4096)
    before = descriptors()
    with pytest.raises(ValueError, match="size"):
        Slab.attach(0, os.dup(slab.fd), 1 << 20)
    assert descriptors() == before
    slab.close()


def test_a_pool_is_bounded_and_gives_the_warmest_slab_first() -> None:
    pool = SlabPool(4096, 3)
    taken = [slab for _ in range(3) if (slab := pool.acquire()) is not None]
    assert [slab.number for slab in taken] == [0, 1, 2]
    assert pool.acquire() is None and pool.in_use == 3
    pool.release(0)
    pool.release(2)
    assert pool.in_use == 1
    assert pool.acquire() is taken[2], "the same memory, its pages still there"
    assert pool.acquire() is taken[0]
    assert pool.acquire() is None
    pool.close()


def test_a_slab_that_is_given_back_twice_is_not_given_out_twice() -> None:
    pool = SlabPool(4096, 2)
    assert pool.acquire() is not None
    pool.release(0)
    with pytest.raises(ValueError, match="slab 0 is not in use"):
        pool.release(0)
    with pytest.raises(ValueError, match="slab 1 is not in use"):
        pool.release(1)
    pool.close()
