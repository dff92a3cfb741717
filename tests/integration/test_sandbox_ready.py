"""Jails that stand ready for sources to come: taken by hash seed, started anew, charged to who takes them, gone at the end."""

from __future__ import annotations

import os
import signal
import time

import pytest

from workers.gate import judge
from workers.sandbox import open_sandbox
from workers.sandbox.base import SessionEnd, is_infrastructure
from workers.sandbox.engine import NsjailSandbox
from workers.sandbox.processor import one_processor

pytestmark = pytest.mark.integration

SOURCE = """
class EchoEnv:
    def __init__(self, max_turns=25):
        pass
    def reset(self, seed=None):
        return str(hash("text")), {}
    def step(self, action):
        return action, 0.0, True, False, {}
"""


def opened(ready: dict[int, int]) -> NsjailSandbox:
    sandbox = open_sandbox("zygote", ready=ready)
    assert isinstance(sandbox, NsjailSandbox)
    return sandbox


def standing(sandbox: NsjailSandbox) -> dict[int, list[int]]:
    return {seed: [jail.pid for jail in spares] for seed, spares in sandbox._spares.items()}


def test_ready_jail_is_taken_by_its_hash_seed_and_replaced() -> None:
    sandbox = opened({0: 1, 1: 1})
    try:
        with sandbox.open(SOURCE, max_turns=25) as session:
            seen = session.reset(1)
        before = standing(sandbox)
        assert {seed: len(pids) for seed, pids in before.items()} == {0: 1, 1: 1}

        with sandbox.open(SOURCE, max_turns=25, hash_seed=1) as session:
            assert session.reset(1) != seen
            assert session.jail.pid == before[1][0]  # type: ignore[attr-defined] # the engine's own session
        after = standing(sandbox)
    finally:
        sandbox.close()

    assert after[0] == before[0]
    assert len(after[1]) == 1
    assert after[1] != before[1]


def test_cpu_of_a_ready_jail_counts_once_it_is_taken() -> None:
    sandbox = opened({0: 1})
    try:
        with sandbox.open(SOURCE, max_turns=25) as session:
            session.reset(1)
        (spare,) = sandbox._spares[0]
        spare.status(0)  # it has started
        untaken_s = spare.cpu_s()
        before_s = sandbox.cpu_s()
        with sandbox.open(SOURCE.replace("25", "24"), max_turns=25) as session:
            session.reset(1)
            taken_s = sandbox.cpu_s() - before_s
    finally:
        sandbox.close()

    assert untaken_s > 0 or sandbox.level != "full"  # without cgroups a jail tells at its end only
    assert taken_s >= untaken_s


@pytest.mark.parametrize("noticed", [True, False], ids=["long dead", "just killed"])
def test_ready_jail_that_was_killed_ends_its_session_as_infrastructure_and_gives_its_slot_back(
    noticed: bool,
) -> None:
    sandbox = opened({0: 1})
    try:
        sandbox.fill()
        (spare,) = sandbox._spares[0]
        spare.status(0)  # it has started
        os.kill(spare.pid, signal.SIGKILL)
        end_s = time.monotonic() + 10
        while noticed and spare.slot.group and spare.slot.group.processes() and time.monotonic() < end_s:
            time.sleep(0.01)
        with pytest.raises(SessionEnd) as end:
            sandbox.open(SOURCE, max_turns=25)
        assert is_infrastructure(end.value.reason)
        assert spare not in sandbox._live
        with sandbox.open(SOURCE, max_turns=25) as session:
            session.reset(1)
        slots = {jail.slot.number for jail in sandbox._live}
        assert spare.slot.number in slots, "the next jail has its slot"
        assert len(slots) == len(sandbox._live)
    finally:
        sandbox.close()


def processors_of(sandbox: NsjailSandbox) -> list[set[int]]:
    groups = [jail.slot.group for jail in sandbox._zygotes.values()]
    return [os.sched_getaffinity(pid) for group in groups if group for pid in group.processes()]


def test_jail_goes_where_the_thread_that_takes_it_may_go_and_the_next_one_anywhere() -> None:
    free = os.sched_getaffinity(0)
    sandbox = opened({0: 2})
    try:
        with one_processor(), sandbox.open(SOURCE, max_turns=25) as session:
            session.reset(1)  # the child lives
            here = os.sched_getaffinity(0)
            kept = processors_of(sandbox)
        assert len(here) == 1
        assert all(places == here for places in kept)
        assert len(kept) >= 3 or sandbox.level != "full"  # nsjail, the zygote and its child; without cgroups none is moved
        sandbox.forget(SOURCE)
        assert os.sched_getaffinity(0) == free
        with sandbox.open(SOURCE, max_turns=25) as session:
            session.reset(1)
            assert all(places == free for places in processors_of(sandbox))
    finally:
        sandbox.close()


def test_judgement_leaves_its_thread_free_also_where_it_refuses() -> None:
    free = os.sched_getaffinity(0)
    sandbox = opened({0: 2, 1: 1})
    try:
        assert not judge(sandbox, SOURCE, "Say it again, with care and in full.").admitted
        assert not judge(sandbox, "import os\n" + SOURCE, "Say it again, with care and in full.").admitted
    finally:
        sandbox.close()
    assert os.sched_getaffinity(0) == free


def test_sandbox_that_is_never_used_starts_no_jail_and_one_that_closes_keeps_none() -> None:
    sandbox = opened({0: 2})
    assert not sandbox._live
    with sandbox.open(SOURCE, max_turns=25) as session:
        session.reset(1)
    assert len(sandbox._live) == 3
    sandbox.close()
    assert not sandbox._live
