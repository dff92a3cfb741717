"""The benchmarks run, on tiny counts, and print every row of the targets' table. What they measure is not looked at."""

from __future__ import annotations

import math

import pytest

from tests.bench.jails import Counts, JailBench
from tests.bench.table import Row, as_records, as_text, jail_rows

pytestmark = pytest.mark.integration

TARGETS = {
    "fresh stdlib jail ready": 5,
    "jail + gymnasium + numpy": 1.4,
    "zygote episode start": 2,
    "ready pool": 5,
    "full step": 8,
    "step p99 / p50": 5,
    "kill of a computing jail, p50": 10,
    "kill of a computing jail, most": 100,
    "memory (PSS) a session at 64, stdlib": 8,
    "memory (PSS) a session at 64, gymnasium": 25,
    "episodes of 20 steps a second": 4,
    "gate, nano design: CPU, jails ready, beside work": 0.15,
    "gate, nano design: CPU, jails ready, nothing beside": 0.15,
    "gate, large design: CPU, jails ready": 0.5,
}

SAMPLED = (
    *(
        "jail",
        "python",
        "python cpu",
        "packages in a jail",
        "packages",
        "episode start",
        "fork",
        "hand-out",
        "step",
        "echo",
        "kill",
    ),
    *("memory, jails", "memory, zygote", "memory, heavy jails", "memory, heavy zygote", "episode, fresh jail", "episode, zygote"),
    *(f"{case} {what}" for case in ("nano", "nano beside work", "large") for what in ("cpu", "warm cpu", "wall")),
)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """The table of one tiny round."""
    bench = JailBench(Counts(rounds=1, starts=1, episodes=1, steps=4, kills=1, sessions=2, nano=1, large=1))
    told: list[str] = []
    try:
        bench.run(told.append)
    finally:
        bench.close()
    assert told == ["round 1 of 1"]
    return jail_rows(bench.samples)


@pytest.mark.parametrize("what", TARGETS)
def test_each_target_has_its_row(rows: list[Row], what: str) -> None:
    found = [row for row in rows if row.what.startswith(what) and not math.isnan(row.target)]
    assert found
    for row in found:
        assert row.target == TARGETS[what]
        assert 0 < row.seen < math.inf
        assert f"| {row.what} |" in as_text(rows)


def test_spread_of_steps_is_told_beside_that_of_the_plain_pipe() -> None:
    values = [*[1.0] * 98, 5.0, 9.0]
    samples = dict.fromkeys(SAMPLED, values) | {"echo": [*[2.0] * 98, 4.0, 9.0]}
    seen = {row.what: row.seen for row in jail_rows(samples)}
    assert seen["step p99 / p50"] == 5.0
    assert next(seen[what] for what in seen if what.startswith("step p99 / p50, ")) == 2.5


def test_missed_target_is_told_and_a_row_without_target_is_not() -> None:
    rows = [
        Row("slow", 2.0, 1.0, "s"),
        Row("rate", 5.0, 4.0, at_least=True),
        Row("few", 3.0, 4.0, at_least=True),
        Row("told", 9.0),
    ]
    assert [row.holds for row in rows] == [False, True, False, True]
    assert as_text(rows).splitlines()[2:] == [
        "| slow | <= 1 s | 2 s | missed |",
        "| rate | >= 4 | 5 |  |",
        "| few | >= 4 | 3 | missed |",
        "| told |  | 9 |  |",
    ]
    assert as_records(rows)[3]["target"] is None
