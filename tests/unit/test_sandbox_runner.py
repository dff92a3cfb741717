"""The jail's runner as one module: its parts put together mean what they mean apart, and need nothing that the jail lacks."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

from workers.sandbox import runner
from workers.sandbox.runner import PARTS, runner_source

FOLDER = Path(runner.__file__).parent


def test_runner_is_all_of_its_parts_and_defines_nothing_twice() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {"__init__", *PARTS}
    defined = [
        name
        for node in ast.parse(runner_source()).body
        for name in (
            [node.name]
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
            else [target.id for target in node.targets if isinstance(target, ast.Name)]
            if isinstance(node, ast.Assign)
            else []
        )
        if name != "TYPE_CHECKING"
    ]
    assert sorted(defined) == sorted(set(defined))
    for part in PARTS:
        module = importlib.import_module(f"{runner.__name__}.{part}")
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        assert set(own) <= set(defined)


def test_runner_imports_without_this_project_and_without_a_site() -> None:
    code = "import sys, types; m = types.ModuleType('spade_runner'); exec(sys.stdin.read(), m.__dict__); print(callable(m.main))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], input=runner_source(), capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout.strip(), done.stderr) == ("True", "")
