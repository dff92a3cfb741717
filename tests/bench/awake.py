"""Keeps processors awake: on each one a process that spins where nothing else wants to run.

A virtual machine's processor that sleeps between two messages is dear to wake, so on one that is idle besides, whatever answers
messages looks two to three times as slow as it is in a run (docs/SANDBOX.md). Who calls: `python -m tests.bench --awake`. Ends
its processes; raises OSError where the scheduler refuses.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

# a process of the idle policy runs only where nothing else would; it ends when its standard input does
SPIN: Final = """
import os, select, sys
os.sched_setaffinity(0, {int(sys.argv[1])})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
while not select.select([0], [], [], 0)[0]:
    for _ in range(100_000):
        pass
"""


@contextmanager
def awake_processors() -> Iterator[None]:
    """Nothing sleeps inside."""
    with ExitStack() as stack:
        for processor in sorted(os.sched_getaffinity(0)):
            command = [sys.executable, "-I", "-S", "-c", SPIN, str(processor)]
            spinning = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE))
            stack.callback(spinning.kill)
        yield
