"""The build's own check: how often a model wins on the held-out suite, with and without hint, and whether its designs can be
read.

Environments here are the suite's, of our own writer, and are executed without a jail; designs of the model are only parsed,
never run. Called by the build. The product's evaluation plays through the sandbox instead (workers/rollout).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from infra.dialects.nano import NanoDialect
from infra.suites import SuiteItem, evaluation_seed
from trainer.nano.families import FAMILIES
from trainer.nano.generate import sample
from trainer.nano.writer import draw_memory, draw_words, make_environment

TURN_TOKENS = 96
DESIGN_TOKENS = 256


@dataclass(frozen=True)
class Play:
    """One episode to play: an environment's text, its seed, the hint or None, the turns allowed."""

    source: str
    seed: int
    hint: str | None
    max_turns: int


@dataclass
class Episode:
    """How it went: the last reward and (prompt, said) token ids turn by turn."""

    reward: float
    turns: list[tuple[list[int], list[int]]]


def play_all(
    model: Any, dialect: NanoDialect, plays: Sequence[Play], seed: int, greedy: bool = False, batch: int = 256
) -> list[Episode]:
    """Plays all episodes, batch by batch; a reward is the last step's, 0 where the episode did not end."""
    order = sorted(range(len(plays)), key=lambda index: len(plays[index].source))
    episodes: dict[int, Episode] = {}
    for start in range(0, len(order), batch):
        part = order[start : start + batch]
        episodes.update(
            zip(part, _play_batch(model, dialect, [plays[index] for index in part], seed + start, greedy), strict=True)
        )
    return [episodes[index] for index in range(len(plays))]


def _play_batch(model: Any, dialect: NanoDialect, plays: Sequence[Play], seed: int, greedy: bool) -> list[Episode]:
    environments = [make_environment(play.source) for play in plays]
    episodes = [Episode(0.0, []) for _ in plays]
    tokens = []
    for environment, play in zip(environments, plays, strict=True):
        observation, _ = environment.reset(play.seed)
        tokens.append(dialect.open_play(observation, play.hint))
    going = list(range(len(plays)))
    for turn in range(max(play.max_turns for play in plays)):
        said = sample(model, [tokens[index] for index in going], TURN_TOKENS, seed + 7919 * turn, greedy)
        still = []
        for index, words in zip(going, said, strict=True):
            episodes[index].turns.append((list(tokens[index]), words))
            observation, reward, ended, _, _ = environments[index].step(dialect.parse_action(words))
            episodes[index].reward = reward if ended else 0.0
            if not ended and turn + 1 < plays[index].max_turns:
                tokens[index] = tokens[index] + words + dialect.continue_play(observation)
                still.append(index)
        going = still
        if not going:
            break
    return episodes


def win_rates(
    model: Any, dialect: NanoDialect, items: Sequence[SuiteItem], seeds: int, hinted: bool, greedy: bool = False
) -> dict[str, float]:
    """Share of wins by family, and under "all", over `seeds` instances of each environment."""
    played = []
    for item in items:
        for index in range(seeds):
            hint = item.hint if hinted else None
            played.append((item, Play(item.source, evaluation_seed(item.env_id, index), hint, item.max_turns)))
    episodes = play_all(model, dialect, [play for _, play in played], seed=1, greedy=greedy)
    wins: dict[str, list[bool]] = {}
    for (item, _), episode in zip(played, episodes, strict=True):
        for key in ("all", item.family):
            wins.setdefault(key, []).append(episode.reward >= item.win_return)
    return {key: sum(each) / len(each) for key, each in wins.items()}


def sample_designs(model: Any, dialect: NanoDialect, count: int, seed: int) -> list[tuple[str, str, str]]:
    """(source, hint, error) of sampled designs, on prompts like those of the warm start."""
    rng = Random(seed)
    prompts = []
    for _ in range(count):
        family = rng.choice(tuple(FAMILIES.values()))
        words, skill = draw_words(rng, family)
        prompts.append(dialect.write_design_prompt(skill, words, draw_memory(rng, family)))
    said: list[list[int]] = []
    for start in range(0, count, 64):
        said += sample(model, prompts[start : start + 64], DESIGN_TOKENS, seed + start)
    parsed = [dialect.parse_design(words) for words in said]
    return [(each.source, each.hint, each.error) for each in parsed]
