"""Who looks after a process, and what becomes of it when that one ends. Linux."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36


def die_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends, in whatever way.

    Only for children of a coordinator, whose main thread lives as long as it: the kernel sends the signal when the
    *thread* ends that started the process.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, and so the one that sees how they end."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_of(pid: int) -> int | None:
    """Wait for the end of a child. Returns its exit status, or minus a signal; None if nobody knows any more."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # code of the user's ignores SIGCHLD, or waited for all children
        return None


def ended_child() -> int | None:
    """Process id of a child that has ended and was not waited for, if there is one."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return found.si_pid if found else None


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}): {os.strerror(ctypes.get_errno())}")
