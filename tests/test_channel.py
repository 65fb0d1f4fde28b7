"""Messages arrive whole and in order, descriptors with them, whatever their size and whoever dies."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zephon_vl.channel import Channel, ChannelClosed

LARGE = 3 << 20
"""Many times what a socket holds."""

Pair = tuple[Channel, Channel]


def connect() -> Pair:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(one), Channel(other)


@pytest.fixture
def pair() -> Iterator[Pair]:
    one, other = connect()
    yield one, other
    one.close()
    other.close()


def exchange(one: Channel, other: Channel, counts: tuple[int, int]) -> tuple[list[bytes], list[bytes]]:
    """What each side receives, both moved by one thread as an event loop does: nothing may block."""
    to_one: list[bytes] = []
    to_other: list[bytes] = []
    for _ in range(10_000):
        if (len(to_one), len(to_other)) == counts:
            return to_one, to_other
        one.flush()
        to_other += other.receive_ready()
        other.flush()
        to_one += one.receive_ready()
    raise AssertionError("the messages do not arrive")


sizes = st.lists(st.one_of(st.integers(0, 20), st.integers(0, 700_000)), max_size=8)


@settings(max_examples=30, deadline=None)
@given(sizes=sizes, back=sizes)
def test_messages_of_any_size_in_both_directions_at_once(sizes: list[int], back: list[int]) -> None:
    one, other = connect()
    forth_messages = [bytes([i]) * size for i, size in enumerate(sizes)]
    back_messages = [bytes([100 + i]) * size for i, size in enumerate(back)]
    for message in forth_messages:
        one.send(message)
    for message in back_messages:
        other.send(message)
    assert exchange(one, other, (len(back), len(sizes))) == (back_messages, forth_messages)
    assert not one.pending and not other.pending
    assert one.receive_ready() == [] and not one.poll()
    one.close()
    other.close()


def test_a_worker_that_blocks_and_a_loop_that_does_not_never_wait_for_each_other(pair: Pair) -> None:
    loop, worker = pair
    count = 6

    def work() -> None:
        for _ in range(count):
            message = worker.receive()
            worker.send(message[::-1])
            worker.flush(block=True)

    thread = threading.Thread(target=work)
    thread.start()
    messages = [bytes([i]) + bytes(LARGE) for i in range(count)]
    for message in messages:
        loop.send(message)
    assert loop.pending
    answers: list[bytes] = []
    while len(answers) < count:
        loop.flush()
        answers += loop.receive_ready()
    thread.join()
    assert answers == [message[::-1] for message in messages]


@pytest.mark.parametrize("size", [0, 3, LARGE])
def test_descriptors_arrive_in_order_with_their_messages(pair: Pair, size: int) -> None:
    one, other = pair
    files = [os.memfd_create(f"file-{i}") for i in range(5)]
    for i, fd in enumerate(files):
        os.write(fd, str(i).encode())
        one.send(b"plain")
        one.send(bytes(size), (fd,))
    sender = threading.Thread(target=one.flush, args=(True,))
    sender.start()
    for i, fd in enumerate(files):
        assert other.receive() == b"plain"
        assert other.receive() == bytes(size)
        received = other.take_fd()
        assert not os.get_inheritable(received)
        assert os.pread(received, 9, 0) == str(i).encode()
        os.close(received)
        os.close(fd)
    sender.join()


def test_the_most_descriptors_in_one_message(pair: Pair) -> None:
    one, other = pair
    one.send(b"", tuple([0] * 16))
    assert other.receive() == b""
    for _ in range(16):
        os.close(other.take_fd())
    with pytest.raises(ValueError, match="17 descriptors, a message takes at most 16"):
        one.send(b"", tuple([0] * 17))
    assert not one.pending


def test_descriptors_that_nobody_took_are_closed() -> None:
    before = len(os.listdir("/proc/self/fd"))
    one, other = connect()
    for _ in range(5):
        one.send(b"", (0, 1))
        assert other.receive() == b""
    os.close(other.take_fd())
    one.close()
    other.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_everything_sent_arrives_before_the_end(pair: Pair) -> None:
    one, other = pair
    one.send(b"first")
    one.send(b"last")
    one.close()
    assert other.receive_ready() == [b"first", b"last"]
    for _ in range(2):
        with pytest.raises(ChannelClosed):
            other.receive_ready()
    with pytest.raises(ChannelClosed):
        other.receive()
    with pytest.raises(ChannelClosed):
        other.poll()


def test_the_end_may_be_seen_together_with_the_last_message(pair: Pair) -> None:
    one, other = pair
    one.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    message = bytes((1 << 18) - 4)  # with its length just what is read at once, so that reading goes on to the end
    one.send(message)
    assert not one.pending
    one.close()
    assert other.receive_ready() == [message]
    with pytest.raises(ChannelClosed):
        other.receive_ready()


def test_half_a_message_is_none(pair: Pair) -> None:
    one, other = pair
    one.send(bytes(LARGE))
    assert one.pending
    assert other.receive_ready() == []
    one.close()
    with pytest.raises(ChannelClosed):
        other.receive()


def test_a_side_that_went_without_reading_is_noticed_by_both_ways(pair: Pair) -> None:
    one, other = pair
    one.send(b"never read")
    other.close()
    with pytest.raises(ChannelClosed):
        one.receive()
    with pytest.raises(ChannelClosed):
        one.send(b"too late")


def test_poll_tells_whether_receive_would_wait(pair: Pair) -> None:
    one, other = pair
    assert not other.poll()
    one.send(b"a")
    one.send(b"b")
    assert other.poll() and other.receive() == b"a"
    assert other.poll() and other.receive() == b"b"
    assert not other.poll()


def test_a_killed_process_is_the_end_of_its_channel() -> None:
    ours, theirs = socket.socketpair()
    code = "import socket, sys, time; socket.socket(fileno=int(sys.argv[1])).send(b'x'); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code, str(theirs.fileno())], pass_fds=[theirs.fileno()])
    theirs.close()
    channel = Channel(ours)
    while channel.socket.recv(1, socket.MSG_PEEK) != b"x":
        pass
    child.kill()
    child.wait()
    with pytest.raises(ChannelClosed):
        channel.receive()
    channel.close()
