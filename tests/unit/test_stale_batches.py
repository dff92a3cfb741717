"""What poll returns may be older than the assignment that is known by then: nothing behind an unread record is ever committed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import ConsumerRebalanceListener, TopicPartition
from kafka.structs import OffsetAndMetadata

from infra.runs import Run
from schemas import ids
from schemas.codec import encode
from schemas.common import Record, SamplingSettings
from schemas.design import DesignRequested, EnvProposed
from schemas.process import BrokerSettings, ProcessContext
from schemas.run import RunStarted
from schemas.settings import Recipe
from schemas.topics import Topic
from tests.echoworkers import STAGE, Echo
from workers import consumer as module
from workers.consumer import UnitConsumer

PLACE, OTHER = TopicPartition(Topic.DESIGN_REQUESTED.wire, 0), TopicPartition(Topic.DESIGN_REQUESTED.wire, 1)
UNITS = 6


@dataclass
class ScriptedClient:
    """A consumer of one partition with UNITS records; `between[n]` happens after poll n took its batch, before it returns."""

    between: Mapping[int, Callable[[ScriptedClient], None]]
    batch: int = 2
    polls: int = 0
    position: int | None = None
    owned: set[TopicPartition] = field(default_factory=set)
    committed_at: int | None = None
    commits: list[int] = field(default_factory=list)
    listener: ConsumerRebalanceListener | None = None

    def subscribe(self, topics: list[str], listener: ConsumerRebalanceListener) -> None:
        self.listener = listener

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {PLACE.partition}

    def give(self, *places: TopicPartition) -> None:
        """A rebalance as kafka-python does it: what stays keeps its position, what is new has none."""
        assert self.listener is not None
        self.listener.on_partitions_revoked(self.owned)
        if PLACE not in places or PLACE not in self.owned:
            self.position = None
        self.owned = set(places)
        self.listener.on_partitions_assigned(self.owned)

    def assignment(self) -> set[TopicPartition]:
        return set(self.owned)

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        self.polls += 1
        time.sleep(0.002)  # the lane gets its turn
        if self.polls == 1:
            self.give(PLACE, OTHER)
        batches: dict[TopicPartition, list[Any]] = {}
        if PLACE in self.owned:
            start = self.committed_at or 0 if self.position is None else self.position
            messages = [message(offset) for offset in range(start, min(start + self.batch, UNITS))]
            self.position = start + len(messages)
            batches = {PLACE: messages} if messages else {}
        self.between.get(self.polls, lambda client: None)(self)  # type: ignore[no-untyped-call]  # mypy reads a lambda so
        return batches

    def seek(self, place: TopicPartition, offset: int) -> None:
        if place not in self.owned:
            raise ValueError("not assigned")
        if place == PLACE:
            self.position = offset

    def seek_to_beginning(self, place: TopicPartition) -> None:
        self.seek(place, 0)

    def committed(self, place: TopicPartition, metadata: bool = False) -> Any:
        offset = self.committed_at if place == PLACE else None
        return OffsetAndMetadata(offset, "", -1) if metadata and offset is not None else offset

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        if PLACE in offsets:
            self.committed_at = offsets[PLACE].offset
            self.commits.append(offsets[PLACE].offset)

    def pause(self, *places: TopicPartition) -> None: ...

    def resume(self, *places: TopicPartition) -> None: ...

    def close(self, autocommit: bool) -> None: ...


class Shelf:
    """A producer that keeps what it is given."""

    def __init__(self) -> None:
        self.answered: list[str] = []

    def __enter__(self) -> Shelf:
        return self

    def __exit__(self, *raised: object) -> None: ...

    def send_all(self, outputs: Iterable[tuple[Topic, Record]]) -> None:
        for _, record in outputs:
            assert isinstance(record, EnvProposed)
            self.answered.append(record.unit_id)


def message(offset: int) -> SimpleNamespace:
    unit = DesignRequested(
        run_id="run", event_id=name_of(offset), unit_id=name_of(offset), generation=offset, design_attempt=0, policy_version=0,
        settings=SamplingSettings(), slots=[],
    )  # fmt: skip
    return SimpleNamespace(offset=offset, value=encode(unit), timestamp=0)


def name_of(offset: int) -> str:
    return ids.derive("unit", "run", offset)


def consume(client: ScriptedClient, monkeypatch: pytest.MonkeyPatch, turns: int = 1000) -> Shelf:
    """Lets the loop turn until all is committed, and at most `turns` times."""
    stop, shelf = threading.Event(), Shelf()
    monkeypatch.setattr(module, "make_consumer", lambda *_, **__: client)
    monkeypatch.setattr(module, "make_producer", lambda *_: shelf)
    monkeypatch.setattr(module, "COMMIT_EVERY_S", 0.0)
    monkeypatch.setattr(module, "BrokerWatch", lambda *_: SimpleNamespace(check=lambda: None))

    class Control:
        """Control topics that never tell of an end."""

        def __init__(self, *_: object) -> None: ...

        def __enter__(self) -> Control:
            return self

        def __exit__(self, *raised: object) -> None: ...

        def poll(self, timeout_s: float) -> list[Record]:
            if client.polls >= turns or client.committed_at == UNITS:
                stop.set()
            return []

    monkeypatch.setattr(module, "ControlReader", Control)
    monkeypatch.setattr(module, "LOOK_FOR_END_S", 0.0)
    told = dict.fromkeys(("policy_place", "code_digest", "corpus_digest", "tokenizer_digest", "dialect", "recipe_name"), "")
    started = RunStarted(
        run_id="run", event_id="s", created_at=0.0, recipe_json=Recipe().model_dump_json(), seed=0, steps=1, **told  # type: ignore[arg-type]  # fields by name
    )  # fmt: skip
    context = ProcessContext(broker=BrokerSettings(address="nowhere:1"), run_id="run")
    UnitConsumer(context, Run(started=started, recipe=Recipe()), STAGE, Echo(lambda record: None), stop).run()
    return shelf


def away_and_back(client: ScriptedClient) -> None:
    client.give(OTHER)
    client.give(PLACE, OTHER)


@pytest.mark.parametrize(
    "between",
    [
        pytest.param({2: away_and_back}, id="away and back before it is noted"),
        pytest.param({2: lambda client: client.give(OTHER), 9: lambda client: client.give(PLACE)}, id="away, and back later"),
        pytest.param({2: lambda client: client.give(PLACE)}, id="kept"),
        pytest.param({1: away_and_back, 2: away_and_back, 3: away_and_back}, id="again and again"),
    ],
)
def test_a_batch_that_is_older_than_the_assignment_commits_nothing_that_was_not_answered(
    between: Mapping[int, Callable[[ScriptedClient], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    client = ScriptedClient(between)
    shelf = consume(client, monkeypatch)
    assert set(shelf.answered) == {name_of(offset) for offset in range(UNITS)}
    assert client.committed_at == UNITS


def test_what_another_member_owns_by_now_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    client = ScriptedClient({2: lambda client: client.give(OTHER)})
    consume(client, monkeypatch, turns=20)
    assert all(offset == 0 for offset in client.commits), "what it began before is all that it may have told of"
