"""The gate in the real jail: good environments of many kinds are admitted, each planted fault is refused for its own reason."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.gate import GateInterrupted, Verdict, judge
from workers.gate.command import ADMITTED, COULD_NOT_RUN, REFUSED, gate_file
from workers.sandbox import Sandbox, open_sandbox

pytestmark = pytest.mark.integration

ENVIRONMENTS = Path(__file__).parents[1] / "environments"
GOOD = sorted(path.stem for path in ENVIRONMENTS.glob("*.py"))
SUM = (ENVIRONMENTS / "sum_puzzle.py").read_text()
HINT = "Work in small steps and keep what you have found so far in mind."
RETURN = 'return ("Right." if right else "Wrong."), (1.0 if right else 0.0), True, False, {}'


def changed(*changes: tuple[str, str]) -> str:
    """The honest sum puzzle with a fault planted."""
    source = SUM
    for old, new in changes:
        assert old in source, old
        source = source.replace(old, new)
    return source


BAD = {
    "always pays": ("silent", changed(("(1.0 if right else 0.0)", "1.0"))),
    "never pays": ("witness", changed(("(1.0 if right else 0.0)", "0.0"))),
    "ignores the seed": ("seed", changed(("random.Random(seed)", "random.Random(5)"))),
    "draws without the seed": ("replay", changed(("random.Random(seed)", "random.Random()"))),
    "depends on hash order": (
        "replay",
        changed(('return f"Add {a} and {b}. ', "return str(list({'ab', 'cd', 'ef', 'gh', 'ij'})) + f\"Add {a} and {b}. ")),
    ),
    "depends on address order": ("replay", changed(('return f"Add', 'return repr([].append) + f"Add'))),
    "depends on global random numbers": ("replay", changed(('return f"Add', 'return str(random.random()) + f"Add'))),
    "pays infinity": ("types", changed(("1.0 if right", "1e999 if right"))),
    "pays not a number": (
        "types",
        changed(("1.0 if right", "math.nan if right"), ("import random", "import math\nimport random")),
    ),
    "pays too much": ("types", changed(("1.0 if right", "2.0 if right"))),
    "pays a bool": ("types", changed(("(1.0 if right else 0.0)", "right"))),
    "observes a number": ("types", changed(('("Right." if right else "Wrong.")', "7"))),
    "tells by info": (
        "info",
        changed(("True, False, {}\n\n    def solution", "True, False, {'answer': self.answer}\n\n    def solution")),
    ),
    "tells by the first info": ("info", changed(('in \\\\boxed{{}}.", {}', "in \\\\boxed{{}}.\", {'answer': self.answer}"))),
    "never ends": (
        "ends",
        changed(
            (RETURN, 'return ("Right." if right else "Wrong."), (1.0 if right else 0.0), right, False, {}'),
            ("self.over = True\n        right = action", "right = self.over = action"),
        ),
    ),
    "pays after the end": ("after-end", changed(('return "Over.", 0.0, True', 'return "Over.", 1.0, True'))),
    "prints the answer": ("copier", changed(("Answer in", "The answer is {a + b}. Answer in"))),
    "prints the answer reversed": ("copier", changed(("Answer in", "Mirror: {str(a + b)[::-1]}. Answer in"))),
    "prints the answer in hexadecimal": ("copier", changed(("Answer in", "Code: {(a + b):x}. Answer in"))),
    "has one answer for all seeds": ("other-witness", changed(("self.answer = a + b", "self.answer = 7"))),
    "raises on odd actions": (
        "survives",
        changed(("right = action.strip()", "int(action.strip()[7:-1] or 'x') if action else 0\n        right = action.strip()")),
    ),
    "raises in the witness's play": ("runs", changed(("right = action.strip()", "1 / 0\n        right = action.strip()"))),
    "witness raises": ("witness", changed(('return ["\\\\boxed{"', 'return 1 / 0 or ["\\\\boxed{"'))),
    "witness gives no list": ("types", changed(('return ["\\\\boxed{" + str(self.answer) + "}"]', "return str(self.answer)"))),
    "wins only where solution was called": (
        "witness",
        changed(
            ('return ["\\\\boxed{"', 'self.asked = True\n        return ["\\\\boxed{"'),
            ("right = action.strip()", "right = hasattr(self, 'asked') and action.strip()"),
        ),
    ),
    "loops": ("jail", changed(("right = action.strip()", "while True:\n            pass\n        right = action.strip()"))),
    "eats memory": ("jail", changed(("right = action.strip()", "hoard = bytearray(1 << 30)\n        right = action.strip()"))),
    "easy to guess": ("other-witness", changed(("self.answer = a + b", "self.answer = 1 + (a % 9 == 0)"))),
    "reads a file": ("calls", changed(("rng = random", "text = open('/etc/passwd').read()\n        rng = random"))),
    "reads the environment": ("imports", changed(("import random", "import os\nimport random"))),
    "reads the clock": ("imports", changed(("import random", "import time\nimport random"))),
    "keeps state in the class": (
        "shared-state",
        changed(
            ("class SumEnv:\n", "class SumEnv:\n    seen = []\n"),
            ("rng = random", "self.seen.append(seed)\n        rng = random"),
        ),
    ),
    "keeps state in the module": (
        "globals",
        changed(("class SumEnv", "SEEN = []\n\n\nclass SumEnv"), ("rng = random", "SEEN.append(seed)\n        rng = random")),
    ),
    "lacks solution": ("contract", changed(("def solution", "def resolve"))),
    "walks to the frame": ("dunder", changed(("rng = random", "().__class__\n        rng = random"))),
    "prints": ("printing", changed(("rng = random", "print(seed)\n        rng = random"))),
    "is too long": ("size", SUM + "#" * 33000),
}


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    opened = open_sandbox("zygote", slots=2)
    yield opened
    opened.close()


def verdict_of(sandbox: Sandbox, source: str, hint: str = HINT) -> Verdict:
    """A verdict, tried again where the machine interrupts, as callers do."""
    for _ in range(4):
        try:
            return judge(sandbox, source, hint)
        except GateInterrupted as interrupted:
            last = interrupted
    raise last


@pytest.mark.parametrize("name", GOOD)
def test_good_environment_is_admitted_with_proof(sandbox: Sandbox, name: str) -> None:
    verdict = verdict_of(sandbox, (ENVIRONMENTS / f"{name}.py").read_text())
    assert verdict.admitted, (verdict.rule, verdict.evidence)
    assert verdict.rule == ""
    assert all(proof.passed for proof in verdict.proof)
    assert 0 < verdict.witness_min_return <= verdict.witness_mean_return <= 1
    assert verdict.reward_min <= 0
    assert "def solution" not in verdict.play_source
    assert len(verdict.signature) == 64
    assert verdict.cpu_s > 0


@pytest.mark.parametrize("name", BAD)
def test_planted_fault_is_refused_by_its_rule(sandbox: Sandbox, name: str) -> None:
    rule, source = BAD[name]
    verdict = verdict_of(sandbox, source)
    assert (verdict.rule, verdict.admitted) == (rule, False), verdict.evidence
    assert verdict.evidence
    assert not verdict.proof[-1].passed


def test_verdict_of_equal_sources_is_equal(sandbox: Sandbox) -> None:
    first, second = (verdict_of(sandbox, SUM) for _ in range(2))
    assert first.proof == second.proof
    assert (first.source_digest, first.play_digest, first.signature) == (
        second.source_digest,
        second.play_digest,
        second.signature,
    )


CONSTANT = changed(("self.answer = a + b", "self.answer = 4711 if a > 12 else 4712"))


@pytest.mark.parametrize("form", ["4711", "1174", "four seven one one", "4 7 1 1", "NDcxMQ==", "0x1267"])
def test_hint_that_holds_the_answer_is_refused_in_every_form(sandbox: Sandbox, form: str) -> None:
    assert judge(sandbox, CONSTANT, f"Try {form} here.", rules=frozenset({"hint"})).rule == "hint"


def test_hint_that_names_what_the_observation_offers_is_admitted(sandbox: Sandbox) -> None:
    source = (ENVIRONMENTS / "two_way_choice.py").read_text()
    assert verdict_of(sandbox, source, "Say even when an even number of them is odd, else odd.").admitted


def test_command_tells_by_exit_code_and_escapes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(SUM)
    bad.write_text(SUM.replace("right = action.strip()", "raise ValueError('\\x1b[31m<b>')\n        right = action.strip()"))
    out = io.StringIO()
    assert gate_file(good, HINT, True, out=out) == ADMITTED
    assert json.loads(out.getvalue())["admitted"] is True
    out = io.StringIO()
    assert gate_file(bad, HINT, False, out=out) == REFUSED
    assert "rule runs" in out.getvalue()
    assert "\x1b" not in out.getvalue()
    assert gate_file(tmp_path / "missing.py", HINT, False) == COULD_NOT_RUN
    assert "missing.py" in capsys.readouterr().err
