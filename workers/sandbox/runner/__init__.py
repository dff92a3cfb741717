"""The in-jail side: a zygote that loads one source and forks a child an episode; the child runs the environment.

In the jail its modules are one, `spade_runner`: root.py puts them together, in the order of PARTS, without their imports of each
other (each file more would be opened at each start of a jail). They import the standard library alone. Talks frames (frames.py)
as JSON arrays: over descriptor 3 with the host (load, fork, status), in a child over the socket that came with the fork. The
zygote never runs environment code: it compiles the source and imports what the source names from the allowed list. A child closes
the control channel, lowers its limits and installs the strict filter before it runs the first line of the source.
Start and fork are paid for every jail and every play, so the modules import builtin modules and three extensions only (each
shared object costs every fork; `json`, `signal`, `array` and `os` pull a third of the standard library between them), and what a
child needs is made before the fork, as each page that a child touches is copied.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

PARTS: Final = ("wire", "kernel", "episode", "zygote")
_OWN_IMPORT: Final = f"from {__name__}."


def runner_source() -> str:
    """The jail's runner as one module's text. Their imports of each other stand in one line each, and go."""
    lines: list[str] = []
    for part in PARTS:
        text = Path(__file__).with_name(f"{part}.py").read_text(encoding="utf-8")
        lines += [line for line in text.splitlines() if not line.startswith((_OWN_IMPORT, "from __future__ "))]
    return "\n".join(["from __future__ import annotations", *lines, ""])
