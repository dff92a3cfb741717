"""Every attack with its barriers taken away one behind the other: each barrier is what stops what it is said to stop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.weakened import REMOVALS, larger, peeled, weakened, without
from workers.sandbox import Sandbox
from workers.sandbox.attacks import ATTACKS
from workers.sandbox.attacks.base import Attack, Barrier
from workers.sandbox.attacks.canaries import Canaries
from workers.sandbox.attacks.drill import Traces, carry_out

pytestmark = pytest.mark.integration


class Lender:
    """The sandbox without some barriers; one at a time, kept as long as the same is asked for."""

    def __init__(self, canaries: Canaries) -> None:
        self.canaries = canaries
        self._stack = ExitStack()
        self._barriers: frozenset[Barrier] = frozenset()
        self._sandbox: Sandbox | None = None

    def lend(self, barriers: frozenset[Barrier]) -> Sandbox:
        if self._sandbox is None or barriers != self._barriers:
            self.close()
            self._sandbox, self._barriers = self._stack.enter_context(weakened(barriers, self.canaries)), barriers
        return self._sandbox

    def close(self) -> None:
        self._sandbox = None
        self._stack.close()


@pytest.fixture(scope="module")
def lender() -> Iterator[Lender]:
    with Canaries() as canaries:
        before = Traces.now()
        lender = Lender(canaries)
        yield lender
        lender.close()
        assert before.left() == []


def peelings() -> list[tuple[Attack, int]]:
    """Attacks, and how many of their barriers go; those without the same barriers stand together."""
    found = [
        (attack, count)
        for attack in ATTACKS
        for count in range(1, len(attack.layers) + 1)
        if count < len(attack.layers) or attack.effect
    ]
    return sorted(found, key=lambda one: sorted(peeled(one[0].layers, one[1])))


@pytest.mark.parametrize(("attack", "count"), peelings(), ids=lambda value: getattr(value, "name", str(value)))
def test_attack_gets_past_a_barrier_that_is_taken_away(lender: Lender, attack: Attack, count: int) -> None:
    barriers = peeled(attack.layers, count)
    expected = attack.layers[count].outcome if count < len(attack.layers) else attack.effect
    expected = expected.replace("CANARY", lender.canaries.word)
    sandbox = lender.lend(barriers)
    with without(barriers):
        outcome = carry_out(sandbox, attack, lender.canaries, larger(attack.limits, barriers), expected)
    assert outcome[: len(expected)] == expected, outcome
    if count == 1:
        assert not attack.held(outcome)


def test_barriers_that_never_go_say_why() -> None:
    for attack in ATTACKS:
        assert attack.effect or attack.note, attack.name
        assert all(layer.barrier in REMOVALS for layer in attack.layers) or attack.note, attack.name
    shown = {layer.barrier for attack in ATTACKS if attack.effect for layer in attack.layers}
    assert set(Barrier) - shown == {Barrier.PROCESS, Barrier.KILL}
