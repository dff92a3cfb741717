"""The suite reasoning-gym: tasks of the package of that name whose questions are short and whose answers are one string.

In: nothing but the package, an optional extra. Out: suite items, one a task: an environment that holds its questions and answers,
and shows one by seed; they are drawn once a process. Called by load_suite. Equal versions of the package give equal items. Raises
SettingsError where it is not installed. An answer is right where it is the package's own, white space and box aside; the
package's partial credit for other forms is not given.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from itertools import accumulate
from typing import Any

from infra.suites.items import SuiteItem
from schemas.errors import SettingsError

NAME = "reasoning-gym"
VERSION = "0.1.25"
INSTALL = "make install-reasoning-gym"
SEED = 20_010
QUESTIONS = 400  # drawn of each task; those that are too long are left out
LARGEST = 30_000  # bytes of a task's questions and answers: the gate takes no source above 32 KiB
LONGEST_QUESTION, LONGEST_ANSWER = 360, 24  # characters: a nano model's context holds them
FEWEST = 50
TASKS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "arithmetic": {
        "chain_sum": {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2},
        "gcd": {"max_value": 100},
        "lcm": {"max_value": 20},
        "basic_arithmetic": {"max_terms": 3, "max_digits": 2},
    },
    "algorithmic": {
        "letter_counting": {"min_words": 2, "max_words": 5},
        "spell_backward": {"max_word_len": 6},
        "base_conversion": {"max_value": 64},
        "count_primes": {"max_n": 60},
    },
    "cognition": {
        "number_sequence": {"max_terms": 6, "max_value": 50},
        "needle_haystack": {"min_num_statements": 2, "max_num_statements": 4},
    },
    "logic": {"aiw": {}, "syllogism": {}},
}
"""Skill group -> task -> settings, by which tasks are as easy as they come."""

SOURCE = """class ReasoningGymEnv:
    pairs = {pairs!r}

    def __init__(self, max_turns=25):
        self.answer = None

    def reset(self, seed=None):
        question, self.answer = self.pairs[(seed or 0) % len(self.pairs)]
        return question, {{}}

    def step(self, action):
        given = action.strip()
        if given.startswith("\\\\boxed{{") and given.endswith("}}"):
            given = given[7:-1].strip()
        won = self.answer is not None and given == self.answer
        self.answer = None
        return "right" if won else "wrong", float(won), True, False, {{}}
"""


def load_reasoning_gym() -> list[SuiteItem]:
    """The items. Raises SettingsError where the package is missing or of another version, or gives too few questions that fit."""
    return list(_drawn())


@cache
def _drawn() -> tuple[SuiteItem, ...]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of a package that it brings, once
            import reasoning_gym  # an extra
        found = version(NAME)
    except (ImportError, PackageNotFoundError) as problem:
        raise SettingsError(
            f"suite {NAME} needs the package {NAME}, which is not installed here ({problem})", f"Run: {INSTALL}"
        ) from problem
    if found != VERSION:
        raise SettingsError(
            f"suite {NAME} is made of version {VERSION} of its package, and {found} is installed: questions differ",
            f"Run: {INSTALL}",
        )
    items = []
    for group, tasks in TASKS.items():
        for task, settings in tasks.items():
            drawn = reasoning_gym.create_dataset(task, seed=SEED, size=QUESTIONS, **settings)
            items.append(make_item(group, task, [(str(one["question"]), str(one["answer"])) for one in drawn]))
    return tuple(items)


def make_item(group: str, task: str, pairs: Sequence[tuple[str, str]]) -> SuiteItem:
    """One task's environment. Raises SettingsError where too few of its questions fit."""
    short = [
        (question, answer.strip())
        for question, answer in dict(pairs).items()
        if len(question) <= LONGEST_QUESTION and 0 < len(answer.strip()) <= LONGEST_ANSWER
    ]
    ends = accumulate(len(f"{pair!r}, ".encode()) for pair in short)
    kept = [pair for pair, end in zip(short, ends, strict=True) if end <= LARGEST]
    if len(kept) < FEWEST:
        raise SettingsError(f"suite {NAME}: {len(kept)} questions of task {task} are short enough", f"Install version {VERSION}")
    return SuiteItem(
        env_id=f"rg-{task}",
        family=task,
        size=0,
        skill=group,
        source=SOURCE.format(pairs=kept),
        hint="answer with the result alone",
        max_turns=1,
        win_return=1.0,
    )
