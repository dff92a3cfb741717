"""The gate's dynamic rules: what plays of the design show. In: a Table and the witness's actions. Out: Refused, or numbers.

Each function is one rule, named after it. Bounds come from sandbox.md; where an average over 16 seeds decides, plays stop as
soon as no rest could change the outcome, and go on to MANY seeds while the average is too near to its bound to tell (a fair coin
would fail 16 seeds in one of five judgements).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from infra.actions import ActionForm
from workers.gate.plays import Play, Policy, Table, constant, derive, refusal, scripted
from workers.gate.rules import GateRule, Refused
from workers.sandbox.base import SessionEnd

SEEDS: Final = 16
DECISIVE: Final = 8
WINS_NEEDED: Final = 7
REPLAYED_OTHERS: Final = 3
VARIED: Final = 12
BOUND: Final = 0.6
MANY: Final = 160
NEAR: Final = 0.35
WELL_BELOW: Final = 0.75
# from so many seeds on, this far above the bound is chance in one of ten thousand fair coins
PLAIN_BY: Final = 96
NEARER: Final = 0.1
BEYOND_END: Final = 3
OTHER_HASH_SEED: Final = 1
ODD_ACTIONS: Final = (
    "",
    "a" * 5000,
    "\x00\x1b[31m\r\n\t\x7f\u202e",
    "\u00b2\u00b3 \u0663\u0967 \u2460",
    "9" * 400,
    "-1e400",
    '{"name": "x", "arguments": {"a": [1, null, true]}}',
    "[[[[[]]]]]",
    "nan",
    "\\boxed{}",
    "<answer></answer>",
    "__import__('os').system('true')",
    "<tool_call>{}</tool_call>",
)

Numbers = dict[str, float]


@dataclass
class Judged:
    """What the rules share: the table, seeds, the witness's actions by seed, and its plays. `beyond_end`: on how many seeds the
    witness plays one step more. `form`: of the actions, by setting."""

    table: Table
    source: str
    hint: str
    seeds: list[int]
    beyond_end: int = BEYOND_END
    form: ActionForm = "plain"
    witness: dict[int, list[str]] = field(default_factory=dict)
    witness_plays: list[Play] = field(default_factory=list)
    other_plays: list[Play] = field(default_factory=list)

    @property
    def wins(self) -> list[Play]:
        """The witness's plays that won."""
        return [play for play in self.witness_plays if play.value > 0]

    @property
    def mean(self) -> float:
        """The witness's mean return over its seeds."""
        return sum(play.value for play in self.witness_plays) / len(self.witness_plays) if self.witness_plays else 0.0

    @property
    def win_value(self) -> float:
        """The smallest return that counts as a win."""
        return min((play.value for play in self.wins), default=1.0)

    def won(self, play: Play) -> bool:
        """Whether a play earned what the witness earns."""
        return play.value > 0 and play.value >= self.win_value


def ask_witness(judged: Judged) -> None:
    """Has the witness jail hand out its actions."""
    try:
        actions = judged.table.sandbox.witness(judged.source, judged.seeds)
    except SessionEnd as end:
        raise refusal(end, "solution", GateRule.WITNESS) from end
    judged.witness = dict(zip(judged.seeds, actions, strict=True))


def play_witness(judged: Judged) -> Numbers:
    """Plays the witness's actions on DECISIVE seeds, and another seed's witness on some, so that replay sees losing paths too.
    The first few of both go on with the right action after the end (after-end)."""
    beyond: list[str | None] = [(judged.witness[seed] or [""])[-1] for seed in judged.seeds[: judged.beyond_end]]
    beyond += [None] * DECISIVE
    judged.witness_plays = [
        judged.table.play(seed, scripted(judged.witness[seed]), beyond_end=beyond[index])
        for index, seed in enumerate(judged.seeds[:DECISIVE])
    ]
    judged.other_plays = [
        judged.table.play(seed, _other_witness(judged, index), beyond_end=beyond[index])
        for index, seed in enumerate(judged.seeds[:REPLAYED_OTHERS])
    ]
    return {"plays": len(judged.witness_plays) + len(judged.other_plays)}


def check_ends(judged: Judged) -> Numbers:
    """An episode of actions that do nothing ends within the cap, and so does one of a wrong action that means something."""
    tried = [(judged.seeds[0], "no such action")]
    tried += [(play.seed, play.actions[0]) for play in judged.other_plays if play.actions and not play.ended][:1]
    steps = 0
    for seed, action in tried:
        play = judged.table.play(seed, constant(action), rule=GateRule.SURVIVES)
        steps = max(steps, len(play.steps))
        if not play.ended:
            told = f"seed {seed}: not over after {judged.table.cap} steps of {action[:40]!r}"
            raise Refused(GateRule.ENDS, told, {"steps": judged.table.cap})
    return {"steps": steps}


def check_replay(judged: Judged) -> Numbers:
    """Recorded actions repeat in a second jail (other hash seed, other order of seeds)."""
    recorded = [*judged.witness_plays[REPLAYED_OTHERS:], *judged.other_plays]
    for play in random.Random(derive(judged.source, "order", 0)).sample(recorded, len(recorded)):
        again = judged.table.play(play.seed, scripted(play.actions), hash_seed=OTHER_HASH_SEED, rule=GateRule.REPLAY)
        if again.transcript() != play.transcript():
            raise Refused(GateRule.REPLAY, f"seed {play.seed} in a second jail: {_difference(play, again)}")
    judged.table.repeats = True
    return {"plays": len(recorded)}


def check_reset(judged: Judged) -> Numbers:
    """Recorded actions repeat on one object that is reset in between, after a win, after a loss, and after no step at all."""
    won, lost = judged.witness_plays[:2], judged.other_plays[:2]
    recorded = [won[0], lost[0], won[0], lost[1], won[1]]
    for play, again in zip(recorded, judged.table.repeat(recorded, GateRule.RESET), strict=True):
        if again.transcript() != play.transcript():
            told = f"seed {play.seed} on an object that was reset again: {_difference(play, again)}"
            raise Refused(GateRule.RESET, told)
    return {"plays": len(recorded)}


def check_witness(judged: Judged) -> Numbers:
    """The witness wins on at least WINS_NEEDED of DECISIVE seeds."""
    for seed, actions in judged.witness.items():
        hidden = next((action for action in actions if not all(sign.isprintable() or sign in "\n\t" for sign in action)), None)
        if hidden is not None:
            raise Refused(GateRule.WITNESS, f"seed {seed}: an action holds signs that nobody sees: {hidden[:80]!r}")
    wins = sum(play.value > 0 for play in judged.witness_plays[:DECISIVE])
    numbers = {"wins": wins, "of": DECISIVE, "mean": judged.mean}
    if wins < WINS_NEEDED:
        lost = next(play for play in judged.witness_plays if play.value <= 0)
        told = f"wins {wins} of {DECISIVE} seeds, {WINS_NEEDED} needed; seed {lost.seed}: actions {list(lost.actions)[:3]}"
        raise Refused(GateRule.WITNESS, f"{told}, terminated {lost.terminated}, return {lost.value:g}", numbers)
    return numbers


def check_seed(judged: Judged) -> Numbers:
    """The same actions over VARIED seeds give at least two transcripts."""
    seen = {play.transcript() for play in judged.other_plays} if len({play.first for play in judged.witness_plays}) > 1 else set()
    actions = judged.witness_plays[0].actions
    for seed in judged.seeds[:VARIED] if len(seen) < 2 else []:
        seen.add(judged.table.play(seed, scripted(actions)).transcript())
        if len(seen) > 1:
            break
    if len(seen) < 2:
        raise Refused(GateRule.SEED, f"{VARIED} seeds give one transcript", {"distinct": len(seen)})
    return {"distinct": len(seen)}


def check_silent(judged: Judged) -> Numbers:
    """Empty actions earn little."""
    return check_mean(judged, GateRule.SILENT, lambda _index, _seed: constant(""), most=SEEDS)


def check_other_witness(judged: Judged) -> Numbers:
    """Another seed's witness earns little."""
    return check_mean(judged, GateRule.OTHER_WITNESS, lambda index, _seed: _other_witness(judged, index), judged.other_plays)


def check_truncated_witness(judged: Judged) -> Numbers:
    """The witness without its last action earns little; one action less than one is no play at all."""
    if all(len(actions) <= 1 for actions in judged.witness.values()):
        return {"mean": 0.0, "plays": 0.0}
    return check_mean(judged, GateRule.TRUNCATED_WITNESS, lambda _index, seed: scripted(judged.witness[seed][:-1]), most=SEEDS)


def check_random(judged: Judged) -> Numbers:
    """Actions drawn from other seeds' witnesses earn little; salted, so that they share no numbers with the environment.

    Where each witness is one action, the first draw is that of the rule before, which draws alike: plays of one turn are known.
    """
    single = all(len(actions) == 1 for actions in judged.witness.values())

    def policy(index: int, seed: int) -> Policy:
        others = [action for other, actions in judged.witness.items() if other != seed for action in actions]
        draws = random.Random(derive(judged.source, "random", index, 63))
        drawn = _other_script(judged, index) if single and index < SEEDS else []
        return lambda _first, _observation, turn: drawn[turn] if turn < len(drawn) else draws.choice(others)

    return check_mean(judged, GateRule.RANDOM, policy)


def check_survives(judged: Judged) -> Numbers:
    """Odd actions raise nothing and win nothing."""
    plays = judged.table.play_each(ODD_ACTIONS, judged.seeds, GateRule.SURVIVES)
    for play in plays:
        if judged.won(play):
            raise Refused(GateRule.SURVIVES, f"seed {play.seed}: wins by {play.actions[-1][:40]!r}")
    return {"actions": len(ODD_ACTIONS), "plays": len(plays)}


def check_mean(
    judged: Judged,
    rule: GateRule,
    policy: Callable[[int, int], Policy],
    known: Sequence[Play] = (),
    most: int = MANY,
    what: str = "",
    sure: int = SEEDS,
) -> Numbers:
    """The mean pay of a policy against BOUND times the witness's mean, over SEEDS; up to `most` while it is near the bound.

    A loss counts as 0 whatever it costs: a penalty for wrong answers makes no shortcut of one that wins too often.
    `known`: the first plays, where they are there already. `what`: what the evidence calls the policy. `sure`: before
    so many seeds only an average well below the bound is let pass.
    """
    allowed = BOUND * judged.mean
    total = 0.0
    index = 0
    while True:
        seed = judged.seeds[index] if index < SEEDS else derive(judged.source, "more", index)
        play = known[index] if index < len(known) else judged.table.play(seed, policy(index, seed))
        index += 1
        total += max(0.0, play.value)
        near = NEAR if index < PLAIN_BY else NEARER
        bar = allowed if index >= sure or sure == SEEDS else WELL_BELOW * allowed
        if index <= SEEDS and total + (SEEDS - index) <= bar * SEEDS:
            break
        if index >= SEEDS and (total <= bar * index or total > (allowed + near) * index or index >= most):
            break
    mean = total / index
    numbers = {"mean": mean, "allowed": allowed, "plays": index}
    if total > allowed * index and index >= SEEDS:
        raise Refused(rule, f"{what or rule} earns {mean:.3f} on average over {index} seeds, allowed is {allowed:.3f}", numbers)
    return numbers


def _other_witness(judged: Judged, index: int) -> Policy:
    return scripted(_other_script(judged, index))


def _other_script(judged: Judged, index: int) -> list[str]:
    """The witness's actions of another seed than that of this index."""
    scripts = list(judged.witness.values())
    shift = 1 + derive(judged.source, "other", index, 8) % (len(scripts) - 1)
    return scripts[(index + shift) % len(scripts)]


def _difference(recorded: Play, again: Play) -> str:
    if recorded.first != again.first:
        return f"first observation {again.first[:80]!r}, recorded {recorded.first[:80]!r}"
    for turn, (old, new) in enumerate(zip(recorded.steps, again.steps, strict=False)):
        if old != new:
            return f"step {turn + 1} {new.observation[:80]!r} {new.reward:g}, recorded {old.observation[:80]!r} {old.reward:g}"
    return f"{len(again.steps)} steps, recorded {len(recorded.steps)}"
