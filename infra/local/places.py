"""Where downloaded artifacts are kept between runs. Called by the local services and by `spade doctor`."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$SPADE_CACHE`, else `$XDG_CACHE_HOME/spade`, else `~/.cache/spade`. Reads the environment at each call."""
    named = os.environ.get("SPADE_CACHE", "")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base else Path.home() / ".cache") / "spade"
