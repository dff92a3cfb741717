"""The collapse control: when it reacts and stops, to what, and that one log gives one plan in whatever order it is read."""

from __future__ import annotations

import io
import itertools
import random
from typing import Any

import msgspec
import pytest
from rich.console import Console

from infra.cli.why import story
from infra.dialects.nano import memory_labels
from infra.lineage import Lineage
from infra.planning.storage import request_bytes
from schemas.common import Record, Reference, SamplingSettings
from schemas.design import DesignRequested, Document, Member, MemoryLine, MissingSlot, SlotsClosed
from schemas.errors import SettingsError
from schemas.recipes import build_recipe
from schemas.score import GenerationClosed, ScoredDesign
from schemas.settings import Recipe
from schemas.topics import BY_RECORD, Topic
from streams.clusters import Clusters
from streams.collapse import CollapseControl, Reaction
from streams.design import DesignJoin
from streams.slots import count_blocks, fill_slots
from streams.stage import Positioned
from tests.streamworld import DOCUMENTS, Shares, World, answer, policy, small_recipe
from workers.memory_rows import rows_of

SKILLS = ("logic", "maths")
K1 = {"steps": 30, "interval": 1, "delay": 1, "lag": 1, "lead": 1, "memory_lag": 2}


def controlled(**over: Any) -> Recipe:
    """Judged over two generations, and memory shown."""
    own = {"collapse__enabled": True, "collapse__window": 2, "memory__enabled": True, "schedule": K1}
    return small_recipe(**{**own, **over})


def at(env_id: str) -> Reference:
    return Reference(topic="spade-env-proposed", partition=0, offset=0, id=env_id)


def member(generation: int, slot: int, repeats: str = "") -> Member:
    """Even slots are of the first skill."""
    env_id = f"e{generation:02d}-{slot}"
    return Member(
        env_id=env_id, slot=slot, design_attempt=0, skill=SKILLS[slot % 2], document_id="d", group="g", source=f"of {env_id}",
        hint="h", proposal=at(env_id), source_digest="", witness_min_return=1.0, reward_min=0.0, repeats=repeats,
    )  # fmt: skip


def slots(generation: int, *repeats: str, dropped: tuple[str, ...] = ()) -> SlotsClosed:
    """A member for each of `repeats` ("": it repeats none), and a dropped near-duplicate for each of `dropped`."""
    return SlotsClosed(
        run_id="run", event_id=f"s{generation}", generation=generation, policy_version=0,
        members=[member(generation, slot, named) for slot, named in enumerate(repeats)],
        duplicates=[MissingSlot(slot=9, env_id=f"d{generation}-{n}", reason="", repeats=one) for n, one in enumerate(dropped)],
    )  # fmt: skip


def closing(closed: SlotsClosed, vendi: float, evicted: tuple[str, ...] = ()) -> GenerationClosed:
    designs = [
        ScoredDesign(
            env_id=one.env_id, slot=one.slot, design_attempt=0, skill=one.skill, document_id="d", group="g",
            proposal=one.proposal, valid=True, w=0.5,
            win_rate=0.25, hint_win_rate=0.5, regret=0.125, regret_se=0.0, reward=0.0, advantage=0.0,
            trained=True, evicted="non-finite" if one.env_id in evicted else "",
        )
        for one in closed.members
    ]  # fmt: skip
    named = [one.repeats for one in closed.members if one.repeats] + [one.repeats for one in closed.duplicates]
    return GenerationClosed(
        run_id="run", event_id=f"g{closed.generation}", generation=closed.generation, designs=designs, proposed=6,
        valid=len(designs), rejected_by_rule={}, missing=0, duplicates=len(closed.duplicates), win_rate=0.0, hint_win_rate=0.0,
        regret=0.0, regret_se=0.0, designer_reward=0.0, repeats=0.0, vendi=vendi, lost=0,
        repeated={name: named.count(name) for name in sorted(set(named))},
    )  # fmt: skip


def history(*vendi: float, width: int = 4) -> list[tuple[SlotsClosed, GenerationClosed]]:
    """Closed generations of these Vendi/n. From the third on, each second design repeats one of the first generation's."""
    found = []
    for generation, value in enumerate(vendi):
        repeats = [f"e00-{slot % 2}" if generation > 1 and slot % 4 > 1 else "" for slot in range(width)]
        closed = slots(generation, *repeats)
        found.append((closed, closing(closed, value)))
    return found


def control(past: list[tuple[SlotsClosed, GenerationClosed]], **over: Any) -> CollapseControl:
    made = CollapseControl(controlled(**over), {closed.generation: closed for closed, _ in past})
    for _, record in past:
        made.note(record)
    return made


def reacting(made: CollapseControl, upto: int) -> list[bool]:
    return [made.reaction(newest) is not None for newest in range(upto)]


def reaction(made: CollapseControl, newest: int) -> Reaction:
    found = made.reaction(newest)
    assert found is not None
    return found


# --- when --------------------------------------------------------------------------------------------------------------------


def test_it_reacts_below_eight_tenths_of_the_first_window_and_stops_from_nine_tenths_on() -> None:
    made = control(history(0.5, 0.5, 0.45, 0.34, 0.44, 0.45, 0.46, 0.5), collapse__repeats=[1, 1])
    # windows: .5, .475, .395, .39, .445, .455, .48: on below .4, off from .45 on
    assert reacting(made, 8) == [False, False, False, True, True, True, False, False]
    assert {reaction(made, newest).record.since for newest in (3, 4, 5)} == {3}
    assert reaction(made, 4).record.window == [3, 4]
    assert (reaction(made, 4).record.start_vendi, reaction(made, 4).record.vendi) == pytest.approx((0.5, 0.39))


def test_other_numbers_of_designs_are_no_change_of_diversity() -> None:
    narrow, wide = history(*[0.5] * 6), history(*[0.25] * 6, width=8)  # the same kinds among twice as many
    assert not any(reacting(control([*narrow[:3], *wide[3:]], collapse__repeats=[1, 1]), 6))
    assert not any(reacting(control([*history(*[0.5] * 6, width=8)[:3], *narrow[3:]], collapse__repeats=[1, 1]), 6))
    assert any(reacting(control([*narrow[:3], *history(*[0.15] * 6, width=8)[3:]], collapse__repeats=[1, 1]), 6))


def test_nothing_is_judged_before_a_window_or_without_memorys_end_or_where_the_control_is_off() -> None:
    past = history(0.5, 0.1, 0.01, 0.01)
    assert reacting(control(past), 4) == [False, False, True, True]
    assert control(past).reaction(None) is None
    assert not any(reacting(control(past, collapse__enabled=False), 4))


def test_more_repetitions_than_at_the_start_are_reacted_to_where_all_duplicates_are_dropped_too() -> None:
    every = [slots(0, "", "", "", ""), slots(1, "", "", "", "")]
    every += [slots(2, "", "", "", dropped=("e00-0",)), slots(3, dropped=("e00-0", "e00-1", "e00-0", "e00-0"))]
    made = control([(one, closing(one, 0.5 if one.members else 0.0)) for one in every])
    assert reacting(made, 4) == [False, False, False, True]  # 0, 0, 1 of 8, 5 of 8
    assert reaction(made, 3).record.repeats == pytest.approx(5 / 8)
    assert reaction(made, 3).record.vendi == 0.5


def test_a_generation_in_which_nothing_was_admitted_is_in_no_window() -> None:
    past = history(0.5, 0.5, 0.1)
    empty = slots(3)
    made = control([*past, (empty, closing(empty, 0.0))], collapse__repeats=[1, 1])
    assert reaction(made, 3).record == reaction(made, 2).record


def test_closings_beyond_memorys_end_change_nothing() -> None:
    past = history(0.5, 0.5, 0.1, 0.1, 0.6, 0.6)
    whole = control(past)
    for newest in range(6):
        assert whole.reaction(newest) == control(past[: newest + 1]).reaction(newest)


@pytest.mark.parametrize("seed", range(20))
def test_a_closing_that_comes_twice_or_out_of_turn_changes_nothing(seed: int) -> None:
    past = history(0.5, 0.4, 0.3, 0.2, 0.5, 0.5, 0.3, 0.1)
    calm = control(past)
    expected = [calm.reaction(newest) for newest in range(len(past))]
    assert len({found is None for found in expected}) == 2
    rng = random.Random(seed)
    shuffled = rng.sample(past, len(past))
    made = CollapseControl(controlled(), {closed.generation: closed for closed, _ in rng.sample(past, len(past))})
    for place, (_, record) in enumerate(shuffled):
        made.note(record)
        made.note(closing(rng.choice(shuffled[: place + 1])[0], 0.9))  # another copy: it comes too late
        made.reaction(rng.randrange(len(past)))  # asked for too early: nothing of it may stay
    assert [made.reaction(newest) for newest in range(len(past))] == expected


# --- what --------------------------------------------------------------------------------------------------------------------


def test_a_cluster_is_whoever_repeats_it_or_one_of_those_and_duplicates_count_with_whom_they_repeat() -> None:
    every = [slots(0, "", ""), slots(1, "e00-0", "", "", "e00-1"), slots(2, "e01-0", "e01-3", dropped=("e01-0", "gone"))]
    clusters = Clusters({one.generation: one for one in reversed(every)}, 2)
    assert [clusters.first_of(name) for name in ("e02-0", "e02-1", "e01-2")] == ["e00-0", "e00-1", "e01-2"]
    assert clusters.largest([0, 1, 2], 1) == {("logic", "e00-0"): 4, ("maths", "e00-1"): 3}
    assert clusters.largest([1, 2], 9) == {("logic", "e00-0"): 3, ("maths", "e00-1"): 2}  # e01-1 and e01-2 are alone
    assert clusters.largest([1], 9) == {}
    assert Clusters({one.generation: one for one in every}, 1).largest([2], 9) == {}


def test_of_equally_large_clusters_of_a_skill_the_lower_id_is_blocked() -> None:
    one = slots(0, "", "", "", "", "e00-2", "", "e00-0")
    assert Clusters({0: one}, 0).largest([0], 1) == {("logic", "e00-0"): 2}


def test_a_cluster_of_two_skills_is_blocked_where_it_is_large_and_counted_by_skill() -> None:
    past = history(0.5, 0.5)
    third = slots(2, "e00-0", "e00-0", "e00-0", "e00-1", "e00-0", "e00-1")  # two of skill maths repeat e00-1, one e00-0
    made = control([*past, (third, closing(third, 0.1))])
    found = reaction(made, 2)
    assert found.record.blocked == {"e00-0": 3, "e00-1": 2}
    assert found.blocked == {"e00-0", "e02-0", "e02-2", "e02-4", "e00-1", "e02-3", "e02-5"}  # e02-1 is of the other skill


def line(env_id: str, kind: str = "best") -> MemoryLine:
    return MemoryLine(env_id=env_id, kind=kind, skill="logic", source="s", hint="h", win_rate=0.5, regret=0.0)


def test_a_prompt_shows_fewer_seeds_none_of_a_blocked_cluster_and_names_its_newest_environment() -> None:
    made = control(history(0.5, 0.5, 0.1, 0.1))
    found = reaction(made, 3)
    assert found.record.blocked == {"e00-0": 2, "e00-1": 2}
    assert found.blocked == {"e00-0", "e00-1", "e02-2", "e02-3", "e03-2", "e03-3"}
    given = [line("e02-2"), line("e01-0"), line("e01-1"), line("e00-0", "easy"), line("e01-2", "hard")]
    shown = made.adapt(given, "logic", 3)
    assert [(one.kind, one.env_id) for one in shown] == [("best", "e01-0"), ("repeated", "e03-2"), ("hard", "e01-2")]
    assert (shown[1].source, shown[1].win_rate, shown[1].regret) == ("of e03-2", 0.25, 0.125)
    assert [one.env_id for one in made.adapt(given, "maths", 3)] == ["e01-0", "e03-3", "e01-2"]
    assert made.adapt(given, "logic", 1) == given
    assert control(history(0.5, 0.5, 0.1, 0.1), memory__enabled=False).adapt([], "logic", 3) == []


def test_an_evicted_environment_is_not_named() -> None:
    past = history(0.5, 0.5, 0.1)
    past.append((slots(3, "", "", "e00-0"), closing(slots(3, "", "", "e00-0"), 0.1, evicted=("e03-2",))))
    (shown,) = control(past).adapt([], "logic", 3)
    assert shown.env_id == "e02-2"


def test_the_nano_model_is_told_nothing_of_a_blocked_cluster() -> None:
    shown = control(history(0.5, 0.5, 0.1, 0.1)).adapt([line("e02-2"), line("e00-0", "easy")], "logic", 3)
    assert [one.kind for one in shown] == ["repeated"]
    assert memory_labels([msgspec.structs.replace(one, source="class ChainEnv:\n    size = 3\n") for one in shown]) == []


def drawn(recipe: Recipe, found: Reaction | None, attempt: int = 0) -> list[Any]:
    memory: dict[int, list[MemoryLine]] = {slot: [] for slot in range(6)}
    documents = [Document(document_id=f"d{number:02d}", title="", text="t", skill=SKILLS[number % 2]) for number in range(60)]
    return fill_slots("run", recipe, documents, 6, attempt, memory, None, found.record if found else None)


def test_each_slot_gets_a_document_of_its_own_and_keeps_skill_and_group() -> None:
    recipe = controlled(design__per_document=3)
    found = reaction(control(history(0.5, 0.5, 0.1)), 2)
    calm, apart = drawn(recipe, None), drawn(recipe, found)
    assert [len({slot.document.document_id for slot in one}) for one in (calm, apart)] == [2, 6]
    assert [(slot.skill, slot.group, slot.env_id) for slot in calm] == [(slot.skill, slot.group, slot.env_id) for slot in apart]
    again = drawn(recipe, found, attempt=1)
    assert not {slot.document.document_id for slot in again[:3]} & {slot.document.document_id for slot in apart[:3]}
    kept = drawn(controlled(design__per_document=3, collapse__own_documents=False), found)
    assert [slot.document for slot in kept] == [slot.document for slot in calm]
    single = controlled()
    assert [slot.document for slot in drawn(single, found)] == [slot.document for slot in drawn(single, None)]


def test_documents_are_borrowed_only_while_it_reacts() -> None:
    found = reaction(control(history(0.5, 0.5, 0.1)), 2)
    for own in (True, False):
        recipe = controlled(corpus__enabled=False, collapse__borrow_documents=True, collapse__own_documents=own)
        assert {slot.document.document_id for slot in drawn(recipe, None)} == {""}
        assert "" not in {slot.document.document_id for slot in drawn(recipe, found)}
    assert {slot.document.document_id for slot in drawn(controlled(corpus__enabled=False), found)} == {""}


def test_the_recipe_tells_whether_documents_are_read_and_refuses_a_control_that_can_do_nothing() -> None:
    assert not build_recipe({"corpus": {"enabled": False}}).reads_corpus
    assert controlled(corpus__enabled=False, collapse__borrow_documents=True).reads_corpus
    assert not build_recipe({}).collapse.enabled
    assert not build_recipe({"algorithm": "published"}).collapse.enabled
    with pytest.raises(SettingsError, match=r"collapse\.enabled needs memory\.enabled or corpus\.enabled"):
        controlled(memory__enabled=False, corpus__enabled=False)
    with pytest.raises(SettingsError, match='with pool = "fixed" nobody designs'):
        build_recipe({"pool": "fixed", "collapse": {"enabled": True}})
    with pytest.raises(SettingsError, match="reacts below the first, stops from the second on"):
        controlled(collapse__vendi=[0.9, 0.8])
    with pytest.raises(SettingsError, match="stops up to the first, reacts above the second"):
        controlled(collapse__repeats=[0.3, 0.2])
    assert request_bytes(controlled(), 1000) > request_bytes(controlled(collapse__enabled=False), 1000)


# --- the stage ---------------------------------------------------------------------------------------------------------------


class Driver:
    """A design join whose first generations stand in the log."""

    def __init__(self, past: list[tuple[SlotsClosed, GenerationClosed]], *more: Record, **over: Any) -> None:
        self.join = DesignJoin("run", controlled(**over), DOCUMENTS)
        known: list[Record] = [policy("run", version) for version in range(20)]
        self.offset = -1
        self.openings = self.join.recover([self.place(one) for one in [*known, *itertools.chain(*past), *more]]).openings

    def place(self, record: Record) -> Positioned:
        self.offset += 1
        return Positioned(BY_RECORD[type(record)], 0, self.offset, record)

    def open(self, generation: int, lines: list[MemoryLine]) -> list[DesignRequested]:
        outputs = self.join.open(generation, [lines] * count_blocks(self.join.recipe), time_is_up=False)
        return [emit.record for emit in outputs.records if isinstance(emit.record, DesignRequested)]

    def accept(self, *records: Record) -> list[DesignRequested]:
        emits = [emit for record in records for emit in self.join.accept(self.place(record)).records]
        return [emit.record for emit in emits if isinstance(emit.record, DesignRequested)]


def test_requests_of_a_reacting_generation_tell_why_and_are_the_same_after_a_restart() -> None:
    past = history(0.5, 0.5, 0.1, 0.1, 0.1, 0.1)
    lines = [line("e02-2"), line("e01-0"), line("e01-1")]
    first = Driver(past)
    assert first.openings == [6]  # which sees memory up to 4
    requested = first.open(6, lines)
    why = reaction(control(past), 4).record
    assert [request.reaction for request in requested] == [why, why]
    assert why.told == (
        "in generations 3 to 4 Vendi/n 0.100 (at the start 0.500), repetitions 50% (at the start 0%). Since generation 2 closed: "
        "1 seeds a prompt at most, 2 clusters blocked"
    )
    for slot in [slot for request in requested for slot in request.slots]:
        assert [one.env_id for one in slot.memory] == ["e01-0", "e04-2" if slot.skill == "logic" else "e04-3"]
    refused = [one for one in answer(requested[0], Shares(invalid=1.0)) if BY_RECORD[type(one)] is not Topic.ENV_PROPOSED]
    (again,) = first.accept(*refused)
    assert (again.design_attempt, again.reaction, again.slots[0].memory) == (1, why, requested[0].slots[0].memory)

    half = Driver(past, requested[0])
    assert half.openings == [6]
    assert half.open(6, lines) == requested[1:]
    assert half.accept(*refused) == [again]


def test_while_diversity_is_well_requests_are_those_of_a_run_without_the_control() -> None:
    past = history(0.5, 0.5, 0.5, 0.5, 0.5, 0.5)
    given = [[line("e02-2"), line("e01-0")], [line("e00-0", "easy")]]
    for lines in given:
        ours = Driver(past, collapse__repeats=[1, 1], design__per_document=3).open(6, lines)
        assert ours == Driver(past, collapse__enabled=False, design__per_document=3).open(6, lines)
        assert [one.reaction for one in ours] == [None, None]


def requests(world: World) -> list[DesignRequested]:
    return [one for one in world.records(Topic.DESIGN_REQUESTED) if isinstance(one, DesignRequested)]


def told(world: World) -> dict[int, str]:
    return {one.generation: one.reaction.told if one.reaction else "" for one in requests(world)}


def documents(world: World) -> dict[str, str]:
    return {slot.env_id: slot.document.document_id for one in requests(world) for slot in one.slots}


def test_diversity_comes_back_while_it_reacts_and_timing_and_restarts_change_no_request() -> None:
    recipe = controlled(corpus__enabled=False, collapse__borrow_documents=True, memory__probe_environments=0, schedule__steps=16)
    shares = Shares(alike_from=4)
    calm = World(recipe, shares, 0)
    calm.run()
    vendi = {one.generation: one.vendi for one in calm.records(Topic.GENERATION_CLOSED) if isinstance(one, GenerationClosed)}
    reacted = [generation for generation, why in sorted(told(calm).items()) if why]
    assert len(vendi) == 16
    assert min(reacted) == 6  # generation 4 is the first that is alike, and 6 the first that sees it
    assert all(vendi[generation] > 0.3 for generation in (*range(4), *reacted))
    assert all(vendi[generation] < 0.2 for generation in range(4, 16) if generation not in reacted)
    assert len(reacted) < 10  # and it stopped in between
    assert {one.generation: bool(one.slots[0].document.document_id) for one in requests(calm)} == {
        generation: generation in reacted for generation in range(16)
    }
    for seed in range(3):
        disturbed = World(recipe, shares, seed + 1, restart=0.05)
        disturbed.run()
        assert disturbed.restarts
        assert told(disturbed) == told(calm)
        assert documents(disturbed) == documents(calm)
        assert disturbed.plan() == calm.plan()


def test_the_store_holds_why_a_prompt_was_changed_and_the_environments_story_tells_it() -> None:
    why = reaction(control(history(0.5, 0.5, 0.1)), 2).record
    for found, stored in ((why, why.told), (None, "")):
        request = DesignRequested(
            run_id="run", event_id="u", unit_id="u", generation=4, design_attempt=0, policy_version=0,
            settings=SamplingSettings(), slots=drawn(controlled(), None), reaction=found,
        )  # fmt: skip
        rows = [row for table, row in rows_of(Topic.DESIGN_REQUESTED, request, 0, 0) if table == "prompts"]
        assert {row["reaction"] for row in rows} == {stored}
        out = Console(width=200, record=True, file=io.StringIO())
        for part in story(Lineage("run", 4, rows[0]["env_id"], rows[0])):
            out.print(part)
        shown = " ".join(out.export_text().split())
        assert ("The collapse control changed what was asked" in shown) == bool(stored)
        assert stored[:60] in shown
