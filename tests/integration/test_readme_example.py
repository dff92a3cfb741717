"""The environment that the README shows is one that the gate admits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from workers.gate import judge
from workers.sandbox import open_sandbox

pytestmark = pytest.mark.integration
README = Path(__file__).parents[2] / "README.md"


def test_the_readmes_environment_is_admitted() -> None:
    shown = re.search(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert shown, "the README shows an environment"
    sandbox = open_sandbox("zygote")
    try:
        verdict = judge(sandbox, shown.group(1), "Add column by column, carry over.")
    finally:
        sandbox.close()
    assert verdict.admitted, f"{verdict.rule}: {verdict.evidence}"
    assert verdict.witness_min_return == 1.0
