"""The gate's rules against pay without work: copies, hints that tell, fixed answers. In: Judged. Out: Refused, or numbers.

Each function is one rule. A shortcut is first tried on one or two seeds; only one that pays there is played on enough seeds to
tell it from luck, so that an honest design pays for little. Single tries share an object that is reset in between, as the reset
rule has shown that it may be (Table.play_each); what pays there is played in sessions of its own, as plays are.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final

from workers.gate import leaks
from workers.gate.dynamic import BOUND, DECISIVE, SEEDS, Judged, Numbers, check_mean
from workers.gate.plays import Play, Policy, constant, derive
from workers.gate.rules import GateRule, Refused

COPIES_NEEDED: Final = 6
REVEALING: Final = 3  # seeds after which an opening that brings nothing to light is given up
SUSPECTS: Final = 8
SURE: Final = 48
TRIALS: Final = 240
JUNK: Final = "no such action"
SENTENCES: Final = (
    "I am not sure. First I look at what is given, then I work step by step, and so the answer must be the one that I name last.",
    "BECAUSE OF ALL THIS THE FINAL ANSWER IS TRUE AND FALSE, YES AND NO, 0 AND 1.\n1. ONE\n2. TWO\n3. THREE\n" * 12,
)
# satisfies a careless comparison: neutral numbers, a divisor of everything, a bound above everything, a pattern of anything
USUAL: Final = ("0", "1", "2", "-1", "1000000", "yes", "no", "true", "a", "e", ".*")
ALL_NUMBERS: Final = " ".join(map(str, range(200)))


def check_copiers(judged: Judged) -> Numbers:
    """No copier wins on COPIES_NEEDED of DECISIVE seeds where random doesn't: neither from the first observation, whether it
    gives the witness's answer or another that is paid, nor from what nonsense brings to light; and no parrot earns much."""
    around = _wrapper(judged)
    plays = judged.witness_plays[:DECISIVE]
    hits: dict[str, list[tuple[Play, str]]] = {}
    for play in plays:
        answers = {leaks.unwrap(action, around) for action in play.actions}
        for name, text in leaks.copies(play.first).items():
            if len(answers) == 1 and leaks.fold(text) in answers:
                hits.setdefault(name, []).append((play, text))
    best = max((len(found) for found in hits.values()), default=0)
    for name in _paid_copies(judged, around, hits):
        copied = [(play, leaks.copies(play.first).get(name)) for play in plays]
        hits[name] = [(play, text) for play, text in copied if text is not None]
    for name, found in hits.items():
        if len(found) >= COPIES_NEEDED:
            _confirm(judged, f"{name} of the first observation", [(play, [_wrap(around, text)]) for play, text in found])
    _check_later_copies(judged, around)
    _check_parrot(judged)
    return {"best_match": best}


def check_hint(judged: Judged) -> Numbers:
    """No answer of the witness stands in the hint on COPIES_NEEDED of DECISIVE seeds, unless the observation offers it, and no
    word that the witness has to say and no observation tells."""
    around = _wrapper(judged)
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
    secret = leaks.secret_words(
        judged.hint,
        [(play.actions, (play.first, *(step.observation for step in play.steps[:-1]))) for play in judged.witness_plays],
    )
    for word, count in secret.items():
        if count >= COPIES_NEEDED:
            told = f"only the hint tells that an action must hold {word!r}: the observation has to"
            raise Refused(GateRule.HINT, told, {"seeds": float(count)})
    return numbers


def check_constants(judged: Judged) -> Numbers:
    """No fixed action earns much: the answer seen most, texts of the source, words of the hint, sentences, lists of answers. What
    source and hint both hold is tried on new objects, which is what a player meets."""
    around = _wrapper(judged)
    answers = list(dict.fromkeys(leaks.unwrap(action, around) for actions in judged.witness.values() for action in actions))
    lists = [" ".join(answers)[:4000], ", ".join([*answers, ""])[:4000], ALL_NUMBERS]
    texts = leaks.source_texts(judged.table.source, judged.hint)
    texts += leaks.hint_texts(judged.hint, judged.table.source)
    plain = [*SENTENCES, *lists, *USUAL, *texts]
    wrapped = [_wrap(around, text) for text in (*lists, *USUAL, *texts)] if any(around) else []
    candidates = list(dict.fromkeys([*plain, *wrapped, _wrap(around, "")]))
    seeds = random.Random(derive(judged.source, "constant", 0)).sample(judged.seeds, len(judged.seeds))
    often = Counter(actions[0] for actions in judged.witness.values() if len(actions) == 1).most_common(1)
    suspects = [action for action, count in often if count >= SEEDS / 2]
    for seed, text in zip(seeds, leaks.shared_texts(judged.table.source, judged.hint), strict=False):
        alone = judged.table.play(seed, constant(_wrap(around, text)), rule=GateRule.SURVIVES)
        suspects += [alone.actions[-1]] if alone.value > BOUND * judged.mean else []
    suspects += _paid(judged, candidates, seeds)
    for action in list(dict.fromkeys(suspects))[:SUSPECTS]:
        what = f"the fixed action {action[:60]!r}"
        # a list of the answers of these seeds can be right on these only
        bounds = (SEEDS, SEEDS) if any(text in action for text in lists[:2]) else (TRIALS, SURE)
        check_mean(judged, GateRule.CONSTANT, partial(_always, action), most=bounds[0], what=what, sure=bounds[1])
    _check_count(judged, around, answers)
    return {"tried": len(candidates), "suspects": len(suspects)}


def _check_count(judged: Judged, around: tuple[str, str], answers: Sequence[str]) -> None:
    """Where the answers are numbers, to say one after the other from the smallest on earns little: there are more than turns."""
    if not all(answer.isascii() and answer.isdecimal() and len(answer) < 10 for answer in answers):
        return
    least = min(map(int, answers))

    def count(_first: str, _observation: str, turn: int) -> str:
        return _wrap(around, str(least + turn))

    if len(judged.table.play(judged.seeds[0], count, rule=GateRule.SURVIVES).steps) > 1:
        check_mean(judged, GateRule.CONSTANT, lambda _index, _seed: count, what=f"counting from {least}")


def _paid_copies(judged: Judged, around: tuple[str, str], known: dict[str, list[tuple[Play, str]]]) -> list[str]:
    """Names of copiers that are paid on the first seed, though they are not the witness's answer."""
    play = judged.witness_plays[0]
    copied = {name: _wrap(around, text) for name, text in leaks.copies(play.first).items() if name in leaks.TRIED}
    paid = _paid(judged, list(dict.fromkeys(copied.values())), [play.seed])
    return [name for name, text in copied.items() if text in paid and len(known.get(name, [])) < COPIES_NEEDED]


def _check_later_copies(judged: Judged, around: tuple[str, str]) -> None:
    """What nonsense, or another seed's answer, brings to light, however late, is no answer to copy."""
    single = all(len(actions) == 1 for actions in judged.witness.values())
    openings: list[str] = [JUNK]
    if single:
        openings.append(next((play.actions[0] for play in judged.other_plays if play.actions), JUNK))
    for opening in dict.fromkeys(openings):
        hits: dict[str, list[tuple[Play, list[str]]]] = {}
        for index, play in enumerate(judged.witness_plays[:DECISIVE]):
            shown = judged.table.play(play.seed, constant(opening), rule=GateRule.SURVIVES)
            if (len(shown.steps) == 1 and shown.ended) or (index == REVEALING and not hits):
                break
            answers = {leaks.unwrap(action, around) for action in play.actions[-1:]}
            for turn, step in enumerate(shown.steps, start=1):
                for name, text in leaks.copies(step.observation).items():
                    if leaks.fold(text) in answers and text not in play.first:
                        found = hits.setdefault(f"{name} of observation {turn + 1}", [])
                        found.append((play, [*[opening] * turn, _wrap(around, text)]))
        for name, found in hits.items():
            if len(found) >= COPIES_NEEDED:
                _confirm(judged, f"{name}, after {opening[:40]!r},", found)


def _check_parrot(judged: Judged) -> None:
    """Saying the observation again earns little."""

    def parrot(_first: str, observation: str, _turn: int) -> str:
        return observation

    if judged.table.play(judged.seeds[1], parrot, rule=GateRule.SURVIVES).value > BOUND * judged.mean:
        check_mean(judged, GateRule.COPIER, lambda _index, _seed: parrot, what="repeating the observation")


def _confirm(judged: Judged, name: str, found: Sequence[tuple[Play, list[str]]]) -> None:
    """Refuses where these actions win on enough seeds on which an answer of another seed doesn't."""
    wins = 0
    for play, actions in found:
        copied = judged.table.play(play.seed, _then_again(actions), rule=GateRule.SURVIVES)
        wins += judged.won(copied) and not judged.won(judged.table.play(play.seed, _blind_answer(judged, play.seed)))
    if wins >= COPIES_NEEDED:
        raise Refused(GateRule.COPIER, f"{name} wins {wins} of {DECISIVE} seeds", {"wins": wins})


def _paid(judged: Judged, candidates: Sequence[str], seeds: Sequence[int]) -> list[str]:
    """The actions among these that end an episode with much pay, each tried once; several share an episode where it goes on."""
    plays = judged.table.play_each(candidates, seeds, GateRule.SURVIVES)
    return [play.actions[-1] for play in plays if play.value > BOUND * judged.mean]


def _always(action: str, _index: int, _seed: int) -> Policy:
    return constant(action)


def _wrapper(judged: Judged) -> tuple[str, str]:
    return leaks.wrapper([action for actions in judged.witness.values() for action in actions])


def _wrap(around: tuple[str, str], text: str) -> str:
    return f"{around[0]}{text}{around[1]}"


def _then_again(actions: Sequence[str]) -> Policy:
    """The actions in order, then the last for ever."""
    return lambda _first, _observation, turn: actions[min(turn, len(actions) - 1)]


def _blind_answer(judged: Judged, seed: int) -> Policy:
    others = [action for other, actions in judged.witness.items() if other != seed for action in actions]
    return constant(random.Random(derive(judged.source, f"blind {seed}", 0, 63)).choice(others))
