"""Programs that tests need and that no Python package brings: Debian's Chromium and Prometheus.

`make test` installs them first; no test is skipped for want of one.
"""

from __future__ import annotations

import shutil


def find_program(*names: str) -> str:
    """Where the first of these programs lies. AssertionError that says how to get it."""
    found = next((path for name in names if (path := shutil.which(name))), None)
    assert found, f"{names[0]} is not installed: `make tools` (Debian: apt-get install chromium-headless-shell prometheus)"
    return found
