"""The gate in the real jail: good environments of many kinds are admitted, each planted fault is refused for its own reason."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.common import Record, Reference
from schemas.design import EnvProposed, EnvValidated
from streams.closing import Signatures, close_slots
from tests.planted import ENVIRONMENTS, HINT, PLAIN, SUM, changed
from tests.planted_cunning import BREAKS, HINTS, REACH, SHORTCUTS, STATE, TWO_ANSWERS, TWO_WORDS, WORD_HINTS, Fault
from tests.streamworld import small_recipe
from workers.gate import GateInterrupted, GateRule, Verdict, judge
from workers.gate.advice import ADVICE
from workers.gate.command import ADMITTED, COULD_NOT_RUN, REFUSED, gate_file
from workers.sandbox import Sandbox, open_sandbox
from workers.validate import ValidateWork

pytestmark = pytest.mark.integration

GOOD = sorted(path.stem for path in ENVIRONMENTS.glob("*.py"))
BAD: dict[str, Fault] = {
    **{name: (rule, source, HINT) for name, (rule, source) in PLAIN.items()},
    **SHORTCUTS,
    **STATE,
    **REACH,
    **BREAKS,
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


def test_every_rule_has_a_planted_fault_and_an_advice() -> None:
    assert {rule for rule, _, _ in BAD.values()} == {rule.value for rule in GateRule} - {"form"}  # test_gate_examples.py
    assert set(ADVICE) == set(GateRule)
    assert len({source + hint for _, source, hint in BAD.values()}) == len(BAD) >= 100
    assert len(GOOD) >= 20


@pytest.mark.parametrize("note", ["# another comment\n"])
@pytest.mark.parametrize("name", GOOD)
def test_good_environment_is_admitted_whatever_seeds_its_text_gives(sandbox: Sandbox, name: str, note: str) -> None:
    verdict = verdict_of(sandbox, note + (ENVIRONMENTS / f"{name}.py").read_text())
    assert verdict.admitted, (verdict.rule, verdict.evidence)


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
    rule, source, hint = BAD[name]
    verdict = verdict_of(sandbox, source, hint)
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


@pytest.mark.parametrize(
    ("source", "hint"),
    [*((TWO_ANSWERS, hint) for hint in HINTS.values()), *((TWO_WORDS, hint) for hint in WORD_HINTS.values())],
    ids=[*HINTS, *WORD_HINTS],
)
def test_hint_that_tells_the_answers_in_disguise_is_refused(sandbox: Sandbox, source: str, hint: str) -> None:
    only = frozenset({"hint"})
    assert judge(sandbox, source, hint, rules=only).rule == "hint"
    assert judge(sandbox, source, HINT, rules=only).admitted


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
    assert f"what to do: {ADVICE[GateRule.RUNS]}" in out.getvalue()
    assert "\x1b" not in out.getvalue()
    assert gate_file(tmp_path / "missing.py", HINT, False) == COULD_NOT_RUN
    assert "missing.py" in capsys.readouterr().err


class NoRecords:
    """A fetcher that is not asked."""

    def fetch(self, references: list[Reference]) -> dict[str, Record]:
        raise AssertionError(references)


def test_near_duplicate_with_renamed_variables_is_dropped_when_its_slots_close(sandbox: Sandbox) -> None:
    renamed = (
        SUM.replace("SumEnv", "TotalEnv").replace("answer", "goal").replace("rng", "dice").replace("over", "done")
        .replace("Add {a} and {b}", "What are {a} plus {b}").replace("90", "80").replace("a, b =", "p, q =")
        .replace("a + b", "p + q").replace("{a}", "{p}").replace("{b}", "{q}")
    )  # fmt: skip
    sources = [SUM, renamed, (ENVIRONMENTS / "higher_lower.py").read_text()]
    work = ValidateWork(sandbox, sandbox, NoRecords(), max_turns=25, tries=4)  # type: ignore[arg-type]  # audits nothing
    at = Reference(topic="spade-env-proposed", partition=0, offset=0, id="p")
    signatures, verdicts = Signatures(), {}
    for slot, source in enumerate(sources):
        proposed = EnvProposed(
            run_id="run",
            event_id=f"env-{slot}",
            env_id=f"env-{slot}",
            unit_id="u",
            generation=0,
            slot=slot,
            design_attempt=0,
            skill="logic",
            document_id="d",
            group="g",
            source=source,
            hint=HINT,
        )
        ((_, verdict),) = work.run(proposed, at)
        assert isinstance(verdict, EnvValidated)
        signatures.note(verdict)
        verdicts[slot, 0] = verdict
    recipe = small_recipe(design__duplicate="drop")
    closed = close_slots("run", recipe, 0, 0, verdicts, signatures, [])
    assert [member.env_id for member in closed.members] == ["env-0", "env-2"]
    (duplicate,) = closed.duplicates
    assert (duplicate.env_id, duplicate.slot) == ("env-1", 1)
    assert duplicate.reason.startswith("duplicate: similarity ")
    assert closed.rejected_by_rule == {"duplicate": 1}


def test_command_shows_what_a_design_wrote_as_text(tmp_path: Path) -> None:
    acting = "<script>\\x1b]0;owned\\x07\\x1b[31m[bold red]x[/]\\u202e<eos><act>\\r\\x9b2J"
    line = "right = action.strip()"
    texts = {
        "exception": SUM.replace(line, f"raise ValueError('{acting}')\n        {line}"),
        "class of the exception": SUM.replace(line, f"raise type('{acting}', (Exception,), {{}})\n        {line}"),
        "observation": SUM.replace("Add {a}", acting + "{random.random()}"),
        "action": SUM.replace("str(self.answer)", f"'{acting}'"),
    }
    for name, source in texts.items():
        file = tmp_path / f"{name} [bold red]\u202e.py"
        file.write_text(source)
        for as_json in (False, True):
            out = io.StringIO()
            assert gate_file(file, HINT, as_json, out=out) == REFUSED
            shown = out.getvalue()
            assert all(sign == "\n" or sign.isprintable() for sign in shown), name
            assert "owned" in shown, name
