"""From records to tensors: positions, distributions and order, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.common import Reference, SamplingSettings, Span, VersionSpan, pack_floats, pack_ints
from schemas.design import EnvProposed
from schemas.errors import TrainingError
from schemas.rollout import RolloutFinished
from schemas.train import AGENT, DESIGNER, Sample
from trainer.packing import Trajectory, pack, read_trajectories

WARM = SamplingSettings(temperature=0.6, top_p=0.95, top_k=20, max_tokens=10)
COOL = SamplingSettings(temperature=0.3)


def span(start: int, end: int, values: SamplingSettings = WARM) -> Span:
    return Span(start=start, end=end, policy_version=0, policy_digest="", settings=values)


def sample(identity: str, role: str, advantage: float = 1.0) -> Sample:
    reference = Reference(topic="t", partition=0, offset=0, id=identity)
    return Sample(reference=reference, sample_id=identity, role=role, advantage=advantage, policy_version=0, lag=1)


def play(identity: str, length: int, spans: list[Span], **more: Any) -> RolloutFinished:
    fields: dict[str, Any] = {
        "run_id": "r",
        "event_id": identity,
        "play_id": identity,
        "unit_id": "u",
        "env_id": "e",
        "arm": "plain",
        "step": 0,
        "generation": 0,
        "index": 0,
        "env_seed": 0,
        "plays_expected": 1,
        "tokens": pack_ints(range(100, 100 + length)),
        "logprobs": pack_floats([-0.5 * position for position in range(length)]),
        "spans": spans,
    }
    return RolloutFinished(**(fields | more))


def design(identity: str) -> EnvProposed:
    names: dict[str, Any] = {"run_id": "r", "event_id": identity, "env_id": identity, "unit_id": "u"}
    names |= {"skill": "", "document_id": "", "group": ""}
    return EnvProposed(
        **names,
        generation=0,
        slot=0,
        design_attempt=0,
        prompt_tokens=pack_ints([1, 2, 3]),
        completion_tokens=pack_ints([7, 8, 9]),
        logprobs=pack_floats([-1, -2, -3]),
        spans=[span(0, 3, COOL)],
        parse_error="refused designs are trained from their proposal too",
    )


def test_a_sample_whose_spans_are_of_other_policies_than_the_batch_says_is_refused() -> None:
    spans = [msgspec.structs.replace(span(2 * number, 2 * number + 1), policy_version=number) for number in (3, 4)]
    records = {"p": play("p", 9, spans)}
    told = msgspec.structs.replace(sample("p", AGENT), versions=VersionSpan(oldest=3, newest=4))
    assert len(read_trajectories([told], records)[0]) == 1
    with pytest.raises(TrainingError, match="its spans are of policies 3 to 4, the batch says policies 4 to 4"):
        read_trajectories([msgspec.structs.replace(told, versions=VersionSpan(oldest=4, newest=4))], records)


def test_a_play_gives_the_positions_of_its_spans_with_their_own_settings() -> None:
    records = {"p": play("p", 9, [span(2, 4), span(6, 9, COOL)])}
    (found,), table = read_trajectories([sample("p", AGENT)], records)
    assert found.tokens.tolist() == list(range(100, 109))
    assert found.actions.tolist() == [2, 3, 6, 7, 8]
    assert found.sampled.tolist() == [-1.0, -1.5, -3.0, -3.5, -4.0]
    assert found.settings.tolist() == [0, 0, 1, 1, 1]
    assert [(row.temperature, row.top_p, row.top_k) for row in table] == [(0.6, 0.95, 20), (0.3, 1.0, 0)]


def test_a_design_is_its_prompt_then_its_completion_and_only_the_latter_is_trained() -> None:
    (found,), _ = read_trajectories([sample("d", DESIGNER)], {"d": design("d")})
    assert found.tokens.tolist() == [1, 2, 3, 7, 8, 9]
    assert found.actions.tolist() == [3, 4, 5]
    assert found.sampled.tolist() == [-1.0, -2.0, -3.0]


@pytest.mark.parametrize(
    ("record", "role", "message"),
    [
        (None, AGENT, "missing"),
        (design("x"), AGENT, "EnvProposed"),
        (play("x", 5, []), DESIGNER, "RolloutFinished"),
        (play("x", 5, [span(2, 9)]), AGENT, r"\[2, 9\) does not fit"),
        (play("x", 5, [span(0, 2)]), AGENT, r"\[0, 2\) does not fit"),
        (play("x", 5, [span(2, 4), span(3, 5)]), AGENT, r"\[3, 5\) does not fit"),
        (play("x", 5, [], logprobs=pack_floats([0.0])), AGENT, "5 tokens and 1 log-prob"),
        (play("x", 5, [], lost="worker death"), AGENT, "worker death"),
    ],
)
def test_a_record_that_does_not_fit_its_sample_is_refused(record: Any, role: str, message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        read_trajectories([sample("x", role)], {} if record is None else {"x": record})


def trajectory(length: int, actions: list[int], advantage: float, role: str = AGENT) -> Trajectory:
    where = np.array(actions, np.int64)
    return Trajectory(
        "t", role, advantage, 0, np.arange(length), where, -where.astype(np.float32), np.zeros(len(where), np.int64)
    )


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(2, 40), st.sampled_from([0.0, 1.0, -2.0]), st.integers(0, 6)), min_size=1, max_size=25),
    st.integers(8, 120),
)
def test_packing_holds_every_action_token_once_under_its_own_prefix_within_the_bound(
    rows: list[tuple[int, float, int]], limit: int
) -> None:
    trajectories = [trajectory(length, list(range(1, min(1 + count, length))), advantage) for length, advantage, count in rows]
    weights = [0.1 * (index + 1) for index in range(len(rows))]
    micros = pack(trajectories, weights, range(len(rows)), limit)
    seen = []
    for micro in micros:
        assert micro.ids.numel() <= limit or micro.ids.shape[0] == 1
        for row, column, target, sampled, weight in zip(
            micro.row.tolist(),
            micro.column.tolist(),
            micro.target.tolist(),
            micro.sampled.tolist(),
            micro.weight.tolist(),
            strict=True,
        ):
            position = micro.index[row]
            one = trajectories[position]
            assert micro.ids[row, : column + 1].tolist() == one.tokens[: column + 1].tolist()
            assert target == one.tokens[column + 1]
            assert sampled == -(column + 1)
            assert weight == pytest.approx(weights[position], rel=1e-6)
            assert micro.gradient == (one.advantage != 0)
            seen.append((position, column + 1))
    assert sorted(seen) == [(index, action) for index, one in enumerate(trajectories) for action in one.actions.tolist()]


def test_all_gradients_puts_flat_samples_among_the_others() -> None:
    trajectories = [trajectory(5, [2], 0.0), trajectory(5, [2], 1.0)]
    assert [micro.gradient for micro in pack(trajectories, [1, 1], [0, 1], 100)] == [True, False]
    assert [micro.gradient for micro in pack(trajectories, [1, 1], [0, 1], 100, all_gradients=True)] == [True]
