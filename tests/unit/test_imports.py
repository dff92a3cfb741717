"""Who may import whom, what an import may not do, and that the flat package names are this project's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("schemas", "infra", "streams", "workers", "trainer")
HEAVY = ("torch", "vllm", "deepspeed", "faust", "transformers", "chdb", "kafka", "matplotlib")


def python(code: str, cwd: Path) -> str:
    answer = subprocess.run([sys.executable, "-P", "-c", code], cwd=cwd, capture_output=True, text=True, timeout=120, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_imports_point_one_way() -> None:
    answer = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert answer.returncode == 0, answer.stdout
    assert "1 kept, 0 broken" in answer.stdout


def test_schemas_load_no_heavy_library(tmp_path: Path) -> None:
    modules = sorted(f"schemas.{file.stem}" for file in (ROOT / "schemas").glob("*.py") if file.stem != "__init__")
    code = f"import sys, {', '.join(modules)}; print([name for name in {HEAVY!r} if name in sys.modules])"
    assert python(code, tmp_path).strip() == "[]"


def test_the_command_line_loads_nothing_that_its_help_can_do_without(tmp_path: Path) -> None:
    spared = (*HEAVY, "pydantic", "structlog", "prometheus_client", "clickhouse_connect", "asyncio", "numpy")
    code = f"import sys, infra.cli.app; print([name for name in {spared!r} if name in sys.modules])"
    assert python(code, tmp_path).strip() == "[]"


@pytest.mark.parametrize("package", PACKAGES)
def test_flat_package_resolves_to_this_project_from_elsewhere(package: str, tmp_path: Path) -> None:
    (tmp_path / package).mkdir()  # a folder of the same name in the working directory does not shadow it
    (tmp_path / package / "__init__.py").write_text("raise RuntimeError('shadowed')")
    found = python(f"import {package}; print({package}.__file__)", tmp_path).strip()
    assert Path(found).resolve() == ROOT / package / "__init__.py"
    assert (ROOT / package / "py.typed").exists()
