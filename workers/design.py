"""The design worker: a unit of slots becomes designs, sampled as one batch. `spade work design`.

In: spade-design-requested, in the group spade-work-design-RUN. Out: one spade-env-proposed a slot, with its tokens, their
log-probabilities, and what they decode to: the source and the hint, or why they could not be read.
Of a pool, each slot's document is the design: no model is loaded, and there are no tokens to train.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from infra.dialects import Dialect, ParsedDesign, recipe_dialect
from infra.runs import await_run, find_folder
from infra.telemetry import bind_run, count, get_logger
from schemas.common import Record, Reference, SamplingSettings, Span, pack_floats, pack_ints
from schemas.design import DesignRequested, DesignSlot, EnvProposed
from schemas.errors import SettingsError
from schemas.process import ProcessContext
from schemas.topics import Topic
from schemas.train import DESIGNER
from workers.consumer import consume
from workers.episodes import turn_seed
from workers.policies import PolicyFeed, make_sampler
from workers.samplers.base import Sampler, SampleRequest, SampleResult
from workers.stage import Outputs, Stage, Work

DEADLINE_S = 1800.0
log = get_logger("workers.design")


@runtime_checkable
class HintDialect(Protocol):
    """What a dialect offers besides, where the hint comes from a second call (published)."""

    def hint_prompt(self, source: str) -> list[int]:
        """The prompt of the hint for a source."""
        ...

    def parse_hint(self, token_ids: Sequence[int]) -> str:
        """The hint in a completion; empty where there is none."""
        ...


def run(context: ProcessContext) -> None:
    """Designs until the run has finished or a signal came. Blocks; raises SpadeError."""
    started = await_run(context)
    bind_run(started.run_id)
    if started.recipe.is_pooled:
        pooled = Stage("design", (Topic.DESIGN_REQUESTED,), DEADLINE_S, prefetch=2, tries=started.recipe.rollout.tries)
        consume(context, started, pooled, lambda stop: PooledDesigns())
        return
    dialect = recipe_dialect(started.recipe, find_folder(started.recipe.model.path))
    if started.recipe.design.hint_by_second_call and not isinstance(dialect, HintDialect):
        raise SettingsError(
            f"design.hint_by_second_call: dialect {dialect.name!r} writes the hint with the source",
            "Set it to false, or choose another model.dialect",
        )
    stage = Stage("design", (Topic.DESIGN_REQUESTED,), DEADLINE_S, prefetch=2, tries=started.recipe.rollout.tries)

    def make_work(stop: threading.Event) -> Work:
        if started.recipe.designer == "external":
            from workers.external import make_external_work

            return make_external_work(started.recipe, dialect, stop.is_set)
        sampler = make_sampler(started.recipe, stop.is_set)
        return DesignWork(sampler, PolicyFeed(context.broker, started, sampler, stop.is_set), dialect)

    consume(context, started, stage, make_work)


class DesignWork:
    """See consumer.Work."""

    def __init__(self, sampler: Sampler, policies: PolicyFeed, dialect: Dialect) -> None:
        self._sampler = sampler
        self._policies = policies
        self._dialect = dialect

    def run(self, record: Record, at: Reference) -> Outputs:
        """One unit of slots; the proposals."""
        assert isinstance(record, DesignRequested)  # the topic holds no other
        started = time.monotonic()
        self._policies.hold(record.policy_version)
        proposals = write_designs(record, self._sampler, self._dialect)
        tokens = sum(len(proposal.completion_tokens) // 4 for proposal in proposals)
        count("spade_tokens_sampled_total", tokens, role=DESIGNER)
        log.info(
            "designs written",
            generation=record.generation,
            design_attempt=record.design_attempt,
            slots=len(proposals),
            unreadable=sum(bool(proposal.parse_error) for proposal in proposals),
            tokens=tokens,
            policy_version=record.policy_version,
            seconds=round(time.monotonic() - started, 2),
        )
        return [(Topic.ENV_PROPOSED, proposal) for proposal in proposals]

    def give_up(self, record: Record, at: Reference, reason: str) -> Outputs:
        """Every slot as lost."""
        assert isinstance(record, DesignRequested)  # the topic holds no other
        return [(Topic.ENV_PROPOSED, make_proposal(record, slot, lost=reason)) for slot in record.slots]


class PooledDesigns:
    """See consumer.Work."""

    def run(self, record: Record, at: Reference) -> Outputs:
        """One unit of slots; the pool's environments that they name."""
        assert isinstance(record, DesignRequested)  # the topic holds no other
        return [(Topic.ENV_PROPOSED, make_proposal(record, slot, design=_pooled(slot))) for slot in record.slots]

    def give_up(self, record: Record, at: Reference, reason: str) -> Outputs:
        """Every slot as lost."""
        assert isinstance(record, DesignRequested)  # the topic holds no other
        return [(Topic.ENV_PROPOSED, make_proposal(record, slot, lost=reason)) for slot in record.slots]


def _pooled(slot: DesignSlot) -> ParsedDesign:
    return ParsedDesign(slot.document.text, slot.document.hint, "")


def write_designs(request: DesignRequested, sampler: Sampler, dialect: Dialect) -> list[EnvProposed]:
    """Samples and reads one design a slot, in slot order of the request."""
    sampler.reset_cache()
    prompts = [dialect.design_prompt(slot) for slot in request.slots]
    results = sampler.sample(
        [
            SampleRequest(prompt=prompt, seed=slot.sampling_seed, settings=request.settings, stop_ids=dialect.design_stop_ids)
            for prompt, slot in zip(prompts, request.slots, strict=True)
        ]
    )
    parsed = [dialect.parse_design(result.tokens) for result in results]
    if request.hint_settings is not None:
        parsed = _second_call(request, request.hint_settings, parsed, sampler, dialect)
    return [
        make_proposal(request, slot, prompt, result, design, sampler)
        for slot, prompt, result, design in zip(request.slots, prompts, results, parsed, strict=True)
    ]


def _second_call(
    request: DesignRequested, settings: SamplingSettings, parsed: Sequence[ParsedDesign], sampler: Sampler, dialect: Dialect
) -> list[ParsedDesign]:
    """The designs with hints that a second call wrote; its tokens are not trained, and a missing hint stays empty."""
    assert isinstance(dialect, HintDialect)  # checked at the start
    readable = [index for index, design in enumerate(parsed) if not design.error]
    results = sampler.sample(
        [
            SampleRequest(
                prompt=dialect.hint_prompt(parsed[index].source),
                seed=turn_seed(request.slots[index].sampling_seed, 1),
                settings=settings,
                stop_ids=dialect.design_stop_ids,
            )
            for index in readable
        ]
    )
    hints = {index: dialect.parse_hint(result.tokens) for index, result in zip(readable, results, strict=True)}
    return [ParsedDesign(design.source, hints.get(index, ""), design.error) for index, design in enumerate(parsed)]


def make_proposal(
    request: DesignRequested,
    slot: DesignSlot,
    prompt: Sequence[int] = (),
    result: SampleResult | None = None,
    design: ParsedDesign | None = None,
    sampler: Sampler | None = None,
    lost: str = "",
) -> EnvProposed:
    """The record of one slot, as far as it was written."""
    spans = []
    if result is not None and sampler is not None:
        span = Span(
            start=0,
            end=len(result.tokens),
            policy_version=sampler.policy_version,
            policy_digest=sampler.policy_digest,
            settings=request.settings,
        )
        spans.append(span)
    return EnvProposed(
        run_id=request.run_id,
        event_id=slot.env_id,
        causation_id=request.event_id,
        created_at=time.time(),
        env_id=slot.env_id,
        unit_id=request.unit_id,
        generation=request.generation,
        slot=slot.slot,
        design_attempt=slot.design_attempt,
        skill=slot.skill,
        document_id=slot.document.document_id,
        group=slot.group,
        prompt_tokens=pack_ints(prompt),
        completion_tokens=pack_ints(result.tokens) if result else b"",
        logprobs=pack_floats(result.logprobs) if result else b"",
        spans=spans,
        source=design.source if design else "",
        hint=design.hint if design else "",
        parse_error=design.error if design else "",
        stop_reason=result.stop_reason if result else "",
        lost=lost,
    )
