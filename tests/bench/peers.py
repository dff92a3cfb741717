"""What jails are measured against: a bare interpreter, a plain fork, an echo over pipes, work beside them.

Each is a process of this interpreter. Who calls: jails.py. Every method blocks for the milliseconds that it
measures; a peer that does not answer ends in TimeoutError.
"""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

BINARY: Final = str(getattr(sys, "_base_executable", sys.executable))
SITES: Final = sorted({str(Path(place)) for place in sys.path if place.endswith("site-packages")})
ENVIRONMENT: Final = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"} | (
    {"LD_LIBRARY_PATH": os.environ["LD_LIBRARY_PATH"]} if "LD_LIBRARY_PATH" in os.environ else {}
)
ANSWER_S: Final = 10.0
ECHO: Final = "import os\nwhile (text := os.read(0, 65536)): os.write(1, text)"
FORK: Final = """
import os
while os.read(0, 1):
    pid = os.fork()
    if not pid:
        os.write(1, b'x')
        os._exit(0)
    os.waitpid(pid, 0)
"""
# from "b" to the next byte: takes memory, writes a byte into each page, gives it back, and again, at the lowest priority
WORK: Final = """
import mmap, os, select
os.nice(19)
busy = False
while True:
    if select.select([0], [], [], 0 if busy else None)[0]:
        text = os.read(0, 1)
        if not text:
            break
        busy = text == b'b'
        os.write(1, b'x')
    if busy:
        with mmap.mmap(-1, 1 << 25) as held:
            for place in range(0, len(held), 4096):
                held[place] = 1
"""


def start_python() -> float:
    """Seconds that `python -I -S -c pass` takes."""
    return _run("pass")


def start_packages() -> float:
    """Seconds that the import of numpy and gymnasium takes, with the interpreter's start."""
    return _run(f"import sys; sys.path.extend({json.dumps(SITES)}); import numpy, gymnasium")


def python_cpu_s() -> float:
    """CPU seconds of `python -I -S -c pass`: what a CPU second of this machine, as busy as it is, is worth."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    start_python()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _run(code: str) -> float:
    began = time.perf_counter()
    subprocess.run([BINARY, "-I", "-S", "-c", code], env=ENVIRONMENT, check=True, timeout=60)
    return time.perf_counter() - began


class Peer:
    """A process that answers each message over pipes."""

    def __init__(self, code: str) -> None:
        self._process = subprocess.Popen(
            [BINARY, "-I", "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=ENVIRONMENT
        )
        assert self._process.stdin
        assert self._process.stdout
        self._to, self._from = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._readable = select.poll()
        self._readable.register(self._from, select.POLLIN)
        self.ask(b"x")

    def ask(self, message: bytes) -> float:
        """Seconds from the message to its answer, waited for with a timeout."""
        began = time.perf_counter()
        os.write(self._to, message)
        if not self._readable.poll(ANSWER_S * 1000):
            raise TimeoutError("a peer does not answer")
        os.read(self._from, 65536)
        return time.perf_counter() - began

    def close(self) -> None:
        """Ends the process."""
        self._process.communicate(timeout=ANSWER_S)
