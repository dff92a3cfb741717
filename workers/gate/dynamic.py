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

from workers.gate import leaks
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
COPIES_NEEDED: Final = 6
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
    "__import__('os').system('true')",
    "<tool_call>{}</tool_call>",
)

Numbers = dict[str, float]


@dataclass
class Judged:
    """What the rules share: the table, seeds, the witness's actions by seed, and its plays. `beyond_end`: on how many seeds the
    witness plays one step more."""

    table: Table
    source: str
    hint: str
    seeds: list[int]
    beyond_end: int = BEYOND_END
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
    """Plays the witness's actions on DECISIVE seeds (on the first few one step beyond the end: after-end), and another seed's
    witness on some, so that replay sees losing paths too."""
    judged.witness_plays = [
        judged.table.play(seed, scripted(judged.witness[seed]), beyond_end=index < judged.beyond_end)
        for index, seed in enumerate(judged.seeds[:DECISIVE])
    ]
    judged.other_plays = [
        judged.table.play(seed, _other_witness(judged, index)) for index, seed in enumerate(judged.seeds[:REPLAYED_OTHERS])
    ]
    return {"plays": len(judged.witness_plays) + len(judged.other_plays)}


def check_ends(judged: Judged) -> Numbers:
    """An episode of actions that do nothing ends within the cap."""
    seed = judged.seeds[0]
    play = judged.table.play(seed, constant("no such action"), rule=GateRule.SURVIVES)
    if not play.ended:
        raise Refused(GateRule.ENDS, f"seed {seed}: not over after {judged.table.cap} steps", {"steps": judged.table.cap})
    return {"steps": len(play.steps)}


def check_replay(judged: Judged) -> Numbers:
    """Recorded actions repeat in a second jail (other hash seed, other order of seeds), and some again in the first."""
    recorded = [*judged.witness_plays[REPLAYED_OTHERS:], *judged.other_plays]
    order = random.Random(derive(judged.source, "order", 0)).sample(recorded, len(recorded))
    for where, plays, hash_seed in (("in a second jail", order, OTHER_HASH_SEED), ("again in the first jail", order[:3], 0)):
        for play in plays:
            again = judged.table.play(play.seed, scripted(play.actions), hash_seed=hash_seed, rule=GateRule.REPLAY)
            if again.transcript() != play.transcript():
                raise Refused(GateRule.REPLAY, f"seed {play.seed} {where}: {_difference(play, again)}")
    return {"plays": len(recorded)}


def check_witness(judged: Judged) -> Numbers:
    """The witness wins on at least WINS_NEEDED of DECISIVE seeds."""
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
    return _check_mean(judged, GateRule.SILENT, lambda _index, _seed: constant(""), most=SEEDS)


def check_other_witness(judged: Judged) -> Numbers:
    """Another seed's witness earns little."""
    return _check_mean(judged, GateRule.OTHER_WITNESS, lambda index, _seed: _other_witness(judged, index), judged.other_plays)


def check_truncated_witness(judged: Judged) -> Numbers:
    """The witness without its last action earns little; one action less than one is no play at all."""
    if all(len(actions) <= 1 for actions in judged.witness.values()):
        return {"mean": 0.0, "plays": 0.0}
    return _check_mean(judged, GateRule.TRUNCATED_WITNESS, lambda _index, seed: scripted(judged.witness[seed][:-1]), most=SEEDS)


def check_random(judged: Judged) -> Numbers:
    """Actions drawn from other seeds' witnesses earn little; salted, so that they share no numbers with the environment."""

    def policy(index: int, seed: int) -> Policy:
        others = [action for other, actions in judged.witness.items() if other != seed for action in actions]
        draws = random.Random(derive(judged.source, "random", index, 63))
        return lambda _first, _observation, _turn: draws.choice(others)

    return _check_mean(judged, GateRule.RANDOM, policy)


def check_survives(judged: Judged) -> Numbers:
    """Odd actions raise nothing and win nothing."""
    pending = list(ODD_ACTIONS)
    plays = 0
    while pending:
        seed = judged.seeds[plays % len(judged.seeds)]
        play = judged.table.play(seed, scripted(pending), rule=GateRule.SURVIVES)
        plays += 1
        if not play.actions:
            raise Refused(GateRule.ENDS, "an episode without room for one action")
        if judged.won(play):
            raise Refused(GateRule.SURVIVES, f"seed {seed}: wins by {play.actions[-1][:40]!r}")
        pending = pending[len(play.actions) :]
    return {"actions": len(ODD_ACTIONS), "plays": plays}


def check_copiers(judged: Judged) -> Numbers:
    """No copier gives the witness's answer on COPIES_NEEDED of DECISIVE seeds and wins there, where random doesn't."""
    plays = judged.witness_plays[:DECISIVE]
    around = leaks.wrapper([action for actions in judged.witness.values() for action in actions])
    hits: dict[str, list[tuple[Play, str]]] = {}
    for play in plays:
        answers = {leaks.unwrap(action, around) for action in play.actions}
        for name, text in leaks.copies(play.first).items():
            if len(answers) == 1 and leaks.fold(text) in answers:
                hits.setdefault(name, []).append((play, text))
    best = max((len(found) for found in hits.values()), default=0)
    for name, found in hits.items():
        if len(found) < COPIES_NEEDED:
            continue
        wins = 0
        for play, text in found:
            copied = judged.table.play(play.seed, constant(f"{around[0]}{text}{around[1]}"), rule=GateRule.SURVIVES)
            blind = _blind_answer(judged, play.seed)
            wins += judged.won(copied) and not judged.won(judged.table.play(play.seed, blind))
        if wins >= COPIES_NEEDED:
            raise Refused(GateRule.COPIER, f"{name} of the first observation wins {wins} of {DECISIVE} seeds", {"wins": wins})
    return {"best_match": best}


def check_hint(judged: Judged) -> Numbers:
    """No answer of the witness stands in the hint on COPIES_NEEDED of DECISIVE seeds, unless the observation offers it."""
    around = leaks.wrapper([action for actions in judged.witness.values() for action in actions])
    answers = {seed: [leaks.unwrap(action, around) for action in actions] for seed, actions in judged.witness.items()}
    decisive = judged.seeds[:DECISIVE]
    held = [seed for seed in decisive if any(leaks.hint_holds(judged.hint, answer) for answer in answers[seed])]
    numbers = {"seeds": float(len(held))}
    if len(held) >= COPIES_NEEDED:
        everything = [answer for found in answers.values() for answer in found]
        if not leaks.is_offered(everything, [play.first for play in judged.witness_plays]):
            shown = next(answer for answer in answers[held[0]] if leaks.hint_holds(judged.hint, answer))
            told = f"the hint holds the answer of {len(held)} of {DECISIVE} seeds, such as {shown!r}"
            raise Refused(GateRule.HINT, told, numbers)
    return numbers


def _check_mean(
    judged: Judged,
    rule: GateRule,
    policy: Callable[[int, int], Policy],
    known: Sequence[Play] = (),
    most: int = MANY,
) -> Numbers:
    """The mean return of a policy against BOUND times the witness's mean, over SEEDS; up to `most` while it is near the bound.

    `known`: the first plays, where they are there already.
    """
    allowed = BOUND * judged.mean
    total = 0.0
    index = 0
    while True:
        seed = judged.seeds[index] if index < SEEDS else derive(judged.source, "more", index)
        play = known[index] if index < len(known) else judged.table.play(seed, policy(index, seed))
        index += 1
        total += play.value
        if index <= SEEDS and total + (SEEDS - index) <= allowed * SEEDS:
            break
        if index >= SEEDS and (total <= allowed * index or total > (allowed + NEAR) * index or index >= most):
            break
    mean = total / index
    numbers = {"mean": mean, "allowed": allowed, "plays": index}
    if total > allowed * index and index >= SEEDS:
        raise Refused(rule, f"earns {mean:.3f} on average over {index} seeds, allowed is {allowed:.3f}", numbers)
    return numbers


def _other_witness(judged: Judged, index: int) -> Policy:
    """The script of another seed than that of this index."""
    scripts = list(judged.witness.values())
    shift = 1 + derive(judged.source, "other", index, 8) % (len(scripts) - 1)
    return scripted(scripts[(index + shift) % len(scripts)])


def _blind_answer(judged: Judged, seed: int) -> Policy:
    others: Sequence[str] = [action for other, actions in judged.witness.items() if other != seed for action in actions]
    return constant(random.Random(derive(judged.source, f"blind {seed}", 0, 63)).choice(others))


def _difference(recorded: Play, again: Play) -> str:
    if recorded.first != again.first:
        return f"first observation {again.first[:80]!r}, recorded {recorded.first[:80]!r}"
    for turn, (old, new) in enumerate(zip(recorded.steps, again.steps, strict=False)):
        if old != new:
            return f"step {turn + 1} {new.observation[:80]!r} {new.reward:g}, recorded {old.observation[:80]!r} {old.reward:g}"
    return f"{len(again.steps)} steps, recorded {len(recorded.steps)}"
