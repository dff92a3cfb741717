"""Command lines of this machine's processes, as `ps` would show them, while processes come and go.

`Path.glob("/proc/[0-9]*/cmdline")` must not be used for this: it looks at each file before it hands it out, and a process that
ends in that moment raises ProcessLookupError from inside the iterator (Python 3.11's pathlib passes over ENOENT, not ESRCH).
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def command_lines() -> dict[int, str]:
    """Process id -> its command line, words joined by spaces; a process that ends while it is looked at is left out."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  names alone: nothing is looked at before the block below
        if name.isdigit():
            with contextlib.suppress(OSError):
                words = Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(name)] = words.decode(errors="replace").strip()
    return found
