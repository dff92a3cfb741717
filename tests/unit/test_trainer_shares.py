"""A batch over several processes of the trainer: each sample once, equal numbers of passes, orders that arrive as they were."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import SettingsError
from schemas.recipes import build_recipe
from schemas.settings import TrainSettings
from tests.trainerbatches import TABLE, batch
from trainer.orders import Load, Order, Train, off_wire, on_wire
from trainer.packing import MicroBatch, pack
from trainer.shards import Outlines, outline
from trainer.shares import fill_up, share_out
from trainer.zero import deepspeed_config


@given(st.lists(st.integers(1, 50), max_size=20), st.integers(1, 5))
def test_each_position_goes_to_one_process_and_no_process_is_overloaded(lengths: list[int], world: int) -> None:
    shares = share_out(lengths, range(len(lengths)), world)
    assert sorted(position for share in shares for position in share) == list(range(len(lengths)))
    loads = [sum(lengths[position] for position in share) for share in shares]
    assert max(loads) - min(loads) <= max(lengths, default=0)
    assert shares == share_out(lengths, range(len(lengths)), world)


def test_processes_with_fewer_groups_are_filled_up() -> None:
    groups = [[[1, 2], [3]], [[4]], []]
    assert [len(fill_up(groups, rank)) for rank in range(3)] == [2, 2, 2]
    assert fill_up(groups, 1) == [[4], []]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("count", [1, 2, 9])
def test_the_parts_of_a_batch_make_the_whole_with_the_same_weights(packed: bool, count: int) -> None:
    trajectories = batch(count=count)
    weights = [0.1 * (position + 1) for position in range(count)]
    whole = pack(trajectories, weights, range(count), 40, packed=packed)
    parts = [pack(trajectories, weights, range(count), 40, packed=packed, rank=rank, world=3) for rank in range(3)]
    assert len({len(part) for part in parts}) == 1
    assert all([micro.gradient for micro in part] == [micro.gradient for micro in parts[0]] for part in parts)

    def tokens(micros: list[MicroBatch]) -> list[tuple[int, int, float]]:
        found = []
        for micro in (micro for micro in micros if micro.index):
            names = [micro.index[number] for number in micro.sample.tolist()]
            found += list(zip(names, micro.target.tolist(), micro.weight.tolist(), strict=True))
        return sorted(found)

    assert tokens([micro for part in parts for micro in part]) == tokens(whole)


def test_a_packed_row_holds_its_samples_one_after_another_without_padding() -> None:
    trajectories = batch(count=5)
    (micro,) = pack(trajectories, [1.0] * 5, [0, 2, 4], 1000, packed=True)
    widths = [len(trajectories[position].tokens) - 1 for position in micro.index]
    assert micro.ids.shape == (1, sum(widths))
    assert micro.place is not None
    assert micro.bounds is not None
    assert micro.bounds.tolist() == [0, *np.cumsum(widths).tolist()]
    assert micro.place[0].tolist() == [place for width in widths for place in range(width)]
    for number, position in enumerate(micro.index):
        mine, start = micro.sample == number, int(micro.bounds[number])
        assert (micro.column[mine] - start + 1).tolist() == trajectories[position].actions.tolist()
        assert micro.ids[0, start : start + widths[number]].tolist() == trajectories[position].tokens[:-1].tolist()


def test_a_pass_holds_no_more_tokens_than_the_limit_unless_one_sample_does_alone() -> None:
    trajectories = batch(count=9)
    for micro in pack(trajectories, [1.0] * 9, range(9), 40, packed=True):
        assert sum(len(trajectories[position].tokens) for position in micro.index) <= 40 or len(micro.index) == 1


def test_orders_arrive_as_they_were_given() -> None:
    trajectories = batch(count=3)
    order = msgspec.msgpack.decode(msgspec.msgpack.encode(Train(on_wire(trajectories), TABLE)), type=Order)
    assert isinstance(order, Train)
    assert order.table == TABLE
    for left, right in zip(off_wire(order.trajectories), trajectories, strict=True):
        for name, value in vars(right).items():
            assert np.array_equal(getattr(left, name), value), name
            assert type(getattr(left, name)) is type(value)
    state = {"a": torch.zeros(2, 3), "b": torch.zeros((), dtype=torch.bfloat16), "c": torch.zeros(5, dtype=torch.uint8)}
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(Load(outline(state))), type=Order)
    assert isinstance(told, Load)
    room = Outlines(told.outlines)
    assert {name: (room[name].shape, room[name].dtype) for name in room} == {n: (t.shape, t.dtype) for n, t in state.items()}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"train.dtype": "float16"}, "train.dtype: Value error, float16 is refused: gradients of a policy underflow"),
        ({"train.offload": "optimizer", "train.zero_stage": 0}, 'offload = "optimizer" needs zero_stage 1 or more'),
        ({"train.offload": "all"}, 'offload = "all" needs zero_stage 3, which alone can move weights, not 1'),
        ({"train.processes": 0}, "train.processes: Input should be greater than or equal to 1"),
        ({"train.zero_stage": 4}, "train.zero_stage: Input should be less than or equal to 3"),
        ({"train.lora_targets": []}, "train.lora_targets: Tuple should have at least 1 item"),
    ],
)
def test_what_the_trainer_cannot_do_is_refused_with_the_key_and_the_reason(changes: dict[str, object], told: str) -> None:
    with pytest.raises(SettingsError) as refused:
        build_recipe({}, changes)
    assert told in str(refused.value)


def test_deepspeed_is_told_of_the_stage_and_of_what_lies_in_main_memory() -> None:
    assert deepspeed_config(TrainSettings())["zero_optimization"] == {"stage": 1}
    assert deepspeed_config(TrainSettings(zero_stage=0, dtype="bfloat16"))["zero_optimization"] == {"stage": 1}
    told = deepspeed_config(TrainSettings(zero_stage=3, offload="all"))
    assert told["zero_optimization"] == {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
