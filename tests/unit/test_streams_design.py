"""The design stage: what is asked for, when slots close, and what they close with."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from infra.sourcetext import PERMUTATIONS
from schemas.common import Record
from schemas.design import DesignRequested, Document, EnvProposed, EnvRejected, EnvValidated, MemoryLine, SlotsClosed
from schemas.recipes import build_recipe
from schemas.run import RunEnding
from schemas.settings import GAMES_SKILLS, Recipe
from schemas.topics import BY_RECORD
from streams.design import DesignJoin
from streams.generation import close_generation
from streams.slots import active_skills, block_document, count_blocks, cut_document, draw_pass
from streams.stage import Outputs, Positioned
from tests.streamworld import DOCUMENTS, Shares, answer, policy, small_recipe

SOUND = Shares(invalid=0.0)
REFUSED = Shares(invalid=1.0)


class Driver:
    """Feeds a design join and answers its openings with given memory."""

    def __init__(self, recipe: Recipe | None = None) -> None:
        self.recipe = recipe or small_recipe()
        self.join = DesignJoin("run", self.recipe, DOCUMENTS)
        self.offset = -1

    def place(self, record: Record) -> Positioned:
        self.offset += 1
        return Positioned(BY_RECORD[type(record)], 0, self.offset, record)

    def begin(self, *past: Record) -> list[int]:
        return self.join.recover([self.place(record) for record in (policy("run", 0), *past)]).openings

    def open(self, generation: int, *, time_is_up: bool = False, lines: list[MemoryLine] | None = None) -> list[Record]:
        memory = [list(lines or []) for _ in range(count_blocks(self.recipe))]
        return [emit.record for emit in self.join.open(generation, memory, time_is_up=time_is_up).records]

    def accept(self, *records: Record) -> Outputs:
        outputs = Outputs()
        for record in records:
            outputs.add(self.join.accept(self.place(record)))
        return outputs


def requests_in(records: list[Any]) -> list[DesignRequested]:
    return [record for record in records if isinstance(record, DesignRequested)]


def closed_in(outputs: Outputs) -> SlotsClosed:
    (record,) = [emit.record for emit in outputs.records if isinstance(emit.record, SlotsClosed)]
    return record


def verdicts(requests: list[DesignRequested], shares: Shares) -> list[Any]:
    return [one for request in requests for one in answer(request, shares) if not isinstance(one, EnvProposed)]


def test_generations_open_in_turn_where_policy_and_memory_allow() -> None:
    driver = Driver()
    assert driver.begin() == [0]
    assert len(requests_in(driver.open(0))) == 2
    assert driver.open(0) == []  # asked twice, opened once
    assert driver.join.open(1, [[] for _ in range(6)], time_is_up=False).openings == []  # 2 waits for generation 0 in memory


def test_a_frozen_designer_stays_version_zero_whatever_is_trained() -> None:
    versions = {}
    for designer in ("frozen", "trained"):
        driver = Driver(small_recipe(designer=designer, schedule__memory_lag=4, schedule__steps=12))
        driver.begin(*(policy("run", version) for version in range(1, 6)))
        versions[designer] = [{one.policy_version for one in requests_in(driver.open(generation))} for generation in range(4)]
    assert versions == {"frozen": [{0}, {0}, {0}, {0}], "trained": [{0}, {0}, {1}, {3}]}


def test_units_hold_all_slots_once_with_skills_in_turn_and_fresh_ids() -> None:
    driver = Driver()
    driver.begin()
    slots = [slot for request in requests_in(driver.open(0)) for slot in request.slots]
    assert [slot.slot for slot in slots] == list(range(6))
    assert Counter(slot.skill for slot in slots) == {"logic": 3, "maths": 3}
    assert len({slot.env_id for slot in slots}) == len({slot.sampling_seed for slot in slots}) == 6


def test_rejected_slots_of_a_unit_are_asked_again_as_one_unit_once_its_last_verdict_is_in() -> None:
    driver = Driver()
    driver.begin()
    first, second = requests_in(driver.open(0))
    refused, sound = verdicts([first], REFUSED), verdicts([first], SOUND)
    assert driver.accept(refused[0], sound[1]).records == []
    (again,) = requests_in([emit.record for emit in driver.accept(refused[2]).records])
    assert [(slot.slot, slot.design_attempt) for slot in again.slots] == [(0, 1), (2, 1)]
    documents = {slot.slot: slot.document.document_id for slot in first.slots}
    assert all(slot.document.document_id != documents[slot.slot] for slot in again.slots)
    assert driver.accept(*verdicts([again], SOUND)).records == []  # the other unit is open
    closed = driver.accept(*verdicts([second], SOUND))
    assert [member.slot for member in closed_in(closed).members] == list(range(6))
    assert len(closed.finished) == 8


def test_slots_out_of_attempts_are_missing_with_their_reason_and_rejected_designs_do_not_outnumber_members() -> None:
    driver = Driver()
    driver.begin()
    first, second = requests_in(driver.open(0))
    outputs = driver.accept(*verdicts([first], REFUSED), *verdicts([second], SOUND))
    (again,) = requests_in([emit.record for emit in outputs.records])
    closed = closed_in(driver.accept(*verdicts([again], REFUSED)))
    assert [(slot.slot, slot.reason) for slot in closed.missing] == [(slot, "parse: no fence") for slot in range(3)]
    assert (closed.proposed, closed.rejected_by_rule) == (9, {"parse": 6})
    assert [(design.slot, design.design_attempt) for design in closed.rejected] == [(0, 0), (0, 1), (1, 0)]


def test_lost_designs_are_not_trained_and_published_trains_no_rejected_one() -> None:
    driver = Driver(small_recipe(design__attempts=1))
    driver.begin()
    first, second = requests_in(driver.open(0))
    lost = [msgspec.structs.replace(one, rule="lost") for one in verdicts([first], REFUSED)]
    closed = closed_in(driver.accept(*lost, *verdicts([second], SOUND)))
    assert (closed.rejected, closed.rejected_by_rule) == ([], {"lost": 3})
    driver = Driver(small_recipe(algorithm="published", design__attempts=1))
    driver.begin()
    first, second = requests_in(driver.open(0))
    assert closed_in(driver.accept(*verdicts([first], REFUSED), *verdicts([second], SOUND))).rejected == []


def test_near_duplicates_are_dropped_in_slot_order_or_kept_and_told() -> None:
    for mode, kept in (("drop", [0, 1, 2, 3]), ("penalise", list(range(6)))):
        driver = Driver(small_recipe(design__duplicate=mode))
        driver.begin()
        closed = closed_in(driver.accept(*verdicts(requests_in(driver.open(0)), SOUND)[::-1]))
        assert [member.slot for member in closed.members] == kept
    assert [member.repeated for member in closed.members] == [0, 0, 0, 0, 1.0, 1.0]
    assert not any(member.identical for member in closed.members)  # each slot has a group of its own here


def test_who_is_repeated_is_named_by_the_first_of_equals_and_counted_by_the_closing() -> None:
    first = []
    for mode in ("drop", "penalise"):
        driver = Driver(small_recipe(design__duplicate=mode, schedule__steps=12))
        driver.begin(*[policy("run", version) for version in range(1, 9)])
        zero, _, two = (closed_in(driver.accept(*verdicts(requests_in(driver.open(g)), SOUND))) for g in range(3))
        names = [member.env_id for member in zero.members]
        closed = close_generation("run", driver.recipe, two, {}, {})
        assert closed.repeated == {names[0]: 2, names[1]: 2, names[2]: 1, names[3]: 1}  # slots 4 and 5 are as 0 and 1
        first.append([one.repeats for one in two.duplicates] + [one.repeats for one in two.members])
    assert first[0] == first[1] == [*names[:4], *names[:2]]


def test_duplicates_of_closed_generations_count_up_to_the_memory_lag_only() -> None:
    recipe = small_recipe(design__duplicate="drop", schedule__steps=12)
    driver = Driver(recipe)
    driver.begin(*[policy("run", version) for version in range(1, 9)])
    closed = [closed_in(driver.accept(*verdicts(requests_in(driver.open(generation)), SOUND))) for generation in range(2)]
    assert [len(slots.members) for slots in closed] == [4, 4]  # generation 1 sees no memory: its copies of 0 stay
    third = closed_in(driver.accept(*verdicts(requests_in(driver.open(2)), SOUND)))
    assert (third.members, len(third.duplicates)) == ([], 6)
    assert third.rejected_by_rule == {"duplicate": 6}


def test_a_signature_of_another_length_repeats_nobody_and_stops_nothing() -> None:
    driver = Driver(small_recipe(design__duplicate="drop", schedule__steps=12))
    driver.begin(*[policy("run", version) for version in range(1, 9)])
    for generation in range(3):  # the third is compared with the first
        judged = verdicts(requests_in(driver.open(generation)), SOUND)
        forged = [[], [0] * 63, [0] * 65, *[[0] * PERMUTATIONS] * 3]
        given = [msgspec.structs.replace(one, signature=mark) for one, mark in zip(judged, forged, strict=True)]
        closed = closed_in(driver.accept(*given))
        assert [member.slot for member in closed.members][:3] == [0, 1, 2]
        assert len(closed.duplicates) == (3 if generation == 2 else 2)


def test_signatures_of_earlier_generations_come_from_the_log_after_a_restart() -> None:
    recipe = small_recipe(design__duplicate="drop", schedule__steps=12)
    first = Driver(recipe)
    first.begin(*[policy("run", version) for version in range(1, 9)])
    past: list[Any] = [policy("run", version) for version in range(1, 9)]
    for generation in range(2):
        requested = requests_in(first.open(generation))
        judged = verdicts(requested, SOUND)
        past += [*requested, *judged, closed_in(first.accept(*judged))]
    second = Driver(recipe)
    second.begin(*past)
    third = closed_in(second.accept(*verdicts(requests_in(second.open(2)), SOUND)))
    assert len(third.duplicates) == 6


def test_time_that_is_up_ends_the_run_before_the_next_generation_never_before_the_first() -> None:
    driver = Driver()
    driver.begin()
    assert len(requests_in(driver.open(0, time_is_up=True))) == 2
    (ending,) = driver.open(1, time_is_up=True)
    assert isinstance(ending, RunEnding)
    assert ending.last_generation == 0
    assert driver.open(1) == []


def test_generation_that_was_half_open_at_a_kill_is_completed_whatever_the_time() -> None:
    first = Driver()
    first.begin()
    zero = requests_in(first.open(0))
    half, rest = requests_in(first.open(1))
    second = Driver()
    assert second.begin(*zero, half) == [1]
    (completed,) = requests_in(second.open(1, time_is_up=True))
    assert completed.slots == rest.slots


def test_memory_lines_of_a_generation_are_kept_for_its_later_attempts_and_over_a_restart() -> None:
    line = MemoryLine(env_id="e", kind="best", skill="logic", source="s", hint="h", win_rate=0.5, regret=0.2)
    driver = Driver()
    driver.begin()
    requested = requests_in(driver.open(0, lines=[line]))
    assert all(slot.memory == [line] for request in requested for slot in request.slots)
    restarted = Driver()
    restarted.begin(*requested)
    (again,) = requests_in([emit.record for emit in restarted.accept(*verdicts(requested[:1], REFUSED)).records])
    assert all(slot.memory == [line] for slot in again.slots)


def test_verdict_of_a_closed_generation_is_finished_at_once() -> None:
    driver = Driver()
    driver.begin()
    judged = verdicts(requests_in(driver.open(0)), SOUND)
    driver.accept(*judged)
    late = driver.accept(judged[0])
    assert (late.records, len(late.finished)) == ([], 1)
    assert isinstance(judged[0], EnvValidated | EnvRejected)


def test_slots_of_one_document_share_it_their_skill_and_their_group() -> None:
    driver = Driver(small_recipe(design__per_document=3))
    driver.begin()
    slots = [slot for request in requests_in(driver.open(0)) for slot in request.slots]
    for block in (slots[:3], slots[3:]):
        assert len({(slot.document.document_id, slot.skill, slot.group) for slot in block}) == 1
    assert slots[0].group != slots[3].group


def test_three_of_six_skills_are_active_in_turn() -> None:
    recipe = build_recipe({})
    assert active_skills(recipe, 0) == list(GAMES_SKILLS[:3])
    assert active_skills(recipe, 1) == list(GAMES_SKILLS[3:])
    assert active_skills(recipe, 2) == active_skills(recipe, 0)


def test_documents_of_a_generation_differ_fit_their_skill_and_depend_on_the_seed() -> None:
    tagged = [
        Document(document_id=f"{skill}{n}", title="", text="t", skill=skill) for skill in ("logic", "maths") for n in range(8)
    ]
    recipe = small_recipe()
    drawn = [block_document(recipe, tagged, 3, block, attempt) for attempt in range(2) for block in range(6)]
    assert len({document.document_id for document in drawn}) == 12
    assert [document.skill for document in drawn[:6]] == ["logic", "maths"] * 3
    other = [block_document(small_recipe(seed=1), tagged, 3, block, 0) for block in range(6)]
    assert other != drawn[:6]


def drawn_by_tag(recipe: Recipe, documents: list[Document], generations: range) -> list[Document]:
    return [
        block_document(recipe, documents, generation, block, attempt)
        for generation in generations
        for attempt in range(2)
        for block in range(6)
    ]


def test_documents_are_drawn_of_the_recipes_tags_in_turn_an_equal_share_whatever_the_corpus_holds() -> None:
    held = {"math": 12, "science": 6, "code": 30, "": 40}
    documents = [
        Document(document_id=f"{tag}{n}", title="", text="t", tag=tag) for tag, count in held.items() for n in range(count)
    ]
    recipe = small_recipe(corpus__tags=["math", "code"])
    drawn = drawn_by_tag(recipe, documents, range(4))
    assert Counter(one.tag for one in drawn) == {"math": 24, "code": 24}
    for skill in range(2):
        own = [one for place, one in enumerate(drawn) if place % 2 == skill]
        assert Counter(one.document_id for one in own if one.tag == "math") == Counter(f"math{n}" for n in range(12))  # one pass
        assert len({one.document_id for one in own if one.tag == "code"}) == 12
    everything = drawn_by_tag(small_recipe(), documents, range(4))
    assert {one.tag for one in everything} == set(held)


def test_a_resumed_run_draws_what_the_undisturbed_one_draws() -> None:
    documents = [
        Document(document_id=f"{tag}{n}", title="", text="t", tag=tag) for tag in ("math", "science", "code") for n in range(7)
    ]
    recipe = small_recipe(corpus__tags=["math", "science", "code"])
    whole = drawn_by_tag(recipe, documents, range(9))
    assert drawn_by_tag(recipe, documents, range(5, 9)) == whole[5 * 12 :]
    assert block_document(recipe, documents, 8, 5, 1) == whole[-1]
    assert drawn_by_tag(small_recipe(corpus__tags=["math", "science", "code"], seed=1), documents, range(9)) != whole


def test_documents_of_a_tag_fit_the_skill_where_any_does() -> None:
    documents = [
        Document(document_id=f"{skill}{tag}{n}", title="", text="t", tag=tag, skill=skill)
        for skill, tag in (("logic", "math"), ("maths", "math"), ("maths", "code"))
        for n in range(4)
    ]
    drawn = drawn_by_tag(small_recipe(corpus__tags=["math", "code"]), documents, range(2))
    assert {one.skill for one in drawn if one.tag == "math"} == {"logic", "maths"}
    assert {one.skill for place, one in enumerate(drawn) if place % 2 == 0 and one.tag == "code"} == {"maths"}  # logic has none


def test_passes_over_the_corpus_use_every_document_before_any_comes_again() -> None:
    drawn = [index for generation in range(5) for index in draw_pass(10, generation * 4, 4, "seed")]
    assert Counter(drawn[:10]) == Counter(range(10))
    assert Counter(draw_pass(3, 0, 7, "seed")).total() == 7
    assert len(set(draw_pass(10, 8, 6, "seed"))) == 6


def test_corpus_that_is_off_gives_no_document() -> None:
    assert block_document(small_recipe(corpus__enabled=False), DOCUMENTS, 0, 0, 0).document_id == ""


def test_document_is_cut_after_the_recipes_words() -> None:
    long = Document(document_id="d", title="", text="one two\nthree four")
    assert cut_document(long, 3).text == "one two three"
    assert cut_document(long, 4) is long
