"""Process plumbing of the runner: nothing that a runner started outlives it."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(number: signal.Signals, parent_pid: int) -> None:
    """Have the kernel send `number` to this process when its parent dies (Linux only); exit if it is dead already."""
    if _LIBC is not None and _LIBC.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os._exit(1)


def kill_group(pid: int) -> None:
    """Kill the process group that `pid` leads; none is left is fine."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    except PermissionError:
        # Between fork and setpgid the group does not exist yet; macOS says EPERM for a group of zombies.
        os.kill(pid, signal.SIGKILL)


def lead_group(pid: int) -> None:
    """Make `pid` the leader of a process group; both sides of a fork do it, so that neither is early."""
    try:
        os.setpgid(pid, pid)
    except (ProcessLookupError, PermissionError):
        # The child is gone, or has done it and gone on.
        return
