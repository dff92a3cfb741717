"""The gate: what a design must prove before it enters the pool. `judge` is the way in; the rules stand in rules.py.

Static rules read the syntax tree (static.py), dynamic rules read plays (dynamic.py). Cheap rules come first and the first
failure ends the judgement. Every check but the witness's own jail runs the play text, in jails set up as every play is.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Final

from infra.actions import ActionForm
from infra.sourcetext import signature
from workers.gate import dynamic, shortcuts, static
from workers.gate import form as forms
from workers.gate.dynamic import Judged, Numbers
from workers.gate.plays import Table, derive
from workers.gate.rules import ALL_RULES, STATIC_RULES, GateInterrupted, GateRule, Refused, RuleProof, Verdict
from workers.sandbox.base import Sandbox, SessionEnd, is_infrastructure
from workers.sandbox.processor import one_processor

__all__ = ["ALLOWED_IMPORTS", "ALL_RULES", "JAILS_OF_A_JUDGEMENT", "GateInterrupted", "GateRule", "RuleProof", "Verdict", "judge"]

ALLOWED_IMPORTS: Final = static.ALLOWED_IMPORTS
# By hash seed: the witness's own and the plays', and the one that replays. Kept ready, their start costs no time.
JAILS_OF_A_JUDGEMENT: Final = {0: 2, dynamic.OTHER_HASH_SEED: 1}
# In the order of judgement. Replay stands before the witness's verdict: a design that does not repeat loses its witness
# too, and is to hear the cause. Rules without a function here (jail, runs, types, info, after-end) are looked at in every play.
STAGES: Final[tuple[tuple[GateRule, Callable[[Judged], Numbers]], ...]] = (
    (GateRule.RUNS, dynamic.play_witness),
    (GateRule.REPLAY, dynamic.check_replay),
    (GateRule.RESET, dynamic.check_reset),
    (GateRule.ENDS, dynamic.check_ends),
    (GateRule.SEED, dynamic.check_seed),
    (GateRule.WITNESS, dynamic.check_witness),
    (GateRule.FORM, forms.check_form),
    (GateRule.SILENT, dynamic.check_silent),
    (GateRule.HINT, shortcuts.check_hint),
    (GateRule.COPIER, shortcuts.check_copiers),
    (GateRule.TRUNCATED_WITNESS, dynamic.check_truncated_witness),
    (GateRule.OTHER_WITNESS, dynamic.check_other_witness),
    (GateRule.RANDOM, dynamic.check_random),
    (GateRule.CONSTANT, shortcuts.check_constants),
    (GateRule.SURVIVES, dynamic.check_survives),
)
ALWAYS: Final = frozenset({GateRule.RUNS})


def judge(
    sandbox: Sandbox,
    source: str,
    hint: str,
    *,
    max_turns: int = 25,
    allowed_imports: frozenset[str] = ALLOWED_IMPORTS,
    rules: frozenset[str] | None = None,
    form: ActionForm = "plain",
) -> Verdict:
    """Judges one design. `form`: of the actions that plays will bring, by setting. `rules`: names of the staged
    rules to look at (default all); static rules always hold.

    Blocks for some tenths of a second, and keeps the calling thread on one processor meanwhile. Raises GateInterrupted where the
    machine ended a session: judge again, it is no verdict. Equal sources and hints get equal verdicts: seeds and draws come from
    the source by hash.
    """
    began_s, cpu_s = time.monotonic(), sandbox.cpu_s() + time.process_time()
    proof: list[RuleProof] = []
    judged: Judged | None = None
    play_source, rule, evidence = "", "", ""
    try:
        with one_processor():
            static.check_static(source, allowed_imports)
            proof += [RuleProof(passed.value, True) for passed in GateRule if passed in STATIC_RULES]
            play_source = static.cut_solution(source)
            seeds = [derive(source, "seed", index) for index in range(dynamic.SEEDS)]
            judged = Judged(Table(sandbox, play_source, max_turns), source, hint, seeds, form=form)
            if rules is not None and GateRule.AFTER_END.value not in rules:
                judged.beyond_end = 0
            dynamic.ask_witness(judged)
            for stage, check in STAGES:
                if stage in ALWAYS or rules is None or stage.value in rules:
                    proof.append(RuleProof(stage.value, True, "", check(judged)))
    except Refused as refused:
        rule, evidence = refused.rule.value, refused.evidence
        proof.append(RuleProof(rule, False, evidence, refused.numbers))
    except SessionEnd as end:
        if not is_infrastructure(end.reason):
            raise
        raise GateInterrupted(str(end)) from end
    finally:
        if play_source:
            sandbox.forget(play_source)
    return Verdict(
        admitted=not rule,
        rule=rule,
        evidence=evidence,
        proof=tuple(proof),
        play_source=play_source,
        source_digest=_digest(source),
        play_digest=_digest(play_source),
        signature=signature(source),
        witness_min_return=judged.win_value if judged and judged.wins else 0.0,
        witness_mean_return=judged.mean if judged else 0.0,
        reward_min=judged.table.reward_min if judged else 0.0,
        cpu_s=sandbox.cpu_s() + time.process_time() - cpu_s,
        wall_s=time.monotonic() - began_s,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
