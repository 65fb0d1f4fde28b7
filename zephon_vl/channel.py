"""Messages with file descriptors over a Unix stream socket: a length, then the payload."""

from __future__ import annotations

import array
import os
import socket
import struct
from collections import deque

_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 18
_MAX_FDS = 16


class ChannelClosed(Exception):
    """The other side is gone."""


class Channel:
    """One side of a connection.

    `send` never blocks: what the socket does not take waits in memory until `flush` (two sides that both block in sending
    would wait for each other for ever). `receive` blocks; `receive_ready` returns what has arrived.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
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
        """Queue a message and send what the socket takes. Raises `ChannelClosed`."""
        self._out.append((memoryview(_LENGTH.pack(len(payload)) + payload), fds))
        self.flush()

    def flush(self, block: bool = False) -> None:
        """Send what is queued, all of it if `block`. Raises `ChannelClosed`."""
        flags = 0 if block else socket.MSG_DONTWAIT
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

    def receive_ready(self) -> list[bytes]:
        """The messages that have arrived whole. Raises `ChannelClosed` at the end, if there are none left."""
        closed = False
        try:
            while self._read(socket.MSG_DONTWAIT) == _CHUNK:
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

    def close(self) -> None:
        self.socket.close()
        while self._fds:
            os.close(self._fds.popleft())

    def _read(self, flags: int) -> int:
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, _CHUNK, _MAX_FDS, flags | socket.MSG_CMSG_CLOEXEC)
        except ConnectionError as error:
            raise ChannelClosed(str(error)) from error
        if not data:
            raise ChannelClosed("end of stream")
        self._in += data
        self._fds.extend(fds)
        return len(data)

    def _pop(self) -> bytes | None:
        if len(self._in) < _LENGTH.size:
            return None
        end = _LENGTH.size + _LENGTH.unpack_from(self._in)[0]
        if len(self._in) < end:
            return None
        message = bytes(memoryview(self._in)[_LENGTH.size : end])
        del self._in[:end]
        return message
