"""The watchdog tells a stage that stands still from one that waits, holds or has nothing to do."""

from __future__ import annotations

from streams.watchdog import PartView, Watchdog

PART = ("spade-rollout-finished", 3)


def view(next_: int, end: int, finished: int | None = None, committed: int | None = None) -> dict[tuple[str, int], PartView]:
    return {PART: PartView(next_, end, finished, committed)}


def test_a_partition_with_records_that_nobody_takes_is_told_at_the_limit() -> None:
    dog = Watchdog("score", 60)
    assert [dog.look(now, view(10, 12)) for now in (0.0, 59.0)] == ["", ""]
    told = dog.look(60.0, view(10, 12))
    assert told == ("stream stage score has taken no record of spade-rollout-finished:3 for 60 s: it stands at offset 10 of 12")


def test_one_record_taken_in_time_begins_the_limit_anew() -> None:
    dog = Watchdog("score", 60)
    dog.look(0.0, view(10, 12))
    assert dog.look(59.0, view(11, 12)) == ""
    assert dog.look(118.0, view(11, 12)) == ""
    assert dog.look(119.0, view(11, 12))


def test_a_partition_at_its_end_may_stand_for_ever_and_its_next_record_has_the_whole_limit() -> None:
    dog = Watchdog("score", 60)
    for now in (0.0, 100.0, 1000.0):
        assert dog.look(now, view(12, 12)) == ""
    assert dog.look(1059.0, view(12, 13)) == ""
    assert dog.look(1060.0, view(12, 13))


def test_records_held_open_are_no_standstill_of_the_commit_but_finished_ones_are() -> None:
    dog = Watchdog("batch", 60)
    for now in (0.0, 500.0):
        assert dog.look(now, view(12, 12, finished=None, committed=4)) == ""  # all held: nothing is finished
    assert dog.look(501.0, view(12, 12, finished=9, committed=4)) == ""
    told = dog.look(600.0, view(12, 12, finished=9, committed=4))
    assert "has committed nothing of spade-rollout-finished:3 for 60 s: it stands at offset 4, finished is all before 9" in told


def test_a_commit_that_moves_slowly_is_no_standstill() -> None:
    dog = Watchdog("batch", 60)
    for number in range(20):
        assert dog.look(number * 50.0, view(99, 99, finished=50 + number, committed=number)) == ""


def test_a_stage_that_gets_no_partitions_is_told_and_one_that_got_them_in_time_is_not() -> None:
    dog = Watchdog("design", 60)
    assert dog.look_unready(0.0) == ""
    assert dog.look(50.0, view(0, 0)) == ""
    assert dog.look_unready(70.0) == ""
    assert dog.look_unready(129.0) == ""
    assert dog.look_unready(130.0) == "stream stage design has waited 60 s for its partitions and their past"


def test_what_was_seen_before_the_broker_was_away_counts_no_more() -> None:
    dog = Watchdog("score", 60)
    dog.look(0.0, view(10, 12))
    dog.forget()
    assert dog.look(100.0, view(10, 12)) == ""
    assert dog.look(160.0, view(10, 12))


def test_a_partition_that_moved_away_and_came_back_begins_anew() -> None:
    dog = Watchdog("score", 60)
    dog.look(0.0, view(10, 12))
    dog.look(30.0, {})
    assert dog.look(100.0, view(10, 12)) == ""
