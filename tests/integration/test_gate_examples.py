"""The shipped examples pass the gate in the real jail, in their setting's form and with their hints; faults of form don't."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra.actions import ActionForm
from infra.examples import EXAMPLES, Example
from tests.planted import FORMS, HINT
from workers.gate import GateInterrupted, Verdict, judge
from workers.sandbox import Sandbox, open_sandbox

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    opened = open_sandbox("zygote", slots=2)
    yield opened
    opened.close()


def verdict_of(sandbox: Sandbox, source: str, hint: str, form: ActionForm) -> Verdict:
    """A verdict, tried again where the machine interrupts, as callers do."""
    for _ in range(4):
        try:
            return judge(sandbox, source, hint, form=form)
        except GateInterrupted as interrupted:
            last = interrupted
    raise last


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_example_is_admitted_in_its_form_and_with_its_hint(sandbox: Sandbox, example: Example) -> None:
    verdict = verdict_of(sandbox, example.source, example.hint, example.setting)
    assert verdict.admitted, (verdict.rule, verdict.evidence)
    assert (verdict.witness_min_return, verdict.witness_mean_return) == (1.0, 1.0)
    assert {proof.rule for proof in verdict.proof} >= {"form", "witness", "hint", "replay"}


@pytest.mark.parametrize("name", FORMS)
def test_fault_of_form_is_refused_with_what_was_seen(sandbox: Sandbox, name: str) -> None:
    form, source, evidence = FORMS[name]
    verdict = verdict_of(sandbox, source, HINT, form)
    assert (verdict.rule, verdict.admitted) == ("form", False), (verdict.rule, verdict.evidence)
    assert evidence in verdict.evidence


def test_the_plain_form_asks_for_no_form(sandbox: Sandbox) -> None:
    verdict = verdict_of(sandbox, FORMS["takes a bare word in games"][1], HINT, "plain")
    assert verdict.admitted, (verdict.rule, verdict.evidence)
