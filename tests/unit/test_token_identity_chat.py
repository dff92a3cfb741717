"""The token ids that a chat model sampled are the ids that are trained: thinking, cut turns and hostile observations included.

The steps are those of test_token_identity.py, over the chat dialects and the template families of tests/chatmodels.py. What a
template would do to earlier turns (strip their thinking, trim them) must show nowhere.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.dialects.chat import ChatDialect
from schemas.common import Record
from schemas.rollout import HINTED, PLAIN
from schemas.train import AGENT
from tests.chatmodels import MODELS, write_model
from tests.fakes.sampler import HashSampler
from tests.unit.test_token_identity import NotingSampler, check_masks, expected_rows, play_unit, rows_of, sample_of
from trainer.packing import pack, read_trajectories
from workers.samplers.base import SampleRequest, SampleResult

CONTEXT = 700
anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
hostile = st.sampled_from(["<|im_end|>\n<|im_start|>assistant\n", "<|eot|>", "<end_of_turn>", "</s>", "</think>", "<|im_"])
texts = st.lists(st.one_of(anything, hostile), max_size=4).map("".join)


@functools.cache
def dialect_of(name: str, setting: str) -> ChatDialect:
    return ChatDialect(setting, _folders() / name)


@functools.cache
def _folders() -> Path:
    base = Path(_holder().name)
    for name in MODELS:
        write_model(base / name, name)
    return base


@functools.cache
def _holder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


@pytest.fixture(scope="module", autouse=True)
def _tidy() -> Iterator[None]:
    yield
    _holder().cleanup()


def vocabulary_of(dialect: ChatDialect) -> int:
    return int(dialect._template._tokenizer.get_vocab_size())


class SpeakingSampler(NotingSampler):
    """Any ids; in some turns a whole thought with an action."""

    def __init__(self, dialect: ChatDialect) -> None:
        super().__init__(vocabulary_of(dialect))
        self.dialect = dialect

    def complete(self, request: SampleRequest) -> SampleResult:
        if request.seed % 4 != 1:
            return super().complete(request)
        text = "<think>\n so\n</think>\n\n  \\boxed{1} <answer>1</answer>  \n"
        template = self.dialect._template
        tokens = [*template._encode(text), min(template.stop_ids)][: request.settings.max_tokens]
        result = SampleResult(tokens, [-0.25] * len(tokens), "stop" if tokens[-1] in template.stop_ids else "length")
        self.noted.setdefault(request.session or str(request.seed), []).append((request, result))
        return result


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(sorted(MODELS)),
    st.sampled_from(["games", "tools"]),
    st.lists(st.tuples(st.sampled_from([PLAIN, HINTED]), texts, st.lists(texts, min_size=2, max_size=6)), min_size=1, max_size=3),
    st.integers(300, CONTEXT),
    st.integers(64, 4000),
)
def test_an_episodes_sampled_ids_contexts_and_log_probabilities_are_what_is_trained(
    name: str, setting: str, plays: list[tuple[str, str, list[str]]], context: int, micro_batch_tokens: int
) -> None:
    dialect = dialect_of(name, setting)
    sampler = SpeakingSampler(dialect)
    records = play_unit(plays, sampler, dialect, context)
    known: dict[str, Record] = {record.event_id: record for record in records}
    trajectories, _ = read_trajectories([sample_of(one, AGENT, 1.0) for one in records], known)
    micros = pack(trajectories, [1.0] * len(records), range(len(records)), micro_batch_tokens)
    for number, (record, trajectory) in enumerate(zip(records, trajectories, strict=True)):
        drawn = sampler.noted.get(record.play_id, [])
        assert len(drawn) == len(record.turns)
        assert rows_of(micros, number) == expected_rows(drawn)
        check_masks(record, trajectory, drawn)
        whole: list[int] = []
        for turn, (request, result) in zip(record.turns, drawn, strict=True):
            assert request.prompt[: len(whole)] == whole, "what was seen and sampled before is never written anew"
            assert request.prompt[: turn.action_start] == trajectory.tokens[: turn.action_start].tolist()
            whole = [*request.prompt, *result.tokens]
            read = dialect.read_turn(result.tokens)
            assert (turn.action, turn.fault) == (read.action, read.fault)
            assert bool(turn.cut) == (result.stop_reason == "length")


@pytest.mark.parametrize("name", MODELS)
def test_thinking_stays_in_the_context_of_later_turns_token_by_token(name: str) -> None:
    dialect = dialect_of(name, "games")
    template = dialect._template
    thought = [*template._encode("<think>\n\n deep  \n</think>\n\n \\boxed{7} "), min(template.stop_ids)]

    class Thinker(HashSampler):
        def complete(self, request: SampleRequest) -> SampleResult:
            self.seen = request.prompt
            return SampleResult(thought, [-1.0] * len(thought), "stop")

    sampler = Thinker(context_tokens=4000)
    (record,) = play_unit([(PLAIN, "", ["a", "b", "c"])], sampler, dialect, 4000)
    (trajectory,), _ = read_trajectories([sample_of(record, AGENT, 1.0)], {record.event_id: record})
    assert [turn.action for turn in record.turns] == ["\\boxed{7}"] * 2
    first = record.turns[0]
    assert sampler.seen[first.action_start : first.action_end] == thought
    assert trajectory.tokens[trajectory.actions].tolist() == thought * 2


@pytest.mark.parametrize("name", MODELS)
def test_each_limit_has_its_own_end_and_each_turn_says_what_cut_it(name: str) -> None:
    dialect = dialect_of(name, "games")
    opening = len(dialect.open_play("a", None))

    class Endless(HashSampler):
        def complete(self, request: SampleRequest) -> SampleResult:
            return SampleResult([300] * request.settings.max_tokens, [-1.0] * request.settings.max_tokens, "length")

    observations = ["a", "b", "c", "d"]
    (by_turn,) = play_unit([(PLAIN, "", observations)], Endless(context_tokens=4000), dialect, 4000)
    assert (by_turn.end_reason, [turn.cut for turn in by_turn.turns]) == ("terminated", ["turn"] * 3)
    (by_context,) = play_unit([(PLAIN, "", observations)], Endless(context_tokens=4000), dialect, opening + 3)
    assert (by_context.end_reason, [turn.cut for turn in by_context.turns]) == ("context", ["context"])
    assert len(by_context.tokens) // 4 == opening + 3
    (without_room,) = play_unit([(PLAIN, "", observations)], Endless(context_tokens=4000), dialect, opening)
    assert (without_room.end_reason, without_room.turns) == ("context", [])
