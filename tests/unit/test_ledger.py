"""The ledger hands out the finished prefix, in order, once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.ledger import Ledger


def test_record_behind_an_open_one_is_held_back() -> None:
    ledger: Ledger[str] = Ledger()
    first, second = ledger.open(3, "a"), ledger.open(7, "b")
    ledger.finish(second)
    assert ledger.finished_prefix() == []
    assert (ledger.open_count, ledger.held_count) == (1, 2)
    ledger.finish(first)
    assert [entry.event for entry in ledger.finished_prefix()] == ["a", "b"]
    assert ledger.held_count == 0


def test_exactly_one_open_record_is_never_passed() -> None:
    """Faust's own position commits past exactly one open record; ours must not."""
    ledger: Ledger[int] = Ledger()
    entries = [ledger.open(offset, offset) for offset in range(5)]
    for entry in entries[:2] + entries[3:]:
        ledger.finish(entry)
    assert [entry.offset for entry in ledger.finished_prefix()] == [0, 1]
    assert ledger.finished_prefix() == []


def test_finishing_twice_counts_once() -> None:
    ledger: Ledger[int] = Ledger()
    entry, _ = ledger.open(0, 0), ledger.open(1, 1)
    ledger.finish(entry)
    ledger.finish(entry)
    assert ledger.open_count == 1


def test_offset_that_goes_back_is_refused() -> None:
    ledger: Ledger[int] = Ledger()
    ledger.open(4, 0)
    with pytest.raises(ValueError, match="log order"):
        ledger.open(4, 0)


def test_cleared_ledger_takes_the_same_records_again_and_old_entries_are_ignored() -> None:
    ledger: Ledger[int] = Ledger()
    old = ledger.open(4, 0)
    ledger.clear()
    new = ledger.open(4, 0)
    ledger.finish(old)
    assert ledger.finished_prefix() == []
    assert ledger.open_count == 1
    ledger.finish(new)
    assert ledger.finished_prefix() == [new]


@given(st.permutations(list(range(12))))
def test_whatever_the_order_all_are_handed_out_once_in_log_order(order: list[int]) -> None:
    ledger: Ledger[int] = Ledger()
    entries = [ledger.open(offset, offset) for offset in range(12)]
    seen: list[int] = []
    finished: set[int] = set()
    for offset in order:
        ledger.finish(entries[offset])
        finished.add(offset)
        seen += [entry.offset for entry in ledger.finished_prefix()]
        assert set(range(len(seen))) <= finished
    assert seen == list(range(12))
