"""Run by path: ties this process to the life of its parent, then becomes the command. SIGNAL PARENT_PID COMMAND..."""

import ctypes
import os
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for SIGNAL when the parent dies, then exec."""
    signal, parent, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit("the supervisor is gone")
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
