"""The batch stage and the closing of generations: rewards, advantages, what a batch holds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from schemas.common import Record, Reference
from schemas.design import Member, MissingSlot, RejectedDesign, SlotsClosed
from schemas.recipes import build_recipe
from schemas.rollout import EARLIER_HINTED, EARLIER_PLAIN, HINTED, PLAIN
from schemas.score import ArmScore, EnvScored, GenerationClosed, PlayReturn
from schemas.settings import Recipe
from schemas.topics import BY_RECORD
from schemas.train import AGENT, DESIGNER, BatchReady
from streams.batch import BatchJoin
from streams.generation import close_generation, planned_scale
from streams.regret import Averages, Regret, mean, paired_regret
from streams.stage import Outputs, Positioned
from tests.streamworld import small_recipe

PROPOSAL = Reference(topic="spade-env-proposed", partition=0, offset=0, id="p")


def make_member(slot: int, **changes: Any) -> Member:
    values: dict[str, Any] = {
        "env_id": f"env-{slot}",
        "slot": slot,
        "design_attempt": 0,
        "skill": "logic",
        "document_id": "d",
        "group": "g",
        "source": f"def step(a): return {slot}",
        "hint": "Halve the range.",
        "proposal": PROPOSAL,
        "source_digest": "",
        "witness_min_return": 1.0,
        "reward_min": 0.0,
    }
    return Member(**values | changes)


def make_slots(members: list[Member], **changes: Any) -> SlotsClosed:
    values: dict[str, Any] = {"run_id": "run", "event_id": "slots", "generation": 0, "policy_version": 0, "members": members}
    return SlotsClosed(**values | changes)


def make_arm(env_id: str, step: int, arm: str, returns: list[float]) -> ArmScore:
    plays = [
        PlayReturn(
            play_id=f"{env_id}/{step}/{arm}/{index}",
            index=index,
            episode_return=value,
            won=value > 0.5,
            reference=Reference(topic="spade-rollout-finished", partition=0, offset=index, id=f"{env_id}/{step}/{arm}/{index}"),
        )
        for index, value in enumerate(returns)
    ]
    return ArmScore(arm=arm, plays=plays, mean=mean(returns), win_rate=mean([float(value > 0.5) for value in returns]))


def make_score(env_id: str, step: int, plain: list[float], hinted: list[float] | None = None, **changes: Any) -> EnvScored:
    regret = Regret()
    arms = [make_arm(env_id, step, PLAIN, plain)]
    if hinted is not None:
        arms.append(make_arm(env_id, step, HINTED, hinted))
        regret = paired_regret(list(enumerate(hinted)), list(enumerate(plain)))
    values: dict[str, Any] = {
        "run_id": "run",
        "event_id": f"{env_id}@{step}",
        "env_id": env_id,
        "step": step,
        "generation": 0,
        "arms": arms,
        "regret": regret.mean,
        "regret_se": regret.error,
        "pairs": regret.pairs,
    }
    return EnvScored(**values | changes)


class Driver:
    def __init__(self, recipe: Recipe) -> None:
        self.join = BatchJoin("run", recipe)
        self.offset = -1

    def place(self, record: Record) -> Positioned:
        self.offset += 1
        return Positioned(BY_RECORD[type(record)], 0, self.offset, record)

    def learn(self, record: Record) -> Outputs:
        return self.join.learn(self.place(record))

    def accept(self, *records: Record) -> Outputs:
        outputs = Outputs()
        for record in records:
            outputs.add(self.join.accept(self.place(record)))
        return outputs


def one_step_recipe(**overrides: Any) -> Recipe:
    """K = 1: every step is a generation."""
    return small_recipe(**{"schedule": {"steps": 3, "interval": 1, "delay": 1, "lag": 1, "lead": 1, "memory_lag": 2}} | overrides)


def batches_in(outputs: Outputs) -> list[BatchReady]:
    return [emit.record for emit in outputs.records if isinstance(emit.record, BatchReady)]


def close(
    recipe: Recipe, slots: SlotsClosed, scores: list[EnvScored], averages: dict[str, Averages] | None = None
) -> GenerationClosed:
    return close_generation("run", recipe, slots, {(score.env_id, score.step): score for score in scores}, averages or {})


def test_default_recipes_have_the_papers_designer_scale() -> None:
    assert planned_scale(build_recipe({})) == 32
    assert planned_scale(build_recipe({"algorithm": "published"})) == 32
    assert planned_scale(build_recipe({"schedule": {"interval": 8, "delay": 8}})) == 50


def test_window_mean_regret_and_win_rates_make_the_reward() -> None:
    recipe = one_step_recipe()
    closed = close(recipe, make_slots([make_member(0)]), [make_score("env-0", 0, [0.0, 1.0], [1.0, 1.0])])
    (design,) = closed.designs
    assert (design.w, design.win_rate, design.hint_win_rate, design.regret) == (0.5, 0.5, 1.0, 0.5)
    assert design.reward == pytest.approx(0.6 + 0.4 * 1.0)  # lower bound .5 - .6 * .5 = .2 is above .15
    assert (closed.win_rate, closed.hint_win_rate, closed.valid) == (0.5, 1.0, 1)


@pytest.mark.parametrize(
    ("earlier", "credited"),
    [
        ({"earlier_regret": 0.5, "earlier_regret_se": 0.1, "earlier_pairs": 4}, True),
        ({"earlier_regret": 0.1, "earlier_regret_se": 0.5, "earlier_pairs": 4}, False),  # may be noise
        ({"earlier_regret": -0.5, "earlier_regret_se": 0.1, "earlier_pairs": 4}, False),
        ({"earlier_regret": 1.0, "earlier_pairs": 1}, False),  # one pair says nothing
    ],
)
def test_regret_earns_only_where_the_hint_helps_the_earlier_policy_too(earlier: dict[str, Any], credited: bool) -> None:
    recipe = one_step_recipe(rollout__earlier_plays=4)
    (design,) = close(recipe, make_slots([make_member(0)]), [make_score("env-0", 0, [0.0, 1.0], [1.0, 1.0], **earlier)]).designs
    assert design.uncredited is not credited
    assert design.reward == pytest.approx(1.0 if credited else 0.6)  # the anchor stays
    assert (design.regret, design.earlier_regret) == (0.5, earlier["earlier_regret"])


def test_samples_of_the_earlier_policy_are_never_trained() -> None:
    driver = Driver(one_step_recipe(rollout__earlier_plays=2, rollout__train_hint_arm=True))
    score = make_score("env-0", 0, [0.0, 1.0], [1.0, 1.0])
    check = [make_arm("env-0", 0, arm, [0.0, 1.0]) for arm in (EARLIER_PLAIN, EARLIER_HINTED)]
    driver.learn(make_slots([make_member(0)]))
    (batch,) = batches_in(driver.accept(msgspec.structs.replace(score, arms=[*score.arms, *check])))
    assert {sample.arm for sample in batch.samples} == {PLAIN, HINTED}


def test_window_counts_plain_plays_of_all_steps_and_regret_of_the_first() -> None:
    recipe = small_recipe()
    scores = [make_score("env-0", 0, [0.0, 0.0], [1.0, 1.0]), make_score("env-0", 1, [1.0, 0.0])]
    (design,) = close(recipe, make_slots([make_member(0)]), scores).designs
    assert (design.w, design.regret) == (0.25, 1.0)


def test_rejected_designs_count_in_their_skills_mean_with_reward_zero() -> None:
    recipe = one_step_recipe()
    rejected = RejectedDesign(env_id="no", slot=1, design_attempt=0, skill="logic", group="g", rule="parse", proposal=PROPOSAL)
    slots = make_slots([make_member(0)], rejected=[rejected], rejected_by_rule={"parse": 1}, proposed=2)
    closed = close(recipe, slots, [make_score("env-0", 0, [0.0, 1.0], [1.0, 1.0])])
    scale = planned_scale(recipe)
    assert [design.advantage for design in closed.designs] == pytest.approx([0.5 * scale, -0.5 * scale])
    assert [(design.valid, design.trained, design.reward) for design in closed.designs][1] == (False, True, 0.0)
    assert closed.designer_reward == 1.0  # the mean over members


def test_frozen_designer_is_scored_and_never_trained() -> None:
    closed = close(one_step_recipe(designer="frozen"), make_slots([make_member(0)]), [make_score("env-0", 0, [1.0, 0.0])])
    assert [(design.trained, design.advantage) for design in closed.designs] == [(False, 0.0)]
    assert closed.designs[0].reward > 0


def test_evicted_design_earns_zero_and_is_named() -> None:
    scores = [make_score("env-0", 0, [0.0, 1.0], [1.0, 1.0], evicted="audit"), make_score("env-1", 0, [0.0, 1.0], [1.0, 1.0])]
    designs = close(one_step_recipe(), make_slots([make_member(0), make_member(1)]), scores).designs
    assert [(design.reward, design.trained, design.evicted) for design in designs] == [(0.0, True, "audit"), (1.0, True, "")]


def test_design_whose_plays_were_all_lost_is_neither_rewarded_nor_blamed() -> None:
    scores = [make_score("env-0", 0, [], [], lost=4), make_score("env-1", 0, [0.0, 1.0], [1.0, 1.0])]
    closed = close(one_step_recipe(), make_slots([make_member(0), make_member(1)]), scores)
    assert [(design.trained, design.advantage) for design in closed.designs] == [(False, 0.0), (True, 0.0)]
    assert closed.lost == 4
    assert (closed.win_rate, closed.hint_win_rate, closed.designer_reward) == (0.5, 1.0, 1.0), "of the one that was played"


def test_design_without_a_hint_earns_no_regret() -> None:
    scores = [make_score(f"env-{slot}", 0, [0.0, 1.0], [1.0, 1.0]) for slot in range(2)]
    designs = close(one_step_recipe(), make_slots([make_member(0, hint=" "), make_member(1)]), scores).designs
    assert [(design.regret, design.pairs) for design in designs] == [(0.0, 0), (0.5, 2)]
    assert designs[0].reward == pytest.approx(0.6)


def test_identical_code_in_a_group_costs_a_share_and_groups_are_normalised_apart() -> None:
    recipe = one_step_recipe(design__advantage="z-score", design__advantage_group="document", design__identical_penalty=0.2)
    members = [make_member(0), make_member(1, identical=True), make_member(2, group="other")]
    scores = [make_score(f"env-{slot}", 0, [0.0, 1.0], [1.0, 1.0]) for slot in range(3)]
    designs = close(recipe, make_slots(members), scores).designs
    assert [design.reward for design in designs] == pytest.approx([1.0, 0.8, 1.0])
    assert [design.advantage for design in designs] == pytest.approx([1.0, -1.0, 0.0], abs=1e-6)


def test_identical_code_costs_where_rewards_are_negative_too() -> None:
    recipe = one_step_recipe(design__signal="regret", design__regret_bound="mean", design__identical_penalty=0.2)
    scores = [make_score(f"env-{slot}", 0, [1.0, 1.0], [0.0, 1.0]) for slot in range(2)]
    designs = close(recipe, make_slots([make_member(0), make_member(1, identical=True)]), scores).designs
    assert [design.reward for design in designs] == pytest.approx([-0.5, -0.6])


def test_published_anchor_takes_the_mean_as_it_is_and_noise_counts() -> None:
    recipe = one_step_recipe(algorithm="published", schedule__memory_lag=1)
    (design,) = close(recipe, make_slots([make_member(0)]), [make_score("env-0", 0, [0.0, 1.0], [1.0, 1.0])]).designs
    assert design.reward == pytest.approx(1.0)


def test_learning_potential_comes_from_closed_generations_only() -> None:
    recipe = one_step_recipe(design__signal="learning-potential")
    slots, scores = make_slots([make_member(0)]), [make_score("env-0", 0, [0.0, 1.0], [1.0, 1.0])]
    assert close(recipe, slots, scores).designs[0].reward == 0.0
    assert close(recipe, slots, scores, {"logic": Averages(0.9, 0.9)}).designs[0].reward == pytest.approx(0.13 * 0.4)


def test_empty_generation_is_closed_with_its_cause_and_its_batch_is_a_record() -> None:
    driver = Driver(one_step_recipe())
    missing = [MissingSlot(slot=0, env_id="e", reason="parse: no fence")]
    outputs = driver.learn(make_slots([], missing=missing, proposed=1, rejected_by_rule={"parse": 1}))
    closed, batch = (emit.record for emit in outputs.records)
    assert isinstance(closed, GenerationClosed)
    assert closed.empty == "no environment out of 1 designs (parse 1)"
    assert isinstance(batch, BatchReady)
    assert (batch.step, batch.samples, batch.drain) == (0, [], False)


def drive(recipe: Recipe) -> tuple[Driver, list[BatchReady]]:
    """Three one-step generations of one environment each, to the drain batch."""
    driver, batches = Driver(recipe), []
    for generation in range(3):
        member = make_member(generation)
        driver.learn(make_slots([member], generation=generation, event_id=f"slots-{generation}"))
        score = make_score(member.env_id, generation, [0.0, 1.0], [1.0, 1.0], generation=generation)
        batches += batches_in(driver.accept(score))
    return driver, batches


def test_designer_samples_come_a_delay_later_and_the_last_in_a_drain_batch() -> None:
    _, batches = drive(one_step_recipe())
    assert [batch.step for batch in batches] == [0, 1, 2, 3]
    designers = [[sample.sample_id for sample in batch.samples if sample.role == DESIGNER] for batch in batches]
    assert designers == [[], ["env-0"], ["env-1"], ["env-2"]]
    drain = batches[-1]
    assert (drain.drain, drain.generation, drain.designer_generation) == (True, -1, 2)
    assert [(sample.policy_version, sample.lag) for sample in drain.samples] == [(0, 3)]


def test_agent_samples_are_the_plain_plays_with_their_advantages_and_lag() -> None:
    _, batches = drive(one_step_recipe())
    samples = [sample for sample in batches[2].samples if sample.role == AGENT]
    assert [sample.sample_id for sample in samples] == ["env-2/2/plain/0", "env-2/2/plain/1"]
    assert [sample.advantage for sample in samples] == pytest.approx([-1.0, 1.0], abs=1e-6)
    assert {(sample.policy_version, sample.lag, sample.arm) for sample in samples} == {(1, 1, PLAIN)}


def test_hint_arm_is_trained_where_the_recipe_says_in_a_group_of_its_own_or_shared() -> None:
    _, apart = drive(one_step_recipe(rollout__train_hint_arm=True))
    _, shared = drive(one_step_recipe(rollout__train_hint_arm=True, rollout__advantage_group="environment"))
    hinted = [[s.advantage for s in batches[0].samples if s.arm == HINTED] for batches in (apart, shared)]
    assert hinted[0] == [0.0, 0.0]
    assert hinted[1] == pytest.approx([0.5774, 0.5774], abs=1e-3)
    assert all(sample.arm != HINTED for batch in drive(one_step_recipe())[1] for sample in batch.samples)


def test_batches_keep_their_order_though_scores_of_a_later_step_come_first() -> None:
    driver = Driver(one_step_recipe())
    for generation in range(2):
        driver.learn(make_slots([make_member(generation)], generation=generation))
    later = driver.accept(make_score("env-1", 1, [1.0, 0.0], [1.0, 1.0], generation=1))
    assert (later.records, later.finished) == ([], [])
    outputs = driver.accept(make_score("env-0", 0, [1.0, 0.0], [1.0, 1.0]))
    assert [batch.step for batch in batches_in(outputs)] == [0, 1]
    assert len(outputs.finished) == 2


def test_evicted_environment_is_left_out_of_the_batch_of_its_step_and_counted() -> None:
    driver = Driver(one_step_recipe())
    driver.learn(make_slots([make_member(0), make_member(1)]))
    outputs = driver.accept(make_score("env-0", 0, [0.0, 1.0], evicted="audit"), make_score("env-1", 0, [0.0, 1.0]))
    (batch,) = batches_in(outputs)
    assert {sample.sample_id.split("/")[0] for sample in batch.samples} == {"env-1"}
    assert batch.evicted == 1


def test_scores_are_held_until_generation_and_batches_are_out_and_not_wanted_after() -> None:
    recipe = small_recipe()
    driver = Driver(recipe)
    driver.learn(make_slots([make_member(0)]))
    first = driver.accept(make_score("env-0", 0, [0.0, 1.0], [1.0, 1.0]))
    assert (len(batches_in(first)), first.finished) == (1, [])
    second = driver.accept(make_score("env-0", 1, [0.0, 1.0]))
    assert len(second.finished) == 2
    restarted = Driver(recipe)
    restarted.join.recover(
        [restarted.place(emit.record) for emit in [*first.records, *second.records]]
        + [restarted.place(make_slots([make_member(0)]))]
    )
    late = restarted.accept(make_score("env-0", 1, [0.0, 1.0]))
    assert (late.records, len(late.finished)) == ([], 1)


def test_moving_averages_after_a_restart_are_those_of_the_log() -> None:
    recipe = one_step_recipe(design__signal="learning-potential")
    driver, outputs = Driver(recipe), Outputs()
    returns = [[1.0, 1.0], [0.0, 0.0], [0.0, 1.0]]
    for generation in range(2):
        outputs.add(driver.learn(make_slots([make_member(generation)], generation=generation)))
        outputs.add(driver.accept(make_score(f"env-{generation}", generation, returns[generation], generation=generation)))
    restarted = Driver(recipe)
    restarted.join.recover([restarted.place(emit.record) for emit in outputs.records])
    closings = []
    for each in (driver, restarted):
        each.learn(make_slots([make_member(2)], generation=2))
        closings.append(next(e.record for e in each.accept(make_score("env-2", 2, returns[2], generation=2)).records))
    assert closings[0] == closings[1]
    assert getattr(closings[0], "designer_reward", 0.0) > 0.0
