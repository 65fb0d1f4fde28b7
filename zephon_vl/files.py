"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def write_atomically(path: str | Path, *parts: bytes | bytearray | memoryview) -> None:
    """Write a file in one step: another process sees the old file, none, or all of the new one.

    The directory is made where it is missing. A failure leaves nothing behind.

    Raises:
        OSError
    """
    directory, name = os.path.split(os.path.abspath(path))
    os.makedirs(directory, exist_ok=True)
    fd, temporary = tempfile.mkstemp(prefix=f".{name[:80]}.", suffix=".tmp", dir=directory)
    try:
        with open(fd, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(fd)  # else a crash of the machine may leave the new name with old content
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
