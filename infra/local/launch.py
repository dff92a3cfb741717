"""Becomes another program that dies with its parent. Run as a file: `python -I -S launch.py PARENT_PID PROGRAM ARGS...`.

Linux sends the signal when the parent's THREAD that forked ends, so start services from a thread that lives as long as they.
On systems without prctl the program simply runs; its owner stops it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    """Asks the kernel for SIGKILL at the parent's end, then replaces this process by the program."""
    parent, program = int(argv[1]), argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # the parent ended before the request stood
        return
    os.execvp(program[0], program)  # noqa: S606


if __name__ == "__main__":
    main(sys.argv)
