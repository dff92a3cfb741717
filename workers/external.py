"""Designs by a model that is not the run's policy: any OpenAI-compatible server (`designer = "external"`).

In and out as workers.design, which calls this. No policy is loaded, so the worker needs no GPU, and nothing here is trained: the
proposals name who wrote them (`EnvProposed.external`), have no spans, and the trainer refuses them. In mode "tokens" they keep
token ids and log-probabilities, in mode "text" there are none. A design is asked for by its seed, but a server of others' need
not repeat itself: where a killed worker's unit is written again, the first verdict of a slot counts, as ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec

from infra.dialects import Dialect, ParsedDesign
from infra.telemetry import count, get_logger
from schemas.common import Record, Reference
from schemas.design import DesignRequested, DesignSlot, EnvProposed
from schemas.errors import SettingsError
from schemas.settings import Recipe
from schemas.topics import Topic
from schemas.train import DESIGNER
from workers.design import make_proposal, write_designs
from workers.episodes import turn_seed
from workers.samplers.endpoint import open_endpoint
from workers.samplers.openai import ServerSampler, TextRequest, TextResult, TextWriter
from workers.stage import Outputs, Work

log = get_logger("workers.external")


@runtime_checkable
class TextDialect(Protocol):
    """What a dialect offers besides, whose prompts are text (games, tools)."""

    def design_text(self, slot: DesignSlot) -> str:
        """The prompt of one slot as the text of one message."""
        ...

    def read_design_text(self, text: str, *, ended: bool) -> ParsedDesign:
        """The design in what a model wrote; `ended`: it came to its end."""
        ...

    def hint_text(self, source: str) -> str:
        """The prompt of the hint for a source."""
        ...

    def read_hint_text(self, text: str) -> str:
        """The hint in what a model wrote; empty where there is none."""
        ...


class Writer(Protocol):
    """Text in, text out (samplers.openai.TextWriter)."""

    def write(self, requests: Sequence[TextRequest]) -> list[TextResult]:
        """One batch, results in the order of the requests. May block; raises ServerError, SamplingInterrupted."""
        ...


def make_external_work(recipe: Recipe, dialect: Dialect, interrupted: Callable[[], bool]) -> Work:
    """The work of a design worker whose designer is a server. Asks nothing of it yet. Raises SettingsError."""
    settings = recipe.external
    endpoint = open_endpoint(settings, interrupted)
    name = f"{settings.model} at {endpoint.url}"
    log.info(
        "designs come from an external model and are not trained", model=settings.model, url=endpoint.url, mode=settings.mode
    )
    if settings.mode == "tokens":
        sampler = ServerSampler(endpoint, settings.model)
        return ExternalWork(lambda request: write_designs(request, sampler, dialect), name)
    if not isinstance(dialect, TextDialect):
        raise SettingsError(
            f"external.mode = text: the prompts of model.dialect {dialect.name!r} are no text", "Set external.mode to tokens"
        )
    writer, text_dialect = TextWriter(endpoint, settings), dialect
    return ExternalWork(lambda request: write_text_designs(request, writer, text_dialect), name)


class ExternalWork:
    """See consumer.Work. `name` says who writes: the model and its server's address."""

    def __init__(self, write: Callable[[DesignRequested], list[EnvProposed]], name: str) -> None:
        self._write = write
        self._name = name

    def run(self, record: Record, at: Reference) -> Outputs:
        """One unit of slots; the proposals, marked as nobody's policy."""
        assert isinstance(record, DesignRequested)  # the topic holds no other
        started = time.monotonic()
        proposals = [msgspec.structs.replace(one, external=self._name, spans=[]) for one in self._write(record)]
        count("spade_tokens_sampled_total", sum(len(one.completion_tokens) // 4 for one in proposals), role=DESIGNER)
        log.info(
            "designs written",
            generation=record.generation,
            design_attempt=record.design_attempt,
            slots=len(proposals),
            unreadable=sum(bool(one.parse_error) for one in proposals),
            external=self._name,
            seconds=round(time.monotonic() - started, 2),
        )
        return [(Topic.ENV_PROPOSED, proposal) for proposal in proposals]

    def give_up(self, record: Record, at: Reference, reason: str) -> Outputs:
        """Every slot as lost."""
        assert isinstance(record, DesignRequested)  # the topic holds no other
        lost = [msgspec.structs.replace(make_proposal(record, slot, lost=reason), external=self._name) for slot in record.slots]
        return [(Topic.ENV_PROPOSED, proposal) for proposal in lost]


def write_text_designs(request: DesignRequested, writer: Writer, dialect: TextDialect) -> list[EnvProposed]:
    """Asks for one design a slot, in slot order of the request; hints by a second call where the request wants it."""
    results = writer.write(
        [TextRequest(dialect.design_text(slot), slot.sampling_seed, request.settings) for slot in request.slots]
    )
    parsed = [dialect.read_design_text(result.text, ended=result.stop_reason == "stop") for result in results]
    if request.hint_settings is not None:
        parsed = _second_call(request, parsed, writer, dialect)
    return [
        msgspec.structs.replace(make_proposal(request, slot, design=design), stop_reason=result.stop_reason)
        for slot, design, result in zip(request.slots, parsed, results, strict=True)
    ]


def _second_call(
    request: DesignRequested, parsed: Sequence[ParsedDesign], writer: Writer, dialect: TextDialect
) -> list[ParsedDesign]:
    assert request.hint_settings is not None  # asked by the caller
    readable = [index for index, design in enumerate(parsed) if not design.error]
    asked = [
        TextRequest(
            dialect.hint_text(parsed[index].source), turn_seed(request.slots[index].sampling_seed, 1), request.hint_settings
        )
        for index in readable
    ]
    results = writer.write(asked) if asked else []
    hints = {
        index: dialect.read_hint_text(result.text) if result.stop_reason == "stop" else ""
        for index, result in zip(readable, results, strict=True)
    }
    return [ParsedDesign(design.source, hints.get(index, ""), design.error) for index, design in enumerate(parsed)]
