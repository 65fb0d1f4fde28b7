"""Messages with file descriptors over a Unix stream socket: a length, then the payload."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
from collections import deque

_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 18
_MAX_FDS = 16
_FD = array.array("i")
# As plain numbers: combining two flags of an enumeration costs more than the call itself.
_CLOEXEC = int(socket.MSG_CMSG_CLOEXEC)
_DONTWAIT = int(socket.MSG_DONTWAIT)


class ChannelClosed(Exception):
    """The other side is gone."""


class Channel:
    """One side of a connection.

    `send` never blocks: what the socket does not take waits in memory until `flush` (two sides that both block in
    sending would wait for each other for ever). `receive` blocks; `receive_ready` returns what has arrived.

    Args:
        descriptors: whether descriptors may come in; receiving costs a little more with them.
    """

    def __init__(self, sock: socket.socket, descriptors: bool = True) -> None:
        self.socket = sock
        self._room = socket.CMSG_SPACE(_MAX_FDS * _FD.itemsize) if descriptors else 0
        # Kept from one call to the next: a fresh one of this size would be mapped anew each time.
        self._chunk = memoryview(bytearray(_CHUNK))
        self._in = bytearray()
        self._fds: deque[int] = deque()
        self._out: deque[tuple[memoryview, tuple[int, ...]]] = deque()

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def pending(self) -> bool:
        """Whether something waits for `flush`."""
        return bool(self._out)

    def send(self, payload: bytes, fds: tuple[int, ...] = ()) -> None:
        """Queue a message and send what the socket takes. Raises `ChannelClosed`, and `ValueError` for more descriptors
        than the other side takes with one message."""
        if len(fds) > _MAX_FDS:
            raise ValueError(f"{len(fds)} descriptors, a message takes at most {_MAX_FDS}")
        self._out.append((memoryview(_LENGTH.pack(len(payload)) + payload), fds))
        self.flush()

    def flush(self, block: bool = False) -> None:
        """Send what is queued, all of it if `block`. Raises `ChannelClosed`."""
        flags = 0 if block else _DONTWAIT
        while self._out:
            data, fds = self._out[0]
            try:
                sent = self._send_once(data, fds, flags)
            except BlockingIOError:
                return
            except OSError as error:
                raise ChannelClosed(str(error)) from error
            if sent == len(data):
                self._out.popleft()
            else:
                self._out[0] = (data[sent:], ())

    def _send_once(self, data: memoryview, fds: tuple[int, ...], flags: int) -> int:
        if fds:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
            return self.socket.sendmsg([data], ancillary, flags)
        return self.socket.send(data, flags)

    def receive(self) -> bytes:
        """The next message; blocks. Raises `ChannelClosed`."""
        while (message := self._pop()) is None:
            self._read(0)
        return message

    def poll(self) -> bool:
        """Whether `receive` would return at once."""
        if not self._whole():
            try:
                self._read(_DONTWAIT)
            except BlockingIOError:
                return False
        return self._whole() > 0

    def receive_ready(self) -> list[bytes]:
        """The messages that have arrived whole. Raises `ChannelClosed` at the end, if there are none left."""
        closed = False
        try:
            while self._read(_DONTWAIT) == _CHUNK:
                pass
        except BlockingIOError:
            pass
        except ChannelClosed:
            closed = True
        messages: list[bytes] = []
        while (message := self._pop()) is not None:
            messages.append(message)
        if closed and not messages:
            raise ChannelClosed("end of stream")
        return messages

    def take_fd(self) -> int:
        """The oldest descriptor received and not yet taken."""
        return self._fds.popleft()

    def shut_down(self) -> None:
        """End the connection for every process that holds it."""
        with contextlib.suppress(OSError):  # the other side was faster
            self.socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.socket.close()
        while self._fds:
            os.close(self._fds.popleft())

    def _read(self, flags: int) -> int:
        try:
            size, ancillary, _, _ = self.socket.recvmsg_into([self._chunk], self._room, flags | _CLOEXEC)
        except ConnectionError as error:
            raise ChannelClosed(str(error)) from error
        if not size:
            raise ChannelClosed("end of stream")
        self._in += self._chunk[:size]
        for _, _, data in ancillary:
            fds = array.array("i")
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
            self._fds.extend(fds)
        return size

    def _whole(self) -> int:
        """Where the first message ends; 0 if it has not arrived whole."""
        if len(self._in) < _LENGTH.size:
            return 0
        end = _LENGTH.size + _LENGTH.unpack_from(self._in)[0]
        return end if len(self._in) >= end else 0

    def _pop(self) -> bytes | None:
        end = self._whole()
        if not end:
            return None
        message = bytes(memoryview(self._in)[_LENGTH.size : end])
        del self._in[:end]
        return message
