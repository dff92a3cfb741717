"""The `spade` command: the composition root. `main` is the script's entry point.

Exit codes: 0 done; 1 the run failed; 2 a setting, recipe, corpus or model can't be used; 3 broker, store, port or download;
4 the jail is weaker than asked; 5 the disk is full; 130 ended by Ctrl-C. Errors are one line on stderr with the fix.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Parses the command line, runs the command and exits with its code."""
    try:
        from infra.cli.app import run_app

        code = run_app(sys.argv[1:])
    except KeyboardInterrupt:  # before any command had begun
        code = 130
    sys.exit(code)
