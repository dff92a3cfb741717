"""The warm start's samples: designs that follow a prompt, and plays of an oracle that shows its working where a hint tells it to.

In: a seeded generator and the dialect. Out: `Sample`s, token ids with a mask of what the model writes. Called by the warm start
and the tokenizer's training text. Environments are executed here without a jail: their text comes from our own writer, never
from a model.
"""

from dataclasses import dataclass
from random import Random
from typing import Any

from infra.dialects.nano import NanoDialect
from trainer.nano.families import FAMILIES, USELESS_HINTS, families_of
from trainer.nano.family import Family, write_source

SKILLS = tuple(dict.fromkeys(family.skill for family in FAMILIES.values()))
"""The six games skills, in the order of the families."""

_PLAYED = tuple(FAMILIES.values())
_PRACTICE = tuple(family.practice for family in _PLAYED)

HELPFUL_SHARE = 0.5
"""Share of written designs whose hint names the method."""
WORKING_SHARE = {"helpful": 0.94, "plain": 0.36, "always": 0.95}
"""How often the oracle shows its working: with a helpful hint, without one, and while it only learns to work."""
RELUCTANCE, RELUCTANT_SHARE = 0.4, 0.03
"""Without a helpful hint the share falls by this factor with each step of size beyond the easy ones, down to this share: the
longer a working is, the sooner the warm start guesses. So what is learned on easy tasks is not yet learned on larger ones."""
FAR_SHARE = 0.5
"""Share of plays whose size is any of the family's; the others are easy or up to three steps beyond."""
PROGRAMS = 40
"""Programs kept of each family and size for plays."""


@dataclass(frozen=True)
class Sample:
    """One training text. `written[i]` tells whether token i is the model's own, that is, whether it is trained."""

    token_ids: list[int]
    written: list[bool]


@dataclass(frozen=True)
class Turn:
    """One turn of an episode: what was observed, the working (empty where none was shown) and the action."""

    observation: str
    working: str
    action: str


def make_environment(source: str) -> Any:
    """An instance of the environment in a source of our own writer (never a model's: no jail is around it)."""
    space: dict[str, Any] = {}
    exec(source, space)  # noqa: S102  # the text is ours, drawn by `write_source`
    return next(value for name, value in space.items() if name.endswith("Env"))()


def draw_hint(rng: Random, family: Family) -> str:
    """A hint as a written design carries it: half of them helpful."""
    return rng.choice(family.hints if rng.random() < HELPFUL_SHARE else USELESS_HINTS)


def choose_size(rng: Random, family: Family, memory: list[tuple[str, str, int]]) -> int:
    """The size that a good designer writes after these memory lines: near the best, above the easy, below the hard."""
    sizes: dict[str, list[int]] = {"best": [], "easy": [], "hard": []}
    for kind, name, size in memory:
        if name == family.name:
            sizes[kind].append(size)
    low = max(sizes["easy"]) + family.step if sizes["easy"] else None
    high = min(sizes["hard"]) - family.step if sizes["hard"] else None
    if sizes["best"]:
        size = rng.choice(sizes["best"]) + rng.choice((-1, 0, 0, 1)) * family.step
        size = max(size, low) if low is not None else size
        size = min(size, high) if high is not None else size
    elif low is not None and high is not None:
        size = rng.randint(low, high) if low <= high else (low + high) // 2
    elif low is not None:
        size = low + family.step * rng.choice((0, 0, 1, 1, 2))
    elif high is not None:
        size = high - family.step * rng.choice((0, 0, 1, 1, 2))
    else:
        size = rng.randint(*family.easy)
    return family.clip(size)


def draw_memory(rng: Random, family: Family) -> list[tuple[str, str, int]]:
    """Up to six memory lines of families and sizes, often of the family at hand and then with sizes that make sense together."""
    lines = []
    if rng.random() < 0.6:
        middle = rng.randint(*family.sizes)
        below, above = (sorted(family.step * rng.randint(1, 4) for _ in range(2)) for _ in range(2))
        around = [("best", middle), ("best", middle + family.step * rng.choice((-1, 0, 1)))]
        around += [("easy", middle - away) for away in below] + [("hard", middle + away) for away in above]
        lines += [(kind, family.name, family.clip(size)) for kind, size in rng.sample(around, rng.choice((1, 1, 2, 3, 4, 5)))]
    for _ in range(rng.choice((0, 0, 1, 2, 3))):
        other = rng.choice(tuple(FAMILIES.values()))
        if other.name != family.name:
            lines.append((rng.choice(("best", "easy", "hard")), other.name, rng.randint(*other.sizes)))
    rng.shuffle(lines)
    return lines[:6]


def draw_words(rng: Random, family: Family) -> tuple[list[str], str]:
    """Document words and the skill: mostly of this family, sometimes none, sometimes of a document that misses the skill."""
    if rng.random() < 0.1:
        return [], family.skill
    if rng.random() < 0.15:
        other = rng.choice([each for each in FAMILIES.values() if each.skill != family.skill])
        return rng.sample(other.keywords, rng.randint(1, 4)), family.skill
    words = rng.sample(family.keywords, rng.randint(1, 4))
    if len(words) > 2 and rng.random() < 0.3:
        words[-1] = rng.choice(rng.choice(tuple(FAMILIES.values())).keywords)
        rng.shuffle(words)
    return words, family.skill


def draw_play_size(rng: Random, family: Family, near: bool = False) -> int:
    """A size to play in the warm start, small ones more often; `near`: no further than the next one after the easy ones, as
    copying and looking up are learned sooner on short rows."""
    low, high = family.easy
    if near:
        return family.clip(rng.randint(low, high + family.step))
    if rng.random() < FAR_SHARE:
        return rng.randint(*family.sizes)
    return family.clip(rng.randint(low, high + 3 * family.step))


def working_share(family: Family, size: int, kind: str) -> float:
    """How often the oracle shows its working at this size; `kind`: a key of WORKING_SHARE."""
    if kind != "plain":
        return WORKING_SHARE[kind]
    beyond = max(0, size - family.easy[1]) // family.step
    return max(RELUCTANT_SHARE, WORKING_SHARE[kind] * RELUCTANCE**beyond)


def play_oracle(rng: Random, family: Family, environment: Any, seed: int, careful: bool) -> list[Turn]:
    """An episode of a player that knows the answer; a careful one shows its working, halves the range in a search, and asks all
    before it chooses."""
    observation, _ = environment.reset(seed)
    if family.name in _PLAYERS:
        return _PLAYERS[family.name](rng, environment, observation, careful)
    working = family.work(observation) if careful else ""
    return [Turn(observation, working, environment.solution()[0])]


def _search(rng: Random, environment: Any, observation: str, careful: bool) -> list[Turn]:
    low, top = 1, int(observation.split()[-1])
    high, turns, ended = top, [], False
    while not ended:
        guess = (low + high) // 2 if careful else rng.randint(1, top)
        turns.append(Turn(observation, f"{low} to {high}" if careful else "", str(guess)))
        observation, _, ended, _, _ = environment.step(str(guess))
        if observation == "higher":
            low = max(low, guess + 1)
        elif observation == "lower":
            high = min(high, guess - 1)
    return turns


def _ask(rng: Random, environment: Any, observation: str, careful: bool) -> list[Turn]:
    """Careful: the working holds the best offer so far and who is still to be asked."""
    names = list(environment.prices)
    if not careful:
        return [Turn(observation, "", rng.choice(names))]
    best, turns = "", []
    while names:
        turns.append(Turn(observation, f"{best}{environment.prices.get(best, '')} {''.join(names)}".strip(), f"?{names[0]}"))
        name = names.pop(0)
        observation = environment.step(f"?{name}")[0]
        if not best or environment.prices[name] < environment.prices[best]:
            best = name
    return [*turns, Turn(observation, f"{best}{environment.prices[best]}", best)]


_PLAYERS = {"guess": _search, "ask": _ask}
"""How families of several turns are played."""


class Writer:
    """Draws samples. Keeps some programs of each family and size, since writing and compiling one costs more than playing it."""

    def __init__(self, dialect: NanoDialect) -> None:
        self._dialect = dialect
        self._environments: dict[tuple[str, int], list[Any]] = {}

    def design(self, rng: Random) -> Sample:
        """A design prompt and the design that answers it."""
        family = rng.choice(families_of(rng.choice(SKILLS)))
        words, skill = draw_words(rng, family)
        memory = draw_memory(rng, family)
        source = write_source(family, rng, choose_size(rng, family, memory))
        prompt = self._dialect.write_design_prompt(skill, words, memory)
        completion = self._dialect.write_design(source, draw_hint(rng, family))
        return Sample(prompt + completion, [False] * len(prompt) + [True] * len(completion))

    def play(self, rng: Random, habits: bool, near: bool = False) -> Sample:
        """An episode with a helpful hint, a useless one or none, `near`: of a small size. Without `habits` the player is careful
        whatever the hint."""
        family = rng.choices(_PLAYED, _PRACTICE)[0]
        size = draw_play_size(rng, family, near)
        environment = self._environment(rng, family, size)
        arm = rng.choices(("helpful", "useless", "plain"), (0.5, 0.12, 0.38))[0]
        kind = "always" if not habits else "helpful" if arm == "helpful" else "plain"
        careful = rng.random() < working_share(family, size, kind)
        hint = {"helpful": rng.choice(family.hints), "useless": rng.choice(USELESS_HINTS), "plain": None}[arm]
        ids: list[int] = []
        written: list[bool] = []
        for index, turn in enumerate(play_oracle(rng, family, environment, rng.getrandbits(32), careful)):
            prompt = self._dialect.continue_play(turn.observation) if index else self._dialect.open_play(turn.observation, hint)
            said = self._dialect.write_turn(turn.working, turn.action)
            ids += prompt + said
            written += [False] * len(prompt) + [True] * len(said)
        return Sample(ids, written)

    def _environment(self, rng: Random, family: Family, size: int) -> Any:
        known = self._environments.setdefault((family.name, size), [])
        if len(known) < PROGRAMS:
            known.append(make_environment(write_source(family, rng, size)))
            return known[-1]
        return rng.choice(known)
