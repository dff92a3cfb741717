"""The tests' own removals of barriers: each finds what it takes away, and fails aloud where that is gone."""

from __future__ import annotations

import pytest

from tests.weakened import REMOVALS, changed
from workers.sandbox import jail, launch
from workers.sandbox.attacks.base import Barrier
from workers.sandbox.runner import runner_source

TEXTS = {
    "config": (jail.HERE / "jail.cfg").read_text(),
    "runner": runner_source(),
    "launcher": launch.PROGRAM.read_text(),
}


@pytest.mark.parametrize("barrier", REMOVALS)
def test_removal_finds_what_it_takes_away_and_leaves_something_else(barrier: Barrier) -> None:
    removal = REMOVALS[barrier]
    for name, text in TEXTS.items():
        for change in getattr(removal, name):
            assert changed(text, (change,)) != text
            # what another hand renames is missed
            with pytest.raises(AssertionError, match="stands there 0 times"):
                changed(text.replace(change[0], change[0].swapcase()), (change,))
    for target, name, _ in removal.host:
        assert hasattr(target, name)


def test_text_that_is_empty_or_stands_twice_is_no_barrier() -> None:
    for text, old in (("abc", ""), ("abab", "ab")):
        with pytest.raises(AssertionError, match="the barrier is not where"):
            changed(text, ((old, "new"),))
