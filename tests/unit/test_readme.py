"""README and tree tell the same story."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
TOLD_AS_FOLDERS = ("tests/environments/", "tests/fakes/")


def modules() -> list[str]:
    told = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [path for path in told if not path.endswith("__init__.py") and not path.startswith(TOLD_AS_FOLDERS)]


def test_every_module_stands_in_the_readmes_tree_and_no_other() -> None:
    package, listed = "", set()
    for line in (ROOT / "README.md").read_text(encoding="utf-8").split("## The tree", 1)[1].splitlines():
        if line and not line.startswith((" ", "`")) and line.split()[0].endswith("/"):
            package = line.split()[0]
        elif line.startswith("  ") and line.split()[0].endswith(".py"):
            listed.add(package + line.split()[0])
    present = set(modules())
    assert present, "git names the modules"
    assert present - listed == set()
    assert {
        path for path in listed if not path.endswith("__init__.py") and not path.startswith(TOLD_AS_FOLDERS)
    } - present == set()
