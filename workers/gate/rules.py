"""The gate's rules by name, and what a verdict is made of.

Out: GateRule (every rule once, in the order in which it is looked at), RuleProof (what a rule saw), Verdict, and the two ways
out of a rule: Refused (the design's doing) and GateInterrupted (the machine's).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from infra.plaintext import escape_line


class GateRule(StrEnum):
    """Each rule's name, as records, reports and `spade gate` show it. The comment says what passes."""

    SIZE = "size"  # at most 32 KiB of UTF-8
    CONTRACT = "contract"  # parses; one class named ...Env with __init__, reset, step, solution of the given parameters
    IMPORTS = "imports"  # allowed modules only, no private or foreign names out of them
    CALLS = "calls"  # no eval, exec, compile, open, input, id, hash, globals, getattr by a built name
    DUNDER = "dunder"  # no walks over __class__, frames, tracebacks; only ordinary special methods
    GLOBALS = "globals"  # no global statement; module-level names are never changed
    SHARED_STATE = "shared-state"  # class-level containers are never changed; no mutable default arguments
    MODULE_WORK = "module-work"  # module level holds imports, definitions and constants only
    ASYNC = "async"  # nothing asynchronous
    PRINTING = "printing"  # no print
    JAIL = "jail"  # no memory, CPU, system call or protocol trouble
    RUNS = "runs"  # no exception in a play of the witness
    TYPES = "types"  # built-in types, finite rewards in [-1, 1], no surrogates
    INFO = "info"  # info holds nothing
    ENDS = "ends"  # terminated or truncated within max_turns (at most 64) steps
    AFTER_END = "after-end"  # pays nothing after the end, won or lost
    REPLAY = "replay"  # same seeds and actions give the same, in another jail, order and hash seed
    RESET = "reset"  # an object that is reset again begins anew, whatever was played on it before
    WITNESS = "witness"  # solution's actions are visible text and win (end terminated, pay > 0) on at least 7 of 8 seeds
    FORM = "form"  # the witness's actions have the setting's form; tools are described, a malformed call is answered
    SEED = "seed"  # the same actions over 12 seeds give at least 2 different transcripts
    SILENT = "silent"  # empty actions earn at most .6 of the witness's mean
    OTHER_WITNESS = "other-witness"  # another seed's witness earns at most .6 of the witness's mean
    TRUNCATED_WITNESS = "truncated-witness"  # the witness without its last action earns at most .6 of the witness's mean
    RANDOM = "random"  # actions drawn from other seeds' witnesses earn at most .6 of the witness's mean
    CONSTANT = "constant"  # texts of source and hint, sentences and lists of answers earn at most .6 of the witness's mean
    SURVIVES = "survives"  # empty, long, odd, huge and structured actions: no exception, no win
    COPIER = "copier"  # no fixed way of copying from an observation wins on 6 of 8 seeds; repeating it whole earns at most .6
    HINT = "hint"  # the hint holds no action of the witness, also spelled, reversed or encoded, and no word that an action must
    # hold and no observation tells


STATIC_RULES: Final = frozenset(list(GateRule)[: list(GateRule).index(GateRule.JAIL)])
ALL_RULES: Final = frozenset(rule.value for rule in GateRule)


@dataclass(frozen=True)
class RuleProof:
    """What one rule saw. `numbers` are the measured values by name."""

    rule: str
    passed: bool
    evidence: str = ""
    numbers: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Verdict:
    """The gate's answer. `rule` is the first that failed, "" where admitted; returns are 0 where no witness was played.

    `witness_min_return`: smallest return over the seeds that the witness won. `reward_min`: lowest reward seen (at most 0).
    """

    admitted: bool
    rule: str
    evidence: str
    proof: tuple[RuleProof, ...]
    play_source: str
    source_digest: str
    play_digest: str
    signature: tuple[int, ...]
    witness_min_return: float
    witness_mean_return: float
    reward_min: float
    cpu_s: float
    wall_s: float


class Refused(Exception):  # noqa: N818 - a verdict, not an error
    """A rule does not hold. `evidence` is escaped here."""

    def __init__(self, rule: GateRule, evidence: str, numbers: Mapping[str, float] | None = None) -> None:
        super().__init__(f"{rule}: {evidence}")
        self.rule = rule
        self.evidence = escape_line(evidence, 400)
        self.numbers = dict(numbers or {})


class GateInterrupted(Exception):  # noqa: N818 - says what happened, callers try again
    """The machine, not the design, ended a session: no verdict. Judge again."""
