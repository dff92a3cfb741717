"""The design worker's decisions over a sampler without weights: what a proposal holds, hints by a second call, lost units."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from infra.dialects import ParsedDesign
from schemas.common import Reference, SamplingSettings, unpack_floats, unpack_ints
from schemas.design import DesignRequested, DesignSlot, Document
from schemas.topics import Topic
from tests.fakes.dialect import EOS, LetterDialect, encode
from tests.fakes.sampler import HashSampler
from workers.design import DesignWork, HintDialect, write_designs
from workers.episodes import turn_seed
from workers.samplers.base import SampleRequest, SampleResult

AT = Reference(topic="t", partition=0, offset=0, id="u")
TEXTS = {0: "class AEnv|look", 1: "no mark", 2: "class CEnv|count|twice"}


class WritingSampler(HashSampler):
    """Writes TEXTS by seed."""

    def complete(self, request: SampleRequest) -> SampleResult:
        tokens = [*encode(TEXTS.get(request.seed, "a hint")), EOS]
        return SampleResult(tokens, [-0.25] * len(tokens), "stop")


class SecondCallDialect(LetterDialect):
    def hint_prompt(self, source: str) -> list[int]:
        return encode(f"hint for {source}")

    def parse_hint(self, token_ids: Sequence[int]) -> str:
        return self.parse_action(token_ids)


@pytest.fixture
def request_unit() -> DesignRequested:
    document = Document(document_id="d", title="T", text="text")
    slots = [
        DesignSlot(
            slot=n + 4, design_attempt=1, env_id=f"e{n}", skill="Optimization", document=document, group="g", sampling_seed=n
        )
        for n in range(3)
    ]
    return DesignRequested(
        run_id="r",
        event_id="u",
        unit_id="u",
        generation=2,
        design_attempt=1,
        policy_version=7,
        settings=SamplingSettings(),
        slots=slots,
    )


@pytest.fixture
def sampler() -> HashSampler:
    sampler = WritingSampler(context_tokens=500)
    sampler.policy_version, sampler.policy_digest = 7, "d7"
    return sampler


def test_a_unit_is_one_batch_and_each_proposal_holds_tokens_spans_and_what_they_decode_to(
    request_unit: DesignRequested, sampler: HashSampler
) -> None:
    proposals = write_designs(request_unit, sampler, LetterDialect())
    assert len(sampler.batches) == 1
    assert [(one.env_id, one.event_id, one.slot, one.generation, one.causation_id) for one in proposals] == [
        (f"e{n}", f"e{n}", n + 4, 2, "u") for n in range(3)
    ]
    first = proposals[0]
    assert (first.source, first.hint, first.parse_error, first.stop_reason) == ("class AEnv", "look", "", "stop")
    assert unpack_ints(first.prompt_tokens) == encode("Optimization")
    assert unpack_ints(first.completion_tokens) == [*encode(TEXTS[0]), EOS]
    assert unpack_floats(first.logprobs) == [-0.25] * (len(TEXTS[0]) + 1)
    (span,) = first.spans
    assert (span.start, span.end, span.policy_version, span.policy_digest) == (0, len(TEXTS[0]) + 1, 7, "d7")
    assert [one.parse_error for one in proposals] == ["", "1 parts", "3 parts"]
    assert len(unpack_ints(proposals[1].completion_tokens)) == len(TEXTS[1]) + 1  # unreadable ones keep their tokens


def test_a_second_call_writes_the_hint_of_readable_designs_with_its_own_settings_and_untrained(
    request_unit: DesignRequested, sampler: HashSampler
) -> None:
    import msgspec

    cool = SamplingSettings(temperature=0.3, max_tokens=30)
    proposals = write_designs(msgspec.structs.replace(request_unit, hint_settings=cool), sampler, SecondCallDialect())
    (second,) = sampler.batches[1]
    assert second.prompt == encode("hint for class AEnv")
    assert (second.settings, second.seed) == (cool, turn_seed(0, 1))
    assert [one.hint for one in proposals] == ["a hint", "", ""]
    assert unpack_ints(proposals[0].completion_tokens) == [*encode(TEXTS[0]), EOS]


def test_only_a_dialect_with_hint_prompts_counts_as_one() -> None:
    assert isinstance(SecondCallDialect(), HintDialect)
    assert not isinstance(LetterDialect(), HintDialect)
    assert LetterDialect().parse_design([65]) == ParsedDesign("", "", "1 parts")


def test_a_unit_given_up_is_lost_slot_by_slot_under_the_same_ids(request_unit: DesignRequested, sampler: HashSampler) -> None:
    work = DesignWork(sampler, policies=None, dialect=LetterDialect())  # type: ignore[arg-type]  # giving up needs no policy
    outputs = work.give_up(request_unit, AT, "its worker died")
    assert [topic for topic, _ in outputs] == [Topic.ENV_PROPOSED] * 3
    assert [(record.event_id, getattr(record, "lost", "")) for _, record in outputs] == [
        (f"e{n}", "its worker died") for n in range(3)
    ]
    assert sampler.batches == []
