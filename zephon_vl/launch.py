"""Start light processes: a fresh interpreter that imports only what it needs, never the caller's main module.

No `if __name__ == "__main__"` guard is needed in the training script, nothing is forked (CUDA contexts, threads and
locks of the training process stay where they are), and a start takes about a tenth of a second.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys

from zephon_vl.channel import Channel

# Ctrl-C reaches the whole process group, from the first moment on; the training process decides what it means. A
# training process that ignores its children passes that on, and nobody could see how a worker ended.
_BOOT = """
import signal
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from importlib import import_module
import_module(sys.argv[2]).main(*map(int, sys.argv[3:]))
"""

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")


def start(module: str, *descriptors: int, receives: bool = False) -> tuple[subprocess.Popen[bytes], Channel]:
    """Start `module.main(channel_fd, parent_pid, *descriptors)` in a new process.

    Args:
        receives: whether this side of the channel takes descriptors.

    Returns:
        the process and this side of its channel.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    # Above the standard ones: without a standard input a new descriptor is 0, and the child's own would replace it.
    inherited = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (theirs.fileno(), *descriptors)]
    channel, *others = map(str, inherited)
    arguments = [channel, str(os.getpid()), *others]
    environment = {**os.environ, **dict.fromkeys(_THREADS, "1"), "TOKENIZERS_PARALLELISM": "false"}
    try:
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, json.dumps(sys.path), module, *arguments],
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
        for fd in inherited:
            os.close(fd)
    return process, Channel(ours, descriptors=receives)
