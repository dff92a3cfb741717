"""The token ids that were sampled are the ids that are trained: nothing between sampler and tensors spells them out and back."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.dialects import Dialect
from infra.dialects.nano import EOS, HINT, PLAY, SAY, SPECIAL_TOKENS, NanoDialect
from infra.runs import find_folder
from schemas.codec import decode, encode
from schemas.common import Record, Reference, SamplingSettings
from schemas.design import DesignRequested, DesignSlot, Document, EnvProposed
from schemas.rollout import HINTED, PLAIN, Play, PlayEnvironment, RolloutFinished, RolloutRequested
from schemas.topics import BY_RECORD
from schemas.train import AGENT, DESIGNER, Sample
from tests.fakes.sampler import HashSampler
from tests.fakes.sandbox import FakeSandbox
from trainer.packing import MicroBatch, Trajectory, pack, read_trajectories
from workers.design import write_designs
from workers.episodes import Episode, Rules, play_all
from workers.rollout import finished
from workers.samplers.base import SampleRequest, SampleResult
from workers.sessions import SessionTable

MODEL = find_folder("trainer/nano/model")
SETTINGS = SamplingSettings(temperature=0.7, top_p=0.9, top_k=5, max_tokens=7)
SCRIPT = """
OBSERVATIONS = {observations!r}
class ScriptEnv:
    def __init__(self, max_turns=25): self.at = 0
    def reset(self, seed=None): return OBSERVATIONS[0], {{}}
    def step(self, action):
        self.at += 1
        return OBSERVATIONS[self.at], 0.5, self.at == len(OBSERVATIONS) - 1, False, {{}}
"""

anything = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
texts = st.lists(st.one_of(anything, st.sampled_from(SPECIAL_TOKENS), st.just("\n > turn 0 <")), max_size=5).map("".join)


class SpyDialect(NanoDialect):
    """Notes every text that is made into tokens."""

    def __init__(self) -> None:
        super().__init__(MODEL)
        self.encoded: list[str] = []

    def encode(self, text: str) -> list[int]:
        self.encoded.append(text)
        return super().encode(text)


class NotingSampler(HashSampler):
    """Any ids of the vocabulary, marks and halves of letters among them, each with a log-probability of its own."""

    def __init__(self, vocabulary: int = 0) -> None:
        super().__init__(vocabulary=vocabulary or vocabulary_size(), context_tokens=4000)
        self.policy_version, self.policy_digest = 3, "d3"
        self.noted: dict[str, list[tuple[SampleRequest, SampleResult]]] = {}

    def complete(self, request: SampleRequest) -> SampleResult:
        drawn = super().complete(request)
        logprobs = [told_logprob(request.seed, place) for place in range(len(drawn.tokens))]
        result = SampleResult(drawn.tokens, logprobs, drawn.stop_reason)
        self.noted.setdefault(request.session or str(request.seed), []).append((request, result))
        return result


@functools.cache
def vocabulary_size() -> int:
    from tokenizers import Tokenizer

    return int(Tokenizer.from_file(str(MODEL / "tokenizer.json")).get_vocab_size())


def told_logprob(seed: int, place: int) -> float:
    """A float32 in (-20, 0)."""
    digest = hashlib.blake2b(f"{seed}/{place}".encode(), digest_size=4).digest()
    return float(np.float32(-20 * (int.from_bytes(digest, "little") + 1) / (2**32 + 1)))


def through_the_log(record: Record) -> Any:
    return decode(BY_RECORD[type(record)], encode(record))


def sample_of(record: Any, role: str, advantage: float) -> Sample:
    topic = BY_RECORD[type(record)].wire
    place = Reference(topic=topic, partition=0, offset=0, id=record.event_id)
    return Sample(reference=place, sample_id=record.event_id, role=role, advantage=advantage, policy_version=3, lag=0)


def play_unit(
    plays: Sequence[tuple[str, str, list[str]]], sampler: HashSampler, dialect: Dialect, context: int
) -> list[RolloutFinished]:
    """Plays (arm, hint, observations) through the rollout worker's own steps, and through the log."""
    environments = [
        PlayEnvironment(
            env_id=f"e{number}",
            source=SCRIPT.format(observations=observations),
            hint=hint,
            witness_min_return=0.5,
            reward_min=0.0,
        )
        for number, (_, hint, observations) in enumerate(plays)
    ]
    request = RolloutRequested(
        run_id="r",
        event_id="u",
        unit_id="u",
        step=0,
        generation=0,
        policy_version=3,
        settings=SETTINGS,
        max_turns=9,
        context_tokens=context,
        environments=environments,
        plays=[
            Play(play_id=f"p{number}", env_id=f"e{number}", arm=arm, index=number, env_seed=0, sampling_seed=1000 + number)
            for number, (arm, _, _) in enumerate(plays)
        ],
        plays_expected={one.env_id: 1 for one in environments},
    )
    asked = through_the_log(request)
    episodes = [Episode(play, asked.environments[play.index], asked.max_turns) for play in asked.plays]
    rules = Rules(asked.settings, asked.max_turns, asked.context_tokens, "lowest")
    play_all(episodes, sampler, SessionTable(FakeSandbox(), tries=1), dialect, rules)
    return [through_the_log(finished(asked, episode, rules)) for episode in episodes]


def rows_of(micros: Sequence[MicroBatch], index: int) -> list[tuple[list[int], int, float]]:
    """(ids that the model sees before it, token, log-probability when sampled) of every trained token of a trajectory."""
    found = []
    for micro in micros:
        for row, column, target, sampled in zip(
            micro.row.tolist(), micro.column.tolist(), micro.target.tolist(), micro.sampled.tolist(), strict=True
        ):
            if micro.index[row] == index:
                found.append((micro.ids[row, : column + 1].tolist(), target, sampled))
    return found


def expected_rows(drawn: Sequence[tuple[SampleRequest, SampleResult]]) -> list[tuple[list[int], int, float]]:
    """The same, as the sampler saw it: its own prompt and what it had drawn behind it."""
    return [
        ([*request.prompt, *result.tokens[:place]], token, logprob)
        for request, result in drawn
        for place, (token, logprob) in enumerate(zip(result.tokens, result.logprobs, strict=True))
    ]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([PLAIN, HINTED]), texts, st.lists(texts, min_size=2, max_size=6)), min_size=1, max_size=4),
    st.integers(24, 400),
    st.integers(64, 2000),
)
def test_an_episodes_sampled_ids_contexts_and_log_probabilities_are_what_is_trained(
    plays: list[tuple[str, str, list[str]]], context: int, micro_batch_tokens: int
) -> None:
    sampler, dialect = NotingSampler(), SpyDialect()
    records = play_unit(plays, sampler, dialect, context)
    shown = {text for _, hint, observations in plays for text in (hint, *observations)}
    assert set(dialect.encoded) <= shown, "only what the environment and the hint said is ever made into tokens"

    known: dict[str, Record] = {record.event_id: record for record in records}
    trajectories, table = read_trajectories([sample_of(one, AGENT, 1.0) for one in records], known)
    assert all((row.temperature, row.top_p, row.top_k) == (0.7, 0.9, 5) for row in table)
    micros = pack(trajectories, [1.0] * len(records), range(len(records)), micro_batch_tokens)
    for number, (record, trajectory) in enumerate(zip(records, trajectories, strict=True)):
        drawn = sampler.noted.get(record.play_id, [])
        assert len(drawn) == len(record.turns)
        assert rows_of(micros, number) == expected_rows(drawn)
        check_masks(record, trajectory, drawn)
        check_marks(plays[number], record, trajectory, dialect)


def check_masks(record: RolloutFinished, trajectory: Trajectory, drawn: Sequence[tuple[SampleRequest, SampleResult]]) -> None:
    """The trained positions are those that were sampled: all of them, no other, each where its turn says."""
    ranges = [(turn.action_start, turn.action_end) for turn in record.turns]
    assert ranges == [(span.start, span.end) for span in record.spans]
    assert ranges == [(len(request.prompt), len(request.prompt) + len(result.tokens)) for request, result in drawn]
    assert trajectory.actions.tolist() == [place for start, end in ranges for place in range(start, end)]
    assert trajectory.tokens[trajectory.actions].tolist() == [token for _, result in drawn for token in result.tokens]
    assert trajectory.sampled.tolist() == [logprob for _, result in drawn for logprob in result.logprobs]


def check_marks(play: tuple[str, str, list[str]], record: RolloutFinished, trajectory: Trajectory, dialect: NanoDialect) -> None:
    """What others wrote opens no turn and ends none: the marks in shown text are the dialect's own, the rest reads as it was."""
    arm, hint, observations = play
    tokens, last = trajectory.tokens.tolist(), 0
    for number, turn in enumerate(record.turns):
        piece = tokens[last : turn.action_start]
        last = turn.action_end
        marks = [token for token in piece if token < len(SPECIAL_TOKENS)]
        hinted = arm == HINTED and number == 0
        assert marks == ([PLAY, HINT, SAY] if hinted else [PLAY, SAY])
        assert (piece[0], piece[-1]) == (PLAY, SAY)
        middle = piece[1:-1]
        if hinted:
            at = middle.index(HINT)
            assert dialect.decode(middle[at + 1 :]) == hint
            middle = middle[:at]
        assert dialect.decode(middle) == observations[number] == turn.observation


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(texts, texts, texts), min_size=1, max_size=4))
def test_a_designs_sampled_ids_are_what_is_trained_behind_its_prompt(slots: list[tuple[str, str, str]]) -> None:
    sampler, dialect = NotingSampler(), SpyDialect()
    request = DesignRequested(
        run_id="r",
        event_id="u",
        unit_id="u",
        generation=0,
        design_attempt=0,
        policy_version=3,
        settings=SETTINGS,
        slots=[
            DesignSlot(
                slot=number,
                design_attempt=0,
                env_id=f"d{number}",
                skill=skill,
                document=Document(document_id="", title=title, text=text),
                group="g",
                sampling_seed=number,
            )
            for number, (skill, title, text) in enumerate(slots)
        ],
    )
    proposals: list[EnvProposed] = [through_the_log(one) for one in write_designs(through_the_log(request), sampler, dialect)]
    asked = len(dialect.encoded)
    known: dict[str, Record] = {one.event_id: one for one in proposals}
    trajectories, _ = read_trajectories([sample_of(one, DESIGNER, 1.0) for one in proposals], known)
    micros = pack(trajectories, [1.0] * len(proposals), range(len(proposals)), 500)
    for number, trajectory in enumerate(trajectories):
        drawn = sampler.noted[str(number)]
        assert rows_of(micros, number) == expected_rows(drawn)
        assert trajectory.tokens.tolist() == [*drawn[0][0].prompt, *drawn[0][1].tokens]
    assert len(dialect.encoded) == asked == len(slots), "one prompt a slot, and nothing else is made into tokens"


def test_ids_that_a_tokenizer_would_write_otherwise_are_kept_as_they_were_drawn() -> None:
    dialect = SpyDialect()
    whole = next(token for token in range(len(SPECIAL_TOKENS), vocabulary_size()) if len(dialect.decode([token])) == 2)
    halves = [dialect.encode(letter)[0] for letter in dialect.decode([whole])]
    assert dialect.encode(dialect.decode(halves)) == [whole] != halves

    class Stuttering(HashSampler):
        def complete(self, request: SampleRequest) -> SampleResult:
            return SampleResult([*halves, EOS], [-0.25, -0.5, -1.0], "stop")

    sampler = Stuttering(context_tokens=400)
    (record,) = play_unit([(PLAIN, "", ["a", "b"])], sampler, dialect, 100)
    (trajectory,), _ = read_trajectories([sample_of(record, AGENT, 1.0)], {record.event_id: record})
    assert trajectory.tokens[trajectory.actions].tolist() == [*halves, EOS]
    assert trajectory.sampled.tolist() == [-0.25, -0.5, -1.0]
