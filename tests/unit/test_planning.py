"""The arithmetic of a run against cases counted by hand, and what makes a run impossible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.cli.app import run_app
from infra.cli.options import read_recipe
from infra.planning import Plan, find_shape, make_plan
from infra.planning.memory import GIB, state_bytes
from infra.planning.shapes import BACKBONES
from infra.planning.storage import play_bytes
from schemas.codec import encode
from schemas.common import SamplingSettings, Span, pack_floats, pack_ints
from schemas.errors import ModelError
from schemas.recipes import build_recipe
from schemas.rollout import RolloutFinished, Turn
from streams.generation import planned_scale

QWEN = ["qwen3-4b-games", "qwen3-4b-tools", "qwen3-8b-games", "qwen3-8b-tools", "qwen3-30b-a3b-games", "qwen3-30b-a3b-tools"]


def plan_of(values: dict[str, Any] | None = None, model: str = "", **overrides: Any) -> Plan:
    """The plan of a recipe without probe plays, unless they are asked for: the paper's numbers have none."""
    dotted = {key.replace("__", "."): value for key, value in overrides.items()}
    return make_plan(build_recipe(values or {}, {"memory.probe_environments": 0, **dotted}), BACKBONES.get(model))


def test_parameters_are_those_of_the_published_models() -> None:
    assert BACKBONES["Qwen3-4B"].parameters == 4_022_468_096
    assert BACKBONES["Qwen3-8B"].parameters == 8_190_735_360
    assert BACKBONES["Qwen3-30B-A3B"].parameters == 30_532_122_624
    assert BACKBONES["Qwen3-30B-A3B"].active_parameters == 3_353_032_704
    assert BACKBONES["Qwen3-8B"].cache_bytes_a_token == 2 * 2 * 36 * 8 * 128 == 147_456


def test_the_shipped_models_parameters_are_counted_from_its_config() -> None:
    shape = find_shape(Path(__file__).parents[2] / "trainer/nano/model")
    assert shape is not None
    assert shape.parameters == 886_144


def test_plays_of_the_published_run() -> None:
    """24 environments: 192 plays a step; 16 x 24 = 384 hint plays a generation; 100 generations of 4 x 192 + 384."""
    plays = plan_of({"algorithm": "published"}).plays
    assert (plays.generations, plays.steps, plays.drains) == (100, 400, 1)
    assert (plays.a_step, plays.first_step, plays.a_generation, plays.in_all) == (192, 576, 1152, 115_200)
    assert (plays.agent_batch, plays.agent_batch_most) == (192, 192)
    assert (plays.designer_batch, plays.designer_batch_most) == (24, 24)
    assert plays.designs_most == 100 * 24 * 5


def test_plays_of_the_mended_run() -> None:
    """8 hint plays in place of 16; rejected designs are trained, at most as many as valid ones."""
    plays = plan_of().plays
    assert (plays.first_step, plays.a_generation, plays.in_all) == (384, 960, 96_000)
    assert (plays.designer_batch, plays.designer_batch_most) == (24, 48)


def test_probe_plays_are_counted_from_the_generation_on_that_remembers_one() -> None:
    plays = plan_of(memory__probe_environments=3, memory__probe_plays=4).plays
    assert (plays.first_step, plays.a_generation) == (384 + 24, 960 + 24)
    assert plays.in_all == 96_000 + 98 * 24
    assert plan_of(memory__enabled=False).plays.first_step == 384


def test_plays_of_an_earlier_policy_and_trained_hint_plays_are_counted() -> None:
    plays = plan_of(rollout__earlier_plays=4, rollout__train_hint_arm=True).plays
    assert plays.first_step == 24 * (8 + 8 + 4 + 4)
    assert (plays.agent_batch, plays.agent_batch_most) == (192, 384)


@pytest.mark.parametrize(
    ("environments", "plain", "interval", "scale"), [(24, 8, 4, 32.0), (24, 8, 8, 50.0), (16, 16, 32, 50.0), (4, 2, 1, 2.0)]
)
def test_designer_scale_is_that_of_the_paper_and_of_the_stream(
    environments: int, plain: int, interval: int, scale: float
) -> None:
    values = {
        "schedule": {"interval": interval, "delay": interval, "steps": interval * 10},
        "design": {"environments": environments},
        "rollout": {"plain_plays": plain, "seeds": 2},
    }
    assert plan_of(values).plays.designer_scale == scale == planned_scale(build_recipe(values))


@pytest.mark.parametrize(
    ("schedule", "agent", "designer", "hidden", "use"),
    [
        ({}, 1, 9, 4, 1.0),  # lag 1, lead K, delay K
        ({"lead": 1}, 1, 6, 1, 4 / 7),  # schedule.md: 57 %
        ({"lag": 0, "lead": 0}, 0, 4, 0, 1 / 3),  # schedule.md: 33 %
        ({"interval": 8, "delay": 8, "lead": 8}, 1, 17, 8, 1.0),
        ({"memory_lag": 1}, 1, 9, 0, 1 / 2),  # memory of the generation before: the lead can't be used
    ],
)
def test_ages_and_hidden_design_time(schedule: dict[str, int], agent: int, designer: int, hidden: int, use: float) -> None:
    ages = plan_of({"schedule": schedule}).ages
    assert (ages.agent, ages.designer, ages.hidden_steps) == (agent, designer, hidden)
    assert ages.use_at_equal_times == pytest.approx(use)


def test_the_published_schedule_trains_designs_four_steps_old() -> None:
    ages = plan_of({"algorithm": "published"}).ages
    assert (ages.agent, ages.designer) == (0, 4)


def test_tokens_of_the_papers_limits() -> None:
    tokens = plan_of().tokens
    assert (tokens.a_play_most, tokens.full_turns_a_play, tokens.a_design_most) == (32_768, 4, 16_384)
    assert tokens.sampled_a_step_most == 192 * 32_768 == 6_291_456
    assert tokens.sampled_a_step_mean == 1_572_864
    assert tokens.sampled_in_all_mean == (96_000 * 32_768 + 2_400 * 16_384) // 4


@pytest.mark.parametrize(("stage", "gigabytes"), [(0, 120.0), (1, 31.4), (2, 16.6), (3, 1.9)])
def test_zero_stages_are_those_of_the_zero_papers_example(stage: int, gigabytes: float) -> None:
    """7.5 billion parameters on 64 processes (Rajbhandari et al. 2020, figure 1)."""
    assert state_bytes(7_500_000_000, "bfloat16", stage, 64) / 1e9 == pytest.approx(gigabytes, abs=0.05)


def test_float32_takes_sixteen_bytes_a_parameter_without_a_second_copy_of_the_weights() -> None:
    assert [state_bytes(1000, "float32", stage, 4) for stage in range(4)] == [16_000, 10_000, 7_000, 4_000]


def test_memory_of_the_trainer_by_hand() -> None:
    """Qwen3-8B in bfloat16 on 4 GPUs: 16 x 8.19 GB whole, 4 x 8.19 + 12 x 8.19 / 4 at stage 1; the KL reference adds 2 x 8.19."""
    plan = plan_of({}, "Qwen3-8B", train__dtype="bfloat16", train__zero_stage=3, machine__trainer_gpus=4)
    assert plan.trainer is not None
    held = {stage.zero_stage: stage.state_gib * GIB / 8_190_735_360 for stage in plan.trainer.stages}
    assert held == {0: pytest.approx(16), 1: pytest.approx(7), 2: pytest.approx(5.5), 3: pytest.approx(4)}
    with_reference = plan_of({}, "Qwen3-8B", train__dtype="bfloat16", train__kl_beta=0.005, machine__trainer_gpus=4)
    assert with_reference.trainer is not None
    assert with_reference.trainer.stages[3].state_gib * GIB / 8_190_735_360 == pytest.approx(6)


def test_memory_of_a_sampler_by_hand() -> None:
    """80 GiB, nine tenths of it used: 72 - 15.26 of weights = 56.7, at 4.5 GiB a play of 32,768 tokens."""
    plan = plan_of({}, "Qwen3-8B", train__dtype="bfloat16", machine__sampler_gpus=4)
    assert plan.sampler is not None
    assert plan.sampler.weights_gib == pytest.approx(15.26, abs=0.01)
    assert plan.sampler.play_gib == 4.5
    assert plan.sampler.plays_at_once == 12


def test_bytes_of_a_play_are_near_those_of_its_record() -> None:
    tokens, turns = 6000, 5
    settings = SamplingSettings()
    record = RolloutFinished(
        run_id="qwen3-8b-games-20260101-120000-ab12",
        event_id="a" * 36,
        causation_id="b" * 36,
        play_id="a" * 36,
        unit_id="c" * 36,
        env_id="d" * 36,
        step=17,
        generation=4,
        arm="plain",
        index=3,
        env_seed=2**31,
        plays_expected=16,
        tokens=pack_ints(range(tokens)),
        logprobs=pack_floats([-0.5] * tokens),
        spans=[Span(start=n, end=n + 1, policy_version=16, policy_digest="e" * 64, settings=settings) for n in range(turns)],
        turns=[
            Turn(observation="o" * 400, action="a" * (tokens * 4 // turns - 400), reward=0.0, action_start=n, action_end=n)
            for n in range(turns)
        ],
        end_reason="terminated",
    )
    assert len(encode(record)) == pytest.approx(play_bytes(tokens), rel=0.05)


def test_bytes_a_day_follow_from_the_pace() -> None:
    recipe = build_recipe({})
    slow, fast = (make_plan(recipe, None, step_s=seconds).storage for seconds in (400.0, 100.0))
    assert fast.kafka_a_step == slow.kafka_a_step
    assert fast.kafka_a_day == pytest.approx(4 * slow.kafka_a_day, abs=4)
    assert slow.kafka_a_day == pytest.approx(slow.kafka_a_step * 216, abs=1)
    mean_plays, mean_tokens = 240, 8192
    assert slow.kafka_a_step > mean_plays * mean_tokens * 12
    assert slow.clickhouse_a_day > mean_plays * mean_tokens * 12 * 216  # texts, token ids and log-probabilities


@pytest.mark.parametrize("name", QWEN)
def test_the_papers_recipes_can_be(name: str) -> None:
    recipe = read_recipe(name)
    plan = make_plan(recipe, find_shape(Path(recipe.model.path)))
    assert plan.problems == []
    assert plan.trainer is not None
    assert plan.sampler is not None
    assert all(pool.idle == 0 for pool in plan.pools)


IMPOSSIBLE: list[tuple[dict[str, Any], str, str]] = [
    ({"train__zero_stage": 1}, "train.zero_stage 1: weights, gradients and optimizer take", "Set train.zero_stage to 3"),
    ({"machine__trainer_gpus": 1}, "on each of 1 GPUs", "Give the trainer 4 such GPUs"),
    ({"machine__gpu_gib": 16.0, "machine__trainer_gpus": 16}, "a sampling worker's GPU has 14.4 of 16 GiB", "larger GPUs"),
    ({"rollout__context_tokens": 65536}, "more than the 40960 positions of the model", "Set it to 40960 at most"),
    ({"rollout__sampling__max_tokens": 40000}, "is more than rollout.context_tokens", "a turn has to fit"),
    ({"design__sampling__max_tokens": 40960}, "leaves a design's prompt no room", "Set it lower"),
    ({"processes__rollout_workers": 14}, "14 workers share 12 partitions, so 2 of them", "Set partitions to at least 14"),
    ({"design__environments": 8192, "design__units": 4}, "a design-requested record can reach", "Set design.units higher"),
    ({"design__environments": 9000, "design__units": 3000}, "a slots-closed record can reach", "Set design.environments lower"),
    ({"design__hint_by_second_call": True, "model__dialect": "nano"}, "design.hint_by_second_call", "Set it to false"),
]


@pytest.mark.parametrize(("overrides", "cause", "fix"), IMPOSSIBLE, ids=[cause for _, cause, _ in IMPOSSIBLE])
def test_an_impossible_run_is_refused_with_reason_and_fix(overrides: dict[str, Any], cause: str, fix: str) -> None:
    base = {"train__dtype": "bfloat16", "train__zero_stage": 3, "machine__trainer_gpus": 4, "machine__sampler_gpus": 4}
    shape_plan = plan_of({}, "Qwen3-8B", **{**base, "machine__gpu_gib": 48.0, **overrides})
    assert any(cause in problem.cause and fix in problem.fix for problem in shape_plan.problems), shape_plan.problems


@pytest.mark.parametrize(("environments", "units", "name"), [(256, 4, "design-requested"), (300, 100, "slots-closed")])
def test_a_record_that_may_outgrow_a_message_is_remarked_on_because_it_can_stand_apart(
    environments: int, units: int, name: str
) -> None:
    plan = plan_of({}, design__environments=environments, design__units=units)
    assert plan.problems == []
    assert any(remark.startswith(f"a {name} record can reach") and "`claims`" in remark for remark in plan.remarks)


def test_workers_that_outnumber_the_units_are_remarked_on() -> None:
    plan = plan_of({}, processes__rollout_workers=6)
    assert "2 of 6 rollout workers find no work: there are 4 units at once" in plan.remarks
    assert plan.problems == []


def test_command_prints_text_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["plan", "qwen3-8b-games"]) == 0
    text = capsys.readouterr().out
    assert "8.19 billion parameters" in text
    assert "ZeRO 3" in text
    assert run_app(["plan", "qwen3-8b-games", "--json", "--step-s", "60"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["plays"]["a_step"], told["storage"]["step_s"], told["problems"]) == (192, 60.0, [])


def test_command_refuses_an_impossible_recipe_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", "qwen3-8b-games", "--set", "train.zero_stage=0", "--set", "processes.validate_workers=20"]
    assert run_app(arguments) == 2
    shown = capsys.readouterr()
    assert shown.out.count("IMPOSSIBLE") == 2
    assert shown.err.startswith("error: train.zero_stage 0: weights, gradients and optimizer take 137.3 GiB")
    assert "1 more" in shown.err
    assert run_app([*arguments, "--json"]) == 2
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 2


def test_a_run_that_can_not_be_is_refused_before_it_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    assert run_app(["run", "tiny", "--set", "processes.rollout_workers=5", "--dir", str(folder)]) == 2
    assert "5 workers share 4 partitions" in capsys.readouterr().err
    assert not folder.exists()


def test_a_models_config_that_is_no_json_is_named_and_another_architecture_is_not_counted(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text("{")
    with pytest.raises(ModelError, match=r"config\.json can't be used"):
        find_shape(tmp_path)
    file.write_text('{"n_embd": 768, "n_layer": 12}')
    assert find_shape(tmp_path) is None
    assert find_shape(tmp_path / "Qwen3-4B-Instruct-2507") == BACKBONES["Qwen3-4B"]
